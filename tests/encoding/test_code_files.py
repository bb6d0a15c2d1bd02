from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from centerhash.codes import binarize, pack, unpack
from centerhash.core.errors import CenterhashError, ConfigError, DataError, InputError
from centerhash.data import open_dataset
from centerhash.encoding.code_files import (
    CodeFile,
    encode_to_file,
    evaluate_files,
    read_codes,
    read_run_codes,
    write_codes,
)
from centerhash.evaluation import evaluate
from centerhash.model.model import HashModel
from tests.toys import separable, write_feature_folder

pytestmark = pytest.mark.usefixtures("kept_networks")

GENERATOR = np.random.default_rng(4)
CODES = binarize(GENERATOR.normal(size=(12, 20)))
LABELS = GENERATOR.random((12, 5)) < 0.5


def write(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def problem(path: Path) -> str:
    with pytest.raises(CenterhashError) as caught:
        read_codes(path)
    return str(caught.value)


def stored(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


@pytest.mark.parametrize("form", ["packed", "codes", "float codes", "0 and 1", "bool"])
def test_codes_are_read_in_every_form(tmp_path: Path, form: str) -> None:
    arrays: dict[str, Any] = {
        "packed": {"packed": pack(CODES), "bits": 20},
        "codes": {"codes": CODES},
        "float codes": {"codes": CODES.astype(np.float64)},
        "0 and 1": {"codes": (CODES > 0).astype(np.uint8)},
        "bool": {"codes": CODES > 0},
    }[form]
    found = read_codes(write(tmp_path / "codes.npz", **arrays, labels=LABELS))
    assert found.bits == 20
    assert np.array_equal(unpack(found.packed, 20), CODES)
    assert np.array_equal(found.labels, LABELS)
    assert found.ids is None


def test_ids_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "codes.npz", codes=CODES, labels=LABELS, ids=np.arange(12) * 3)
    assert np.array_equal(read_codes(path).ids, np.arange(12) * 3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        (
            {"packed": pack(CODES), "labels": LABELS},
            "holds labels, packed, but needs `packed` and `bits`, or `codes`",
        ),
        ({}, "holds nothing"),
        ({"codes": CODES, "labels": LABELS[:5]}, "labels of shape (5, 5) do not fit 12 codes"),
        (
            {"codes": CODES, "labels": LABELS[:, 0]},
            "labels of shape (12,) do not fit 12 codes: (N, C) are needed",
        ),
        (
            {"codes": CODES, "labels": np.full((12, 5), np.nan)},
            "labels must be bool, or hold only 0 and 1, got [nan,",
        ),
        (
            {"codes": CODES, "labels": LABELS.astype(float) / 2},
            "labels must be bool, or hold only 0 and 1, got [0.5",
        ),
        ({"codes": CODES, "labels": LABELS * 2}, "labels must be bool, or hold only 0 and 1, got ["),
        ({"codes": CODES, "labels": LABELS.astype(str)}, "labels must be bool, or hold only 0 and 1, got ["),
        ({"codes": CODES * 2, "labels": LABELS}, "must hold only -1 and +1, found values such as [-2, 2]"),
        ({"codes": CODES[0], "labels": LABELS}, "must be (N, K)"),
        ({"codes": np.int8(1), "labels": LABELS}, "must be (N, K)"),
        ({"packed": pack(CODES), "bits": [20, 20], "labels": LABELS}, "`bits` must be one whole number"),
        ({"packed": pack(CODES), "bits": 20.5, "labels": LABELS}, "`bits` must be one whole number"),
        ({"packed": np.uint8(3), "bits": 8, "labels": LABELS}, "must be uint8 of shape"),
    ],
)
def test_what_a_file_lacks_is_named(tmp_path: Path, arrays: dict[str, Any], words: str) -> None:
    path = write(tmp_path / "codes.npz", **arrays)
    text = problem(path)
    assert words in text
    assert "codes.npz" in text


