"""Images into one code file or into shards: labels, broken files, parquet; by this process or by Ray."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from centerhash.codes import pack, unpack
from centerhash.core.errors import ConfigError, DataError, InputError
from centerhash.data import open_dataset
from centerhash.encoding.bulk import Inputs, encode_shards, encode_to_file, list_inputs
from centerhash.encoding.code_files import evaluate_files
from centerhash.encoding.shards import read_shards
from centerhash.model.model import HashModel
from tests.own_images import png
from tests.toys import cli_process, separable, started, wait_for_process, write_images

pytestmark = pytest.mark.usefixtures("kept_networks")


def everything(folder: Path) -> tuple[list[str], list[bytes], list[tuple[str, ...]]]:
    found = list(read_shards(folder))
    codes = [row.tobytes() for _, packed, _ in found for row in packed]
    return (
        [id for ids, _, _ in found for id in ids],
        codes,
        [names for _, _, labels in found for names in labels],
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("shard-*")}


def break_image(path: Path) -> Path:
    path.write_text("not a picture")
    return path


# What is encoded


def test_images_come_in_the_order_of_their_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_images(Path("photos"), 3)
    found = list_inputs(["photos/002.png", "photos/000.png", "photos"], ordered=True)
    assert found.ids == [f"photos/00{number}.png" for number in range(3)]
    assert found.images == [tmp_path / id for id in found.ids]
    assert found.labels_of(slice(0, 2)) is None
    assert found.fingerprint() == list_inputs(["photos/*.png"]).fingerprint()
    assert found.fingerprint() != list_inputs(["photos/000.png", "photos/001.png"]).fingerprint()


def test_a_repaired_image_is_the_same_input_a_rewritten_table_is_not(tmp_path: Path) -> None:
    images = write_images(tmp_path / "photos", 2)
    before = list_inputs([str(tmp_path / "photos")]).fingerprint()
    break_image(images[0])
    assert list_inputs([str(tmp_path / "photos")]).fingerprint() == before
    table = tmp_path / "t.parquet"
    parquet.write_table(pa.table({"image": [png(0)]}), table)
    before = list_inputs([str(table)]).fingerprint()
    parquet.write_table(pa.table({"image": [png(1)], "more": [1]}), table)
    assert list_inputs([str(table)]).fingerprint() != before


def test_rows_of_features_are_called_by_their_numbers(tmp_path: Path) -> None:
    np.save(tmp_path / "features.npy", np.zeros((12, 4), np.float32))
    found = list_inputs([str(tmp_path / "features.npy")])
    assert found.ids == range(12)
    named = Inputs([str(row) for row in range(12)], features=found.features)
    assert named.fingerprint() == found.fingerprint()


def test_labels_are_part_of_the_input() -> None:
    images, labels = [Path("/a"), Path("/b")], np.eye(2, dtype=bool)
    given = Inputs(["a", "b"], images, labels=labels, classes=("x", "y"))
    assert given.labels_of(slice(1, 2)) == [("y",)]
    others = [
        Inputs(["a", "b"], images),
        Inputs(["a", "b"], images, labels=~labels, classes=("x", "y")),
        Inputs(["a", "b"], images, labels=labels, classes=("x", "z")),
        Inputs(["a", "c"], images, labels=labels, classes=("x", "y")),
    ]
    assert len({inputs.fingerprint() for inputs in (given, *others)}) == 5


@pytest.mark.parametrize(
    ("ids", "folder", "words"),
    [(["a", "b", "b"], "", "'b'"), (["a\udcff"], "", "UTF-8"), (["a"], "photos\udcff", "UTF-8")],
)
def test_names_that_cannot_be_ids_are_rejected(ids: list[str], folder: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        Inputs(ids, [Path(f"/{folder}/{number}") for number in range(len(ids))])


def test_parquet_without_labels_is_a_list_of_images(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    for name, first in (("b", 2), ("a", 0)):
        parquet.write_table(
            pa.table({"image": [png(first), png(first + 1)]}), tmp_path / "t" / f"{name}.parquet"
        )
    found = list_inputs([str(tmp_path / "t")])
    assert found.ids == ["a.parquet/0", "a.parquet/1", "b.parquet/0", "b.parquet/1"]
    assert found.images == [tmp_path / "t" / id for id in found.ids]
    parquet.write_table(
        pa.table({"image": [png(0), png(1)], "labels": ["dog", "cat"]}), tmp_path / "labelled.parquet"
    )
    labelled = list_inputs([str(tmp_path / "labelled.parquet")])
    assert labelled.labels_of(slice(0, 1)) == [("dog",)]
    (tmp_path / "cut.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError):
        list_inputs([str(tmp_path / "cut.parquet")])


# One code file


def stored(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def test_a_feature_folder_is_encoded_with_labels_names_and_ids(
    feature_run: Path, feature_folder: Path, tmp_path: Path
) -> None:
    model, dataset = HashModel.load(feature_run), open_dataset(feature_folder)
    assert dataset.features is not None
    written = encode_to_file(model, [str(feature_folder)], tmp_path / "codes.npz")
    assert written.count == 160
    arrays = stored(tmp_path / "codes.npz")
    assert np.array_equal(unpack(arrays["packed"], 16), model.encode_features(dataset.features))
    assert np.array_equal(arrays["labels"], dataset.labels)
    assert json.loads(arrays["names"].tobytes()) == list(dataset.names)
    assert arrays["classes"].tolist() == list(dataset.classes)
    assert len(np.unique(arrays["ids"])) == 160
    found = evaluate_files([tmp_path / "codes.npz"] * 2, exclude_self=True)
    assert found.queries_in_database == 160
    assert found.map_textbook > 0.6


def test_a_features_file_is_encoded(feature_run: Path, tmp_path: Path) -> None:
    model, (features, _) = HashModel.load(feature_run), separable(7, seed=3)
    for kind in (np.float16, np.float32, np.float64):
        np.save(tmp_path / "features.npy", features.astype(kind))
        assert encode_to_file(model, [str(tmp_path / "features.npy")], tmp_path / "codes.npz").count == 7
        arrays = stored(tmp_path / "codes.npz")
        assert sorted(arrays) == ["bits", "packed"]
        assert np.array_equal(unpack(arrays["packed"], 16), model.encode_features(features.astype(kind)))
    np.save(tmp_path / "features.npy", features[:, :7])
    with pytest.raises(InputError, match="24"):
        encode_to_file(model, [str(tmp_path / "features.npy")], tmp_path / "none.npz")
    assert not (tmp_path / "none.npz").exists()


def test_images_are_encoded_with_their_names(
    image_run: Path, scene_folder: Path, feature_cache: Path, tmp_path: Path
) -> None:
    model, out = HashModel.load(image_run), tmp_path / "codes.npz"
    images = sorted((scene_folder / "images").iterdir())
    settings: dict[str, Any] = {"cache": feature_cache, "device": "cpu"}
    expected = model.encode(images, **settings)
    named = [str(images[5]), str(images[2])]
    assert encode_to_file(model, named, out, **settings).count == 2
    assert json.loads(stored(out)["names"].tobytes()) == named
    assert np.array_equal(unpack(stored(out)["packed"], 32), expected[[5, 2]])
    for entry in (scene_folder / "images", scene_folder / "images" / "*.jpg", scene_folder):
        assert encode_to_file(model, [str(entry)], out, **settings).count == 40
        assert np.array_equal(unpack(stored(out)["packed"], 32), expected)
    assert np.array_equal(stored(out)["labels"], open_dataset(scene_folder).labels)


def test_broken_images_are_left_out_only_when_asked(
    image_run: Path, scene_folder: Path, feature_cache: Path, tmp_path: Path
) -> None:
    model, out = HashModel.load(image_run), tmp_path / "codes.npz"
    good, bad = scene_folder / "images" / "000000.jpg", tmp_path / "bad.jpg"
    bad.write_text("not a picture")
    inputs, settings = [str(bad), str(good)], {"cache": feature_cache, "device": "cpu"}
    with pytest.raises(DataError):
        encode_to_file(model, inputs, out, **settings)  # type: ignore[arg-type]
    assert not out.exists()
    written = encode_to_file(model, inputs, out, skip_broken=True, **settings)  # type: ignore[arg-type]
    assert written.count == 1
    assert json.loads(stored(out)["names"].tobytes()) == [str(good)]


# Shards of images


@pytest.mark.slow
def test_images_get_the_codes_of_a_code_file_and_labels(
    image_run: Path, scene_folder: Path, tmp_path: Path
) -> None:
    model, data = HashModel.load(image_run), open_dataset(scene_folder)
    paths = sorted((scene_folder / "images").iterdir())[:8]
    expected = pack(model.encode(paths, device="cpu"))
    encode_shards(image_run, [str(path) for path in paths], tmp_path / "bare", shard_size=8, device="cpu")
    ids, codes, labels = everything(tmp_path / "bare")
    assert ids == [str(path) for path in paths]
    assert codes == [row.tobytes() for row in expected]
    predicted = model.predict_labels(model.features_of(paths, device="cpu"))
    assert labels == [tuple(np.array(model.classes)[row].tolist()) for row in predicted]
    table = pa.table({"image": [path.read_bytes() for path in paths], "labels": [["a", "b"], *[["a"]] * 7]})
    parquet.write_table(table, tmp_path / "photos.parquet")
    encode_shards(
        image_run, [str(tmp_path / "photos.parquet")], tmp_path / "stored", shard_size=8, device="cpu"
    )
    ids, stored, labels = everything(tmp_path / "stored")
    assert ids[:2] == ["photos.parquet/0", "photos.parquet/1"]
    assert stored == codes
    assert labels[:2] == [("a", "b"), ("a",)]
    assert data.size == 40  # the folder was only read


def test_broken_images_are_named_and_may_be_repaired(image_run: Path, tmp_path: Path) -> None:
    images, out = write_images(tmp_path / "photos", 6), tmp_path / "out"
    whole = images[3].read_bytes()
    break_image(images[3])
    arguments: Any = (image_run, [str(tmp_path / "photos")], out)
    with pytest.raises(DataError):
        encode_shards(*arguments, shard_size=2, device="cpu")
    assert everything(out)[0] == [str(path) for path in images if path != images[3]]
    listed = [json.loads(line) for line in (out / "broken.jsonl").read_text().splitlines()]
    assert [(row["shard"], row["id"]) for row in listed] == [(1, str(images[3]))]
    assert listed[0]["reason"]

    skipped = encode_shards(*arguments, shard_size=2, device="cpu", skip_broken=True)
    assert (skipped.count, skipped.found, list(skipped.broken)) == (5, 3, [str(images[3])])
    images[3].write_bytes(whole)
    repaired = encode_shards(*arguments, shard_size=2, device="cpu")
    assert (repaired.count, repaired.found, repaired.broken) == (6, 2, {})
    assert (out / "broken.jsonl").read_text() == ""
    encode_shards(*arguments[:2], tmp_path / "straight", shard_size=2, device="cpu")
    assert contents(out) == contents(tmp_path / "straight")


def test_many_broken_images_are_counted(image_run: Path, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for number in range(7):
        break_image(tmp_path / "photos" / f"{number}.png")
    entries = [str(tmp_path / "photos")]
    with pytest.raises(DataError, match=r"(?s)7 of 7 images.*broken.jsonl"):
        encode_shards(image_run, entries, tmp_path / "out", device="cpu")
    assert encode_shards(image_run, entries, tmp_path / "out", skip_broken=True).count == 0
    assert everything(tmp_path / "out") == ([], [], [])


@pytest.mark.slow
def test_the_engine_that_runs_the_network_can_be_chosen(
    image_run: Path, scene_folder: Path, tmp_path: Path
) -> None:
    entries = [str(scene_folder / "images" / "00000*.jpg")]
    with pytest.raises(ConfigError):
        encode_shards(image_run, entries, tmp_path / "refused", device="cpu", engine="onx")
    assert not (tmp_path / "refused").exists()
    found = []
    for engine in ("torch", "onnx"):
        encode_shards(image_run, entries, tmp_path / engine, device="cpu", engine=engine)
        found.append(everything(tmp_path / engine))
    assert found[0] == found[1]


# Ray


def test_without_ray_its_installation_is_named(
    feature_run: Path, feature_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError):
        encode_shards(feature_run, [str(feature_folder)], tmp_path / "out", runner="ray")


@pytest.mark.slow
def test_a_cluster_that_does_not_answer_is_named(
    feature_run: Path, feature_folder: Path, tmp_path: Path
) -> None:
    for address in ("127.0.0.1:1", "ray://127.0.0.1:1"):
        with pytest.raises(ConfigError, match=rf"Ray at '{address}' .*refused"):
            encode_shards(
                feature_run, [str(feature_folder)], tmp_path / "out", runner="ray", ray_address=address
            )


@pytest.mark.slow
def test_ray_writes_the_same_shards(image_run: Path, scene_folder: Path, tmp_path: Path) -> None:
    images = scene_folder / "images"
    bad = break_image(tmp_path / "bad.jpg")
    for runner in ("local", "ray"):
        done = cli_process(
            "encode", image_run, f"{images}/00000*.jpg", f"{images}/00001*.jpg", bad, "--out", tmp_path / runner,
            "--shard-size", "6", "--device", "cpu", "--runner", runner, "--skip-broken", RAY_ADDRESS="",
        )  # fmt: skip
        assert done.code == 0, done.err
        assert "20 codes in 4 shards" in done.out
        assert done.out.count("\n") == 1
        assert "1 of 21 images cannot be read" in done.err
        assert "ray" not in done.err.lower().replace(str(tmp_path).lower(), "")
    assert contents(tmp_path / "ray") == contents(tmp_path / "local")
    assert len(contents(tmp_path / "ray")) == 4


@pytest.mark.slow
def test_a_killed_process_goes_on_where_it_stopped(
    image_run: Path, scene_folder: Path, tmp_path: Path
) -> None:
    words: Any = (
        "encode", image_run, scene_folder, "--shard-size", "2", "--device", "cpu", "--out", tmp_path / "out",
    )  # fmt: skip
    with started(*words) as process:
        wait_for_process(process, lambda: len(contents(tmp_path / "out")) >= 3, "three shards are there")
        process.signal(signal.SIGKILL)
    found = len(contents(tmp_path / "out"))
    assert 3 <= found < 20
    done = cli_process(*words)
    assert done.code == 0, done.err
    assert f"40 codes in 20 shards, {found} of them from before" in done.out
    assert cli_process(*words[:-1], tmp_path / "straight").code == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "straight")
