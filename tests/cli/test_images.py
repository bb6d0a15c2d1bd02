from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from centerhash.codes import hamming
from centerhash.model.model import HashModel
from tests.toys import QUICK, cli, noise_image, refused, write_feature_folder

pytestmark = pytest.mark.usefixtures("kept_networks")


def test_encode_and_evaluate(feature_run: Path, feature_folder: Path, tmp_path: Path) -> None:
    assert cli("encode", feature_run, feature_folder, "--out", tmp_path / "codes.npz").code == 0
    words = ("evaluate", tmp_path / "codes.npz", tmp_path / "codes.npz", "--exclude-self", "--json")
    result = cli(*words).json
    assert result["queries_in_database"] == result["queries"] == 160


def test_broken_images(image_run: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.jpg").write_bytes(b"")
    (tmp_path / "text.jpg").write_text("I am no picture.")
    noise_image(300).save(tmp_path / "cut.jpg")
    (tmp_path / "cut.jpg").write_bytes((tmp_path / "cut.jpg").read_bytes()[:1500])
    noise_image().save(tmp_path / "good.png")
    words = ("encode", image_run, tmp_path, "--out", tmp_path / "codes.npz", "--cache", tmp_path / "cache")
    text = refused(cli(*words, "--device", "cpu"))
    assert "3 of 4 images cannot be read" in text
    assert all(name in text for name in ("empty.jpg", "text.jpg", "cut.jpg"))
    assert "good.png" not in text
    assert "--skip-broken" in text
    assert not (tmp_path / "codes.npz").exists()
    done = cli(*words, "--device", "cpu", "--skip-broken")
    assert done.code == 0
    assert "1 code: " in done.out
    text = refused(cli("explain", image_run, tmp_path / "cut.jpg", "--device", "cpu"))
    assert "cut.jpg" in text
    assert "truncated" in text


@pytest.mark.parametrize("name", ["encode", "explain"])
def test_missing_images_and_models(image_run: Path, tmp_path: Path, name: str) -> None:
    out = ("--out", tmp_path / "codes.npz") if name == "encode" else ()
    assert "no such file or folder" in refused(cli(name, image_run, tmp_path / "gone.jpg", *out))
    assert "holds no finished model" in refused(cli(name, tmp_path / "gone", tmp_path / "gone.jpg", *out))


def test_explain(image_run: Path, scene_folder: Path) -> None:
    image = scene_folder / "images" / "000001.jpg"
    done = cli("explain", image_run, image, "--device", "cpu", "--json")
    assert done.code == 0, done.err
    (explained,) = done.json
    assert explained["image"] == str(image)
    model = HashModel.load(image_run)
    features = model.features_of([image], device="cpu")
    codes = model.encode_features(features)
    distances = hamming(codes, model.centers.numpy().astype(np.int8))[0]
    weights = [row["weight"] for row in explained["labels"]]
    assert weights == sorted(weights, reverse=True)
    assert sum(weights) == pytest.approx(1, abs=1e-5)
    for row in explained["labels"]:
        assert row["distance"] == distances[model.classes.index(row["label"])]
        assert -1 <= row["similarity"] <= 1

    shown = cli("explain", image_run, image, "--device", "cpu")
    assert shown.code == 0
    assert image.name in shown.text
    for row in explained["labels"]:
        line = next(line for line in shown.out.splitlines() if f" {row['label']} " in line)
        assert f"{row['similarity']:+.2f}" in line
        assert f" {row['distance']} " in line


@pytest.mark.slow
def test_names_with_brackets(image_run: Path, tmp_path: Path) -> None:
    """Square brackets and words between colons mean something to the library that prints tables."""
    (tmp_path / "a[").mkdir()
    for name in ("photo[b].png", "a[/red].png", "my:dog:.png"):
        noise_image().save(tmp_path / name)
        shown = cli("explain", image_run, tmp_path / name, "--device", "cpu")
        assert shown.code == 0, shown.err
        assert name in shown.out.replace("\n", "")  # a title is as wide as its table
    folder = write_feature_folder(tmp_path / "data[red]", count=40)
    done = cli("train", folder, "--out", tmp_path / "run[red]", *QUICK)
    assert done.code == 0
    assert "run[red]" in done.out
