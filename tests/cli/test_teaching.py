"""The commands that teach labels and look after them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from centerhash.codes import pack
from centerhash.search import Index
from tests.toys import cli, refused, separable


@pytest.fixture
def folder(feature_run: Path, tmp_path: Path) -> Path:
    """An index of sixty items, 00 to 59."""
    with Index.create(tmp_path / "photos.index", feature_run) as index:
        packed = pack(index.model.encode_features(separable(60)[0]))
        visual = np.random.default_rng(0).integers(0, 256, (60, 16), dtype=np.uint8)
        paths = [f"/photos/{row % 2}/{row:02}.jpg" for row in range(60)]
        index.add_codes(packed, [f"{row:02}" for row in range(60)], paths=paths, visual=list(visual))
    return tmp_path / "photos.index"


def test_teach_search_and_suggest(folder: Path) -> None:
    done = cli(
        "index", "teach", folder, "Bella", "--like", "01", "--like", "/photos/0/02.jpg", "--unlike", "09"
    )
    assert done.code == 0, done.err
    assert "(2 like it, 1 unlike it)" in done.text
    with Index.open(folder, read_only=True) as index:
        label = index.taught()["Bella"]
    assert (label.like, label.unlike) == (("01", "02"), ("09",))
    (row,) = cli("index", "taught", "list", folder, "--json").json
    assert row == label.to_dict()
    assert "Bella" in cli("index", "taught", "list", folder).out
    found = cli("search", folder, "--labels", "bella", "-k", "2", "--json").json["results"]
    assert {one["id"] for one in found} == {"01", "02"}
    assert "Bella" in cli("search", folder, "--labels", "Bella, dog", "--having", "Bella").out
    answer = cli("index", "taught", "suggest", folder, "Bella", "-k", "4", "--json").json
    assert (len(answer["likely"]), len(answer["uncertain"])) == (2, 2)
    shown = cli("index", "taught", "suggest", folder, "Bella", "-k", "4").out
    assert all(one["id"] in shown for one in (*answer["likely"], *answer["uncertain"]))


def test_rename_export_import_remove(folder: Path, tmp_path: Path) -> None:
    assert cli("index", "teach", folder, "Bella", "--like", "01").code == 0
    assert cli("index", "taught", "rename", folder, "Bella", "our dog").code == 0
    file = tmp_path / "labels.json"
    assert cli("index", "taught", "export", folder, file).code == 0
    assert cli("index", "taught", "remove", folder, "our dog").code == 0
    assert cli("index", "taught", "list", folder, "--json").json == []
    done = cli("index", "taught", "import", folder, file)
    assert (done.code, "our dog" in done.out) == (0, True)
    assert [row["name"] for row in cli("index", "taught", "list", folder, "--json").json] == ["our dog"]
    assert "our dog" in refused(cli("index", "taught", "import", folder, file))


def test_what_cannot_be_taught_is_refused_in_one_line(folder: Path) -> None:
    assert "--like" in refused(cli("index", "teach", folder, "Bella"))
    assert "nowhere" in refused(cli("index", "teach", folder, "Bella", "--like", "nowhere"))
    assert "'dog'" in refused(cli("index", "teach", folder, "dog", "--like", "01"))
    assert "Bella" in refused(cli("index", "taught", "remove", folder, "Bella"))
    assert "Bella" in refused(cli("index", "taught", "suggest", folder, "Bella"))
    assert "--like" in refused(cli("index", "teach", folder, "new", "--unlike", "01"))
