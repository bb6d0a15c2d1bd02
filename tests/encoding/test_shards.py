from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from centerhash import __version__
from centerhash.codes import pack
from centerhash.core.errors import ConfigError, DataError, InputError
from centerhash.data import open_dataset
from centerhash.encoding import bulk
from centerhash.encoding.bulk import encode_shards, open_folder
from centerhash.encoding.shards import (
    Manifest,
    Shard,
    broken_in,
    read_manifest,
    read_shard,
    read_shards,
    shard_path,
    write_shard,
)
from centerhash.model.model import HashModel
from tests.toys import CLASSES, cli, refused, separable, write_feature_folder

MANIFEST = Manifest(bits=20, model="m", inputs="i", count=3, shard_size=2, labels="given")
SHARD = Shard(
    ["a", "ü/b.jpg"], np.array([[1, 2, 48], [255, 0, 16]], np.uint8), [("dog", "cat"), ()], {"c": "gone"}
)


def shards(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("shard-*"))


def all_ids(folder: Path) -> list[str]:
    return [id for ids, _, _ in read_shards(folder) for id in ids]


# One shard


def test_a_shard_comes_back_as_it_was(tmp_path: Path) -> None:
    write_shard(tmp_path, 7, SHARD, MANIFEST)
    found = read_shard(tmp_path / "shard-00007.parquet")
    assert found.ids == SHARD.ids
    assert found.packed.tolist() == SHARD.packed.tolist()
    assert found.labels == SHARD.labels
    assert found.broken == SHARD.broken == broken_in(tmp_path / "shard-00007.parquet")


def test_others_can_read_a_shard(tmp_path: Path) -> None:
    write_shard(tmp_path, 0, SHARD, MANIFEST)
    table = parquet.read_table(tmp_path / "shard-00000.parquet")
    assert table.schema.names == ["id", "code", "labels"]
    assert table.schema.field("id").type == pa.string()
    assert table.schema.field("code").type == pa.binary(3)
    assert table.schema.field("labels").type == pa.list_(pa.string())
    assert table.to_pylist()[0] == {"id": "a", "code": b"\x01\x02\x30", "labels": ["dog", "cat"]}
    facts = table.schema.metadata
    assert (facts[b"bits"], facts[b"model"], facts[b"centerhash"]) == (b"20", b"m", __version__.encode())


def test_a_shard_without_a_readable_image_is_a_shard(tmp_path: Path) -> None:
    write_shard(tmp_path, 0, Shard([], np.zeros((0, 3), np.uint8), [], {"a": "gone"}), MANIFEST)
    found = read_shard(tmp_path / "shard-00000.parquet")
    assert (found.ids, found.packed.shape, found.broken) == ([], (0, 3), {"a": "gone"})