def test_a_file_that_is_no_archive_is_named(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.npz", codes=CODES, labels=LABELS).read_bytes()
    flipped = bytearray(whole)
    flipped[200] ^= 0xFF
    for content in (b"", b"not an archive", b"PK\x03\x04 cut", whole[:-30], bytes(flipped)):
        (tmp_path / "codes.npz").write_bytes(content)
        assert "codes.npz' is damaged, or no .npz file of plain arrays" in problem(tmp_path / "codes.npz")
    path = write(tmp_path / "objects.npz", codes=np.array([{"a": 1}], dtype=object), labels=LABELS)
    assert "objects.npz' is damaged, or no .npz file of plain arrays" in problem(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert "no such file" in problem(tmp_path / "gone.npz")
    with pytest.raises(DataError):
        evaluate_files([tmp_path / "gone"])


@pytest.mark.parametrize("count", [1, 3])
def test_one_or_three_files_are_refused(tmp_path: Path, count: int) -> None:
    paths = [write(tmp_path / f"{number}.npz", codes=CODES, labels=LABELS) for number in range(count)]
    with pytest.raises(ConfigError):
        evaluate_files(paths)


def test_two_files_are_queries_and_database(tmp_path: Path) -> None:
    query = write(tmp_path / "query.npz", packed=pack(CODES[:4]), bits=20, labels=LABELS[:4])
    database = write(tmp_path / "database.npz", codes=CODES[4:], labels=LABELS[4:])
    found = evaluate_files([query, database], k=6)
    assert found == evaluate(CODES[:4], CODES[4:], LABELS[:4], LABELS[4:], k=6)


FORMS: dict[str, Any] = {
    "signs": CODES,
    "numbers": (CODES > 0).astype(np.uint8),
    "bool": CODES > 0,
    "packed": pack(CODES),
}


@pytest.mark.parametrize("query", FORMS)
@pytest.mark.parametrize("database", FORMS)
def test_bare_arrays_with_labels_beside_them_are_evaluated(tmp_path: Path, query: str, database: str) -> None:
    np.save(tmp_path / "query.npy", FORMS[query][:4])
    np.save(tmp_path / "database.npy", FORMS[database])
    labels = tmp_path / "query_labels.npy", tmp_path / "database_labels.npy"
    np.save(labels[0], LABELS[:4])
    np.save(labels[1], LABELS.astype(np.uint8))
    bits = 20 if "packed" in (query, database) else None
    found = evaluate_files([tmp_path / "query.npy", tmp_path / "database.npy"], bits=bits, labels=labels)
    assert found == evaluate(CODES[:4], CODES, LABELS[:4], LABELS)


def test_packed_bytes_that_are_all_0_or_1_are_packed_where_bits_says_so(tmp_path: Path) -> None:
    np.save(tmp_path / "codes.npy", np.array([[0, 1], [1, 0], [1, 1]], np.uint8))
    found = read_codes(tmp_path / "codes.npy", bits=16)
    assert (found.bits, found.packed.shape) == (16, (3, 2))
    assert read_codes(tmp_path / "codes.npy").bits == 2
    assert read_codes(tmp_path / "codes.npy", bits=2).bits == 2


def test_bits_stand_in_for_those_of_a_file_and_labels_for_its_labels(tmp_path: Path) -> None:
    np.save(tmp_path / "labels.npy", LABELS)
    path = write(tmp_path / "codes.npz", packed=pack(CODES), labels=~LABELS)
    found = read_codes(path, bits=20, labels=tmp_path / "labels.npy")
    assert np.array_equal(unpack(found.packed, 20), CODES)
    assert np.array_equal(found.labels, LABELS)


@pytest.mark.parametrize(
    ("form", "bits", "words"),
    [
        ("packed", None, r"codes of shape \(12, 3\) are bytes: say by `bits="),
        ("packed", 12, r"packed codes of 12 bits must be uint8 of shape \(N, 2\)"),
        ("signs", 12, "it holds codes of 20 bits, not of 12"),
        ("bool", 12, "it holds codes of 20 bits, not of 12"),
    ],
)
def test_bits_that_do_not_fit_are_refused(tmp_path: Path, form: str, bits: int | None, words: str) -> None:
    np.save(tmp_path / "codes.npy", FORMS[form])
    with pytest.raises(DataError, match=f"codes.npy': {words}"):
        read_codes(tmp_path / "codes.npy", bits=bits)


def test_what_a_bare_array_lacks_is_named(tmp_path: Path) -> None:
    path, labels = tmp_path / "codes.npy", tmp_path / "labels.npy"
    np.save(path, CODES)
    with pytest.raises(DataError, match=r"have none: train on .*`query_labels=` and `database_labels=`"):
        evaluate_files([path, path])
    np.save(labels, LABELS[:5])
    with pytest.raises(DataError):
        evaluate_files([path, path], labels=(labels, labels))
    np.save(labels, LABELS)
    with pytest.raises(DataError):
        evaluate_files([path, tmp_path / "gone.npy"], labels=(labels, labels))
    with pytest.raises(ConfigError):
        evaluate_files([tmp_path], bits=20)
    np.save(path, CODES * 0.3 + 2)
    with pytest.raises(DataError):
        read_codes(path)


def test_exclude_self_goes_by_the_ids(tmp_path: Path) -> None:
    ids = np.arange(12)
    query = write(tmp_path / "query.npz", codes=CODES[:4], labels=LABELS[:4], ids=ids[:4])
    database = write(tmp_path / "database.npz", codes=CODES, labels=LABELS, ids=ids)
    sides = (CODES[:4], CODES, LABELS[:4], LABELS)
    for exclude in (False, True):
        expected = evaluate(*sides, query_ids=ids[:4], database_ids=ids, exclude_self=exclude)
        assert evaluate_files([query, database], exclude_self=exclude) == expected
        assert expected.queries_in_database == 4
    bare = write(tmp_path / "bare.npz", codes=CODES, labels=LABELS)
    with pytest.raises(InputError):
        evaluate_files([query, bare], exclude_self=True)


def test_codes_of_other_lengths_cannot_be_compared(tmp_path: Path) -> None:
    query = write(tmp_path / "query.npz", codes=CODES[:, :16], labels=LABELS)
    database = write(tmp_path / "database.npz", codes=CODES, labels=LABELS)
    with pytest.raises(DataError, match="queries have 16 bits, the database 20: encode both by one model"):
        evaluate_files([query, database])


def test_labels_of_0_and_1_are_labels(tmp_path: Path) -> None:
    path = write(tmp_path / "codes.npz", codes=CODES, labels=LABELS.astype(np.float32))
    expected = evaluate(CODES, CODES, LABELS, LABELS)
    assert evaluate_files([path, path]) == expected


def test_a_run_is_evaluated_with_its_rows_as_ids(feature_run: Path, feature_folder: Path) -> None:
    dataset, model = open_dataset(feature_folder), HashModel.load(feature_run)
    assert dataset.features is not None
    codes, splits = model.encode_features(dataset.features), dataset.splits
    expected = evaluate(
        codes[splits.query],
        codes[splits.database],
        dataset.labels[splits.query],
        dataset.labels[splits.database],
        query_ids=splits.query,
        database_ids=splits.database,
        k=50,
    )
    found = evaluate_files([feature_run], k=50)
    assert found == expected
    assert found.queries_in_database == 0


# Encoding into a file


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
    assert arrays["names"].tolist() == list(dataset.names)
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


def test_a_features_file_of_another_width_is_refused(feature_run: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "features.npy", np.zeros((3, 7), np.float32))
    with pytest.raises(InputError):
        encode_to_file(HashModel.load(feature_run), [str(tmp_path / "features.npy")], tmp_path / "codes.npz")
    assert not (tmp_path / "codes.npz").exists()


def test_a_data_set_keeps_the_names_of_its_own_classes(feature_run: Path, tmp_path: Path) -> None:
    folder = write_feature_folder(tmp_path / "data", count=20)
    (folder / "classes.txt").write_text("a\nb\nc\nd\ne\nf\n")
    own, others = tmp_path / "own.npz", tmp_path / "others.npz"
    model = HashModel.load(feature_run)
    encode_to_file(model, [str(folder)], others)
    assert read_codes(others).classes == tuple("abcdef")
    (folder / "classes.txt").write_text("\n".join(model.classes))
    encode_to_file(model, [str(folder)], own)
    with pytest.raises(DataError, match="different classes"):
        evaluate_files([own, others])


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    names = np.array([f"image {row}" for row in range(12)])
    stored = CodeFile(20, pack(CODES), names, names, LABELS, tuple("abcde"), np.arange(12))
    write_codes(tmp_path / "codes.npz", stored)
    found = read_codes(tmp_path / "codes.npz")
    for name in ("packed", "names", "paths", "labels", "ids"):
        assert np.array_equal(getattr(found, name), getattr(stored, name))
    assert (found.bits, found.classes) == (20, tuple("abcde"))
    assert found.label_names(()) == [tuple(np.array(list("abcde"))[row].tolist()) for row in LABELS]


def test_codes_of_a_run_of_before_are_read(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "codes.npz",
        bits=20,
        classes=5,
        query=pack(CODES[:4]),
        query_rows=np.arange(4),
        query_labels=np.packbits(LABELS[:4], axis=1),
        database=pack(CODES[4:]),
        database_rows=np.arange(4, 12),
        database_labels=np.packbits(LABELS[4:], axis=1),
    )
    query, database = read_run_codes(tmp_path)
    assert np.array_equal(query.packed, pack(CODES[:4]))
    assert database.labels is not None
    assert np.array_equal(database.labels, LABELS[4:])
    rows = {"query_ids": np.arange(4), "database_ids": np.arange(4, 12)}
    expected = evaluate(CODES[:4], CODES[4:], LABELS[:4], LABELS[4:], k=6, **rows)
    assert evaluate_files([tmp_path], k=6) == expected


def test_codes_without_labels_cannot_be_evaluated(tmp_path: Path) -> None:
    bare = write(tmp_path / "bare.npz", codes=CODES)
    with pytest.raises(DataError):
        evaluate_files([bare, bare])


def test_images_are_encoded_with_their_names(
    image_run: Path, scene_folder: Path, feature_cache: Path, tmp_path: Path
) -> None:
    model, out = HashModel.load(image_run), tmp_path / "codes.npz"
    images = sorted((scene_folder / "images").iterdir())
    settings: dict[str, Any] = {"cache": feature_cache, "device": "cpu"}
    expected = model.encode(images, **settings)
    named = [str(images[5]), str(images[2])]
    assert encode_to_file(model, named, out, **settings).count == 2
    assert stored(out)["names"].tolist() == named
    assert np.array_equal(unpack(stored(out)["packed"], 32), expected[[5, 2]])
    for inputs in ([str(scene_folder / "images")], [str(scene_folder / "images" / "*.jpg")]):
        assert encode_to_file(model, inputs, out, **settings).count == 40
        assert np.array_equal(unpack(stored(out)["packed"], 32), expected)
    assert encode_to_file(model, [str(scene_folder)], out, **settings).count == 40
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
    assert stored(out)["names"].tolist() == [str(good)]


def test_a_model_without_a_backbone_cannot_encode_images(feature_run: Path, scene_folder: Path) -> None:
    with pytest.raises(ConfigError):
        encode_to_file(HashModel.load(feature_run), [str(scene_folder / "images")], Path("unused.npz"))
