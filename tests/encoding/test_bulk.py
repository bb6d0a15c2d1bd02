"""Images, datasets and features into one code file or into shards; by this process or by Ray."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from centerhash.codes import pack, unpack
from centerhash.core.errors import ConfigError, DataError, InputError
from centerhash.data import open_dataset
from centerhash.encoding.bulk import BulkInputs, encode_shards, encode_to_file, list_inputs
from centerhash.encoding.code_files import read_codes
from centerhash.encoding.shards import read_manifest, read_shards
from centerhash.model.model import HashModel
from tests.toys import (
    cli,
    cli_process,
    evaluate_files,
    refused,
    separable,
    started,
    wait_for_process,
    write_feature_folder,
    write_images,
)

pytestmark = pytest.mark.usefixtures("kept_networks")


def read_all(folder: Path) -> tuple[list[str], list[bytes], list[tuple[str, ...]]]:
    """Ids, codes and labels of all shards."""
    rows = [
        (id, code.tobytes(), names)
        for ids, packed, labels in read_shards(folder)
        for id, code, names in zip(ids, packed, labels, strict=True)
    ]
    return [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]


def shard_contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("shard-*")}


def break_image(path: Path) -> Path:
    path.write_text("not a picture")
    return path


# Inputs


def test_list_inputs_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_images(Path("photos"), 3)
    inputs = list_inputs(["photos/000.png", "photos"])
    assert inputs.ids == [f"photos/00{number}.png" for number in range(3)]
    assert inputs.images == [tmp_path / id for id in inputs.ids]
    assert inputs.fingerprint() == list_inputs(["photos/*.png"]).fingerprint()


def test_fingerprint(tmp_path: Path) -> None:
    photos = write_images(tmp_path / "photos", 2)
    of_photos = list_inputs([str(tmp_path / "photos")]).fingerprint()
    break_image(photos[0])
    assert list_inputs([str(tmp_path / "photos")]).fingerprint() == of_photos
    file = tmp_path / "features.npy"
    np.save(file, np.zeros((2, 4), np.float32))
    of_features = list_inputs([str(file)]).fingerprint()
    np.save(file, np.zeros((2, 8), np.float32))
    paths, labels = [Path("/a"), Path("/b")], np.eye(2, dtype=bool)
    others = [
        list_inputs([str(file)]),
        BulkInputs(["a", "b"], paths, labels=labels, classes=("x", "y")),
        BulkInputs(["a", "b"], paths),
        BulkInputs(["a", "b"], paths, labels=~labels, classes=("x", "y")),
        BulkInputs(["a", "b"], paths, labels=labels, classes=("x", "z")),
        BulkInputs(["a", "c"], paths, labels=labels, classes=("x", "y")),
    ]
    assert len({of_photos, of_features, *(inputs.fingerprint() for inputs in others)}) == 8


@pytest.mark.parametrize(
    ("ids", "folder", "words"),
    [(["a", "b", "b"], "", "'b'"), (["a\udcff"], "", "UTF-8"), (["a"], "photos\udcff", "UTF-8")],
)
def test_inputs_reject_names(ids: list[str], folder: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        BulkInputs(ids, [Path(f"/{folder}/{number}") for number in range(len(ids))])


# One code file


def test_encode_dataset_to_file(feature_run: Path, feature_folder: Path, tmp_path: Path) -> None:
    model, dataset = HashModel.load(feature_run), open_dataset(feature_folder)
    assert dataset.features is not None
    assert encode_to_file(model, [str(feature_folder)], tmp_path / "codes.npz").count == 160
    codes = read_codes(tmp_path / "codes.npz")
    assert np.array_equal(unpack(codes.packed, 16), model.encode_features(dataset.features))
    assert np.array_equal(codes.labels, dataset.labels)
    assert (codes.names, codes.classes) == (dataset.names, dataset.classes)
    assert codes.ids is not None
    assert len(np.unique(codes.ids)) == 160
    assert evaluate_files([tmp_path / "codes.npz"] * 2, exclude_self=True).queries_in_database == 160


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_encode_features_to_file(dtype: type, feature_run: Path, tmp_path: Path) -> None:
    model, features = HashModel.load(feature_run), separable(7, seed=3)[0].astype(dtype)
    np.save(tmp_path / "features.npy", features)
    assert encode_to_file(model, [str(tmp_path / "features.npy")], tmp_path / "codes.npz").count == 7
    codes = read_codes(tmp_path / "codes.npz")
    assert codes.names is codes.labels is codes.ids is None
    assert np.array_equal(unpack(codes.packed, 16), model.encode_features(features))


def test_encode_images_to_file(
    image_run: Path, scene_folder: Path, feature_cache: Path, tmp_path: Path
) -> None:
    model, out = HashModel.load(image_run), tmp_path / "codes.npz"
    images = sorted((scene_folder / "images").iterdir())
    settings: dict[str, Any] = {"cache": feature_cache, "device": "cpu"}
    expected = model.encode(images, **settings)
    names = [str(images[5]), str(images[2])]
    assert encode_to_file(model, names, out, **settings).count == 2
    assert read_codes(out).names == tuple(names)
    assert np.array_equal(unpack(read_codes(out).packed, 32), expected[[5, 2]])
    for entry in (scene_folder / "images", scene_folder / "images" / "*.jpg", scene_folder):
        assert encode_to_file(model, [str(entry)], out, **settings).count == 40
        assert np.array_equal(unpack(read_codes(out).packed, 32), expected)
    assert np.array_equal(read_codes(out).labels, open_dataset(scene_folder).labels)


def test_encode_to_file_broken_images(image_run: Path, scene_folder: Path, tmp_path: Path) -> None:
    model, out = HashModel.load(image_run), tmp_path / "codes.npz"
    good, bad = scene_folder / "images" / "000000.jpg", break_image(tmp_path / "bad.jpg")
    with pytest.raises(DataError, match="bad"):
        encode_to_file(model, [str(bad), str(good)], out, device="cpu")
    assert not out.exists()
    assert encode_to_file(model, [str(bad), str(good)], out, device="cpu", skip_broken=True).count == 1
    assert read_codes(out).names == (str(good),)


# Shards


def test_encode_dataset_to_shards(feature_run: Path, feature_folder: Path, tmp_path: Path) -> None:
    model, data = HashModel.load(feature_run), open_dataset(feature_folder)
    assert data.features is not None
    steps: list[tuple[int, int]] = []
    done = encode_shards(
        feature_run,
        [str(feature_folder)],
        tmp_path / "out",
        shard_size=64,
        progress=lambda *step: steps.append(step),
    )
    assert (done.count, done.shards, done.existing, done.broken) == (160, 3, 0, {})
    assert steps == [("codes", count, 160) for count in (0, 64, 128, 160)]
    ids, codes, labels = read_all(tmp_path / "out")
    assert ids == list(data.names)
    assert codes == [row.tobytes() for row in pack(model.encode_features(data.features))]
    assert labels == [tuple(np.array(data.classes)[row].tolist()) for row in data.labels]
    manifest = read_manifest(tmp_path / "out")
    assert (manifest.bits, manifest.model, manifest.labels) == (16, model.digest, "given")


def test_encode_features_to_shards(feature_run: Path, tmp_path: Path) -> None:
    model, features = HashModel.load(feature_run), separable(7, seed=3)[0].astype(np.float16)
    np.save(tmp_path / "features.npy", features)
    encode_shards(feature_run, [str(tmp_path / "features.npy")], tmp_path / "out", shard_size=4)
    ids, _, labels = read_all(tmp_path / "out")
    assert ids == list("0123456")
    assert labels == model.label_names(features)
    assert read_manifest(tmp_path / "out").labels == "predicted"


@pytest.mark.slow
def test_encode_images_to_shards(image_run: Path, scene_folder: Path, tmp_path: Path) -> None:
    model, paths = HashModel.load(image_run), sorted((scene_folder / "images").iterdir())[:8]
    for engine in ("torch", "onnx"):
        out = tmp_path / engine
        encode_shards(image_run, list(map(str, paths)), out, shard_size=8, device="cpu", engine=engine)
        ids, codes, labels = read_all(out)
        assert ids == list(map(str, paths))
        assert codes == [row.tobytes() for row in pack(model.encode(paths, device="cpu"))]
        assert labels == model.label_names(model.features_of(paths, device="cpu"))


def test_encode_shards_broken_images(image_run: Path, tmp_path: Path) -> None:
    images, out = write_images(tmp_path / "photos", 6), tmp_path / "out"
    whole = images[3].read_bytes()
    break_image(images[3])
    arguments: Any = (image_run, [str(tmp_path / "photos")], out)
    with pytest.raises(DataError, match=r"1 of 6 images"):
        encode_shards(*arguments, shard_size=2, device="cpu")
    assert read_all(out)[0] == [str(path) for path in images if path != images[3]]
    (line,) = (out / "broken.jsonl").read_text().splitlines()
    assert {"shard": 1, "id": str(images[3])}.items() <= json.loads(line).items()
    skipped = encode_shards(*arguments, shard_size=2, device="cpu", skip_broken=True)
    assert (skipped.count, skipped.existing, list(skipped.broken)) == (5, 3, [str(images[3])])
    images[3].write_bytes(whole)
    repaired = encode_shards(*arguments, shard_size=2, device="cpu")
    assert (repaired.count, repaired.existing, repaired.broken) == (6, 2, {})
    assert (out / "broken.jsonl").read_text() == ""
    encode_shards(*arguments[:2], tmp_path / "straight", shard_size=2, device="cpu")
    assert shard_contents(out) == shard_contents(tmp_path / "straight")


def test_damaged_shards_are_encoded_again(feature_run: Path, feature_folder: Path, tmp_path: Path) -> None:
    arguments: Any = (feature_run, [str(feature_folder)], tmp_path / "out")
    encode_shards(*arguments, shard_size=100)
    path = tmp_path / "out" / "shard-00001.parquet"
    whole = path.read_bytes()
    for damage in (lambda: path.write_bytes(whole[:-20]), path.unlink):
        damage()
        assert encode_shards(*arguments, shard_size=100).existing == 1
        assert path.read_bytes() == whole


def test_encode_shards_foreign_folder(feature_run: Path, image_run: Path, tmp_path: Path) -> None:
    data, other = write_feature_folder(tmp_path / "data", 20), write_feature_folder(tmp_path / "other", 30)
    out = tmp_path / "out"
    encode_shards(feature_run, [str(data)], out)
    for field, run, entry, size in (
        ("model", image_run, data / "features.npy", 4096),
        ("inputs, count", feature_run, other, 4096),
        ("shard_size", feature_run, data, 10),
    ):
        with pytest.raises(ConfigError, match=field):
            encode_shards(run, [str(entry)], out, shard_size=size)
    np.save(data / "features.npy", separable(20, seed=9)[0])
    with pytest.raises(ConfigError, match="inputs"):
        encode_shards(feature_run, [str(data)], out)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "notes.txt").write_text("notes")
    with pytest.raises(ConfigError, match=r"notes\.txt"):
        encode_shards(feature_run, [str(data)], tmp_path / "notes")


@pytest.mark.parametrize(
    ("entry", "settings", "error"),
    [
        ("scenes", {}, ConfigError),
        ("narrow.npy", {"runner": "rya"}, ConfigError),
        ("narrow.npy", {"shard_size": 0}, ConfigError),
        ("narrow.npy", {}, InputError),
        ("flat.npy", {}, DataError),
        ("gone.npy", {}, DataError),
    ],
)
def test_encode_shards_rejects(
    feature_run: Path,
    scene_folder: Path,
    tmp_path: Path,
    entry: str,
    settings: dict[str, Any],
    error: type[Exception],
) -> None:
    np.save(tmp_path / "flat.npy", np.zeros(5, np.float32))
    np.save(tmp_path / "narrow.npy", np.zeros((5, 3), np.float32))
    inputs = [str(scene_folder if entry == "scenes" else tmp_path / entry)]
    with pytest.raises(error):
        encode_shards(feature_run, inputs, tmp_path / "out", **settings)
    assert shard_contents(tmp_path / "out") == {}


@pytest.mark.slow
def test_killed_encoding_resumes(image_run: Path, scene_folder: Path, tmp_path: Path) -> None:
    words: list[Any] = ["encode", image_run, scene_folder, "--shard-size", "2", "--device", "cpu", "--out"]
    out = tmp_path / "out"
    with started(*words, out) as process:
        wait_for_process(process, lambda: len(shard_contents(out)) >= 3, "three shards are there")
        process.signal(signal.SIGKILL)
    kept = len(shard_contents(out))
    assert 3 <= kept < 20
    done = cli_process(*words, out)
    assert done.code == 0, done.err
    assert f"40 codes in 20 shards, {kept} of them from before" in done.out
    assert cli_process(*words, tmp_path / "straight").code == 0
    assert shard_contents(out) == shard_contents(tmp_path / "straight")


# Ray


def test_without_ray(
    feature_run: Path, feature_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match="ray"):
        encode_shards(feature_run, [str(feature_folder)], tmp_path / "out", runner="ray")


@pytest.mark.slow
@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_unreachable_cluster(address: str, feature_run: Path, feature_folder: Path, tmp_path: Path) -> None:
    entries, out = [str(feature_folder)], tmp_path / "out"
    with pytest.raises(ConfigError, match=address):
        encode_shards(feature_run, entries, out, runner="ray", ray_address=address)


@pytest.mark.slow
def test_ray_writes_equal_shards(image_run: Path, scene_folder: Path, tmp_path: Path) -> None:
    images, bad = scene_folder / "images", break_image(tmp_path / "bad.jpg")
    entries = (f"{images}/00000*.jpg", f"{images}/00001*.jpg", bad)
    for runner in ("local", "ray"):
        settings = ("--shard-size", "6", "--device", "cpu", "--runner", runner, "--skip-broken")
        done = cli_process(
            "encode", image_run, *entries, "--out", tmp_path / runner, *settings, RAY_ADDRESS=""
        )
        assert done.code == 0, done.err
        assert "20 codes in 4 shards" in done.out
        assert "1 of 21 images cannot be read" in done.err
    assert shard_contents(tmp_path / "ray") == shard_contents(tmp_path / "local")


# The command


def test_encode_command(feature_run: Path, feature_folder: Path, tmp_path: Path) -> None:
    words: Any = ("encode", feature_run, feature_folder, "--out", tmp_path / "codes", "--shard-size", "100")
    assert "160 codes in 2 shards: " in cli(*words).text
    assert "160 codes in 2 shards, 2 of them from before: " in cli(*words).text


@pytest.mark.parametrize(
    ("out", "options"),
    [
        ("codes.npz", ["--runner", "ray"]),
        ("codes.npz", ["--shard-size", "9"]),
        ("codes", ["--cache", "kept"]),
        ("codes", ["--workers", "2"]),
        ("codes", ["--ray-address", "a:1"]),
    ],
)
def test_options_without_effect(
    out: str, options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert options[0] in refused(cli("encode", "run", "photos", "--out", out, *options))
    assert not list(tmp_path.iterdir())