def test_a_cut_or_foreign_shard_is_rejected(tmp_path: Path) -> None:
    write_shard(tmp_path, 0, SHARD, MANIFEST)
    path = shard_path(tmp_path, 0)
    whole = path.read_bytes()
    parquet.write_table(pa.table({"id": ["a"]}), tmp_path / "foreign.parquet")
    path.write_bytes(whole[: len(whole) // 2])
    for file in (path, tmp_path / "foreign.parquet"):
        assert broken_in(file) is None
        with pytest.raises(DataError, match="damaged"):
            read_shard(file)
    assert broken_in(tmp_path / "gone.parquet") is None


def test_changed_codes_of_a_shard_are_noticed(tmp_path: Path) -> None:
    codes = np.random.default_rng(0).integers(0, 256, (500, 3), dtype=np.uint8) & [255, 255, 240]
    shard = Shard([f"{row}.jpg" for row in range(500)], codes.astype(np.uint8), [()] * 500, {})
    write_shard(tmp_path, 0, shard, MANIFEST)
    path = shard_path(tmp_path, 0)
    whole = path.read_bytes()
    begin = whole.index(shard.packed[200:204].tobytes())
    for place in range(begin, begin + 300, 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(DataError):
            read_shard(path)


# Whole folders, of features


def test_features_are_encoded_in_shards(feature_run: Path, feature_folder: Path, tmp_path: Path) -> None:
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
    assert (done.count, done.shards, done.found, done.broken) == (160, 3, 0, {})
    assert steps == [("codes", done, 160) for done in (0, 64, 128, 160)]
    found = list(read_shards(tmp_path / "out"))
    assert [len(ids) for ids, _, _ in found] == [64, 64, 32]
    assert [id for ids, _, _ in found for id in ids] == list(data.names)
    expected = pack(model.encode_features(data.features))
    assert np.array_equal(np.concatenate([packed for _, packed, _ in found]), expected)
    given = [tuple(np.array(CLASSES)[row].tolist()) for row in data.labels]
    assert [names for _, _, labels in found for names in labels] == given
    manifest = read_manifest(tmp_path / "out")
    assert (manifest.bits, manifest.model, manifest.labels) == (16, model.digest, "given")
    assert (tmp_path / "out" / "broken.jsonl").read_text() == ""


def test_features_without_labels_get_predicted_ones(feature_run: Path, tmp_path: Path) -> None:
    model, features = HashModel.load(feature_run), separable(7, seed=3)[0].astype(np.float16)
    np.save(tmp_path / "features.npy", features)
    encode_shards(feature_run, [str(tmp_path / "features.npy")], tmp_path / "out", shard_size=4)
    labels = [names for _, _, labels in read_shards(tmp_path / "out") for names in labels]
    assert labels == [tuple(np.array(CLASSES)[row].tolist()) for row in model.predict_labels(features)]
    assert all_ids(tmp_path / "out") == list("0123456")
    assert read_manifest(tmp_path / "out").labels == "predicted"


def test_features_that_are_gone_are_named(
    feature_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "features.npy"
    np.save(path, separable(7)[0])

    def vanishing(*arguments: Any) -> Manifest:
        manifest = open_folder(*arguments)
        path.unlink()
        return manifest

    with monkeypatch.context() as patched:
        patched.setattr(bulk, "open_folder", vanishing)
        with pytest.raises(DataError):
            encode_shards(feature_run, [str(path)], tmp_path / "out")


def test_a_damaged_or_missing_shard_is_written_again(
    feature_run: Path, feature_folder: Path, tmp_path: Path
) -> None:
    arguments: Any = (feature_run, [str(feature_folder)], tmp_path / "out")
    encode_shards(*arguments, shard_size=100)
    path = tmp_path / "out" / "shard-00001.parquet"
    whole = path.read_bytes()
    for damage in (lambda: path.write_bytes(whole[:-20]), path.unlink):
        damage()
        assert encode_shards(*arguments, shard_size=100).found == 1
        assert path.read_bytes() == whole
    path.unlink()
    with pytest.raises(DataError, match=r"1 of 2 shards, first shard-00001.parquet"):
        list(read_shards(tmp_path / "out"))


def test_another_input_model_or_size_is_refused(feature_run: Path, tmp_path: Path) -> None:
    from centerhash.training.run import train
    from tests.toys import feature_dataset, toy_config

    data, other = write_feature_folder(tmp_path / "data", 20), write_feature_folder(tmp_path / "other", 30)
    train(feature_dataset(), config=toy_config(seed=5, epochs=1)).save(tmp_path / "model")
    out = tmp_path / "out"
    encode_shards(feature_run, [str(data)], out)
    for words, run, entry, size in (
        ("another model", tmp_path / "model", data, 4096),
        (r"\(20 of them, now 30\)", feature_run, other, 4096),
        ("4,096 images, now 10", feature_run, data, 10),
    ):
        with pytest.raises(ConfigError, match=words):
            encode_shards(run, [str(entry)], out, shard_size=size)
    np.save(data / "features.npy", separable(20, seed=9)[0])
    with pytest.raises(ConfigError):
        encode_shards(feature_run, [str(data)], out)


def test_a_folder_of_other_files_is_left_alone(
    feature_run: Path, feature_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"notes\.txt"):
        encode_shards(feature_run, [str(feature_folder)], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_kill_before_the_manifest_begins_anew(
    feature_run: Path, feature_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "inputs.parquet").write_bytes(b"of an older list")
    (tmp_path / ".manifest.json.x.part").write_bytes(b"{")
    assert encode_shards(feature_run, [str(feature_folder)], tmp_path).count == 160


@pytest.mark.parametrize(
    ("content", "words"), [(None, "holds no manifest.json"), ("{}", "is damaged or of another")]
)
def test_a_folder_without_a_manifest_is_refused(tmp_path: Path, content: str | None, words: str) -> None:
    if content is not None:
        (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(DataError, match=words):
        list(read_shards(tmp_path))


@pytest.mark.parametrize(
    ("entry", "choice", "error", "words"),
    [
        ("scenes", {}, ConfigError, "has no backbone"),
        ("scenes", {"runner": "rya"}, ConfigError, "'rya'"),
        ("scenes", {"shard_size": 0}, ConfigError, "got 0"),
        ("flat.npy", {}, DataError, r"got \(5,\)"),
        ("narrow.npy", {}, InputError, r"\(N, 24\)"),
    ],
)
def test_what_cannot_be_encoded_writes_nothing(
    feature_run: Path,
    scene_folder: Path,
    tmp_path: Path,
    entry: str,
    choice: dict[str, Any],
    error: type[Exception],
    words: str,
) -> None:
    np.save(tmp_path / "flat.npy", np.zeros(5, np.float32))
    np.save(tmp_path / "narrow.npy", np.zeros((5, 3), np.float32))
    inputs = [str(scene_folder if entry == "scenes" else tmp_path / entry)]
    with pytest.raises(error, match=words):
        encode_shards(feature_run, inputs, tmp_path / "out", **choice)
    assert shards(tmp_path / "out") == []
    assert entry == "narrow.npy" or not (tmp_path / "out").exists()  # whose width is seen with the first rows


# The command


def test_the_command_writes_shards_into_a_folder(
    feature_run: Path, feature_folder: Path, tmp_path: Path
) -> None:
    words: Any = ("encode", feature_run, feature_folder, "--out", tmp_path / "codes", "--shard-size", "100")
    assert "160 codes in 2 shards: " in cli(*words).text
    assert "160 codes in 2 shards, 2 of them from before: " in cli(*words).text
    assert json.loads((tmp_path / "codes" / "manifest.json").read_text())["count"] == 160


@pytest.mark.parametrize(
    ("out", "options", "words"),
    [
        ("codes.npz", ["--runner", "ray"], "--runner ray"),
        ("codes.npz", ["--shard-size", "9"], "--shard-size is for shards"),
        ("codes", ["--cache", "kept"], "--cache is for a code file: shards keep no features"),
        ("codes", ["--workers", "2"], "--workers is for --runner ray"),
        ("codes", ["--ray-address", "a:1"], "--ray-address is for --runner ray"),
    ],
)
def test_options_that_would_do_nothing_are_refused(
    out: str, options: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert words in refused(cli("encode", "run", "photos", "--out", out, *options))
    assert not list(tmp_path.iterdir())
