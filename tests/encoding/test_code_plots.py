from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from centerhash.codes import pack
from centerhash.encoding.code_files import CodeFile, read_code_pair
from centerhash.encoding.code_plots import RETRIEVED_PLOT, principal_plane, retrieved_rows
from tests.toys import cli, names, refused

CURVES = ["map.png", "precision-recall.png", "precision-top-k.png"]


def coded(codes: list[list[int]], ids: list[int]) -> CodeFile:
    return CodeFile(len(codes[0]), pack(np.array(codes, dtype=np.int8)), ids=np.array(ids))


def test_the_plane_of_codes_by_hand() -> None:
    """Two bits vary together and a third alone: all of the variance is in the plane."""
    codes = np.array([[1, 1, 1, 1], [1, 1, -1, 1], [-1, -1, 1, 1], [-1, -1, -1, 1]])
    points, share = principal_plane(codes)
    assert share == pytest.approx(1)
    root = 2**0.5
    np.testing.assert_allclose(points, [[root, 1], [root, -1], [-root, 1], [-root, -1]], atol=1e-12)


def test_equal_codes_and_single_bits_have_a_plane() -> None:
    assert not principal_plane(np.ones((3, 4)))[0].any()
    points, _ = principal_plane(np.array([[1], [-1]]))
    np.testing.assert_allclose(points, [[1, 0], [-1, 0]])


def test_retrieved_items_by_hand() -> None:
    query = coded([[1, 1, 1, 1]], [7])
    database = coded([[1, 1, 1, -1], [1, 1, 1, 1], [-1, -1, -1, -1]], [5, 7, 6])
    assert retrieved_rows(query, database, [0], 2, exclude_self=False) == [[(1, 0), (0, 1)]]
    assert retrieved_rows(query, database, [0], 2, exclude_self=True) == [[(0, 1), (2, 4)]]
    assert retrieved_rows(query, database, [0], 9, exclude_self=True) == [[(0, 1), (2, 4)]]


@pytest.mark.slow
def test_plots_of_a_run_on_images_show_the_images(image_run: Path, tmp_path: Path) -> None:
    plain, done = cli("evaluate", image_run), cli("evaluate", image_run, "--plots", tmp_path / "plots")
    assert (done.code, done.out) == (0, plain.out)
    assert names(tmp_path / "plots") == sorted([*CURVES, RETRIEVED_PLOT])
    for name in (*CURVES, RETRIEVED_PLOT):
        with Image.open(io.BytesIO((tmp_path / "plots" / name).read_bytes())) as image:
            assert image.format == "PNG"
            assert min(image.size) > 400
            assert len(np.unique(np.asarray(image.convert("L")))) > 20  # not empty


@pytest.mark.slow
def test_plots_of_features_have_no_images(feature_run: Path, tmp_path: Path) -> None:
    done = cli("evaluate", feature_run, "--plots", tmp_path / "plots", "--json")
    assert done.code == 0
    assert names(tmp_path / "plots") == CURVES
    assert f"no {RETRIEVED_PLOT}" in done.err
    query, database = read_code_pair([feature_run])
    assert query.paths is database.paths is None


def test_a_missing_library_is_named_before_work_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from centerhash.core import extras

    real = extras.find_spec
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "matplotlib" else real(name))
    line = refused(cli("evaluate", tmp_path / "no-run", "--plots", tmp_path / "plots"))
    assert "centerhash[plots]" in line
    assert not (tmp_path / "plots").exists()
