"""Code files: every form of codes is read, damaged ones are errors with their name, what is written is read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from centerhash.codes import binarize, pack, unpack
from centerhash.core.errors import ConfigError, DataError, InputError
from centerhash.encoding.code_files import (
    CodeFile,
    evaluate_codes_of,
    read_code_pair,
    read_codes,
    write_codes,
)
from centerhash.evaluation import evaluate
from tests.toys import evaluate_files

GENERATOR = np.random.default_rng(4)
CODES = binarize(GENERATOR.normal(size=(12, 20)))
LABELS = GENERATOR.random((12, 5)) < 0.5
PACKED = {"packed": pack(CODES), "bits": 20}
FORMS: dict[str, Any] = {
    "signs": CODES,
    "numbers": (CODES > 0).astype(np.uint8),
    "bool": CODES > 0,
    "packed": pack(CODES),
}


def write(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize(
    "arrays",
    [
        PACKED,
        {"codes": CODES},
        {"codes": CODES.astype(np.float64)},
        {"codes": FORMS["numbers"]},
        {"codes": CODES > 0},
    ],
)
def test_read_codes_forms(tmp_path: Path, arrays: dict[str, Any]) -> None:
    codes = read_codes(write(tmp_path / "codes.npz", **arrays, labels=LABELS))
    assert codes.bits == 20
    assert np.array_equal(unpack(codes.packed, 20), CODES)
    assert np.array_equal(codes.labels, LABELS)
    assert codes.ids is None


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"packed": pack(CODES), "labels": LABELS}, "holds labels, packed"),
        ({}, "holds nothing"),
        ({"codes": CODES, "labels": LABELS[:5]}, r"labels of shape \(5, 5\)"),
        ({"codes": CODES, "labels": LABELS[:, 0]}, r"labels of shape \(12,\)"),
        ({"codes": CODES, "labels": np.full((12, 5), np.nan)}, r"labels .*\[nan,"),
        ({"codes": CODES, "labels": LABELS.astype(float) / 2}, r"labels .*\[0.5"),
        ({"codes": CODES, "labels": LABELS * 2}, r"labels .*\[2"),
        ({"codes": CODES, "labels": LABELS.astype(str)}, "labels"),
        ({"codes": CODES, "classes": 5}, "classes"),
        ({"codes": CODES * 2, "labels": LABELS}, r"\[-2, 2\]"),
        ({"codes": CODES[0], "labels": LABELS}, r"\(N, K\)"),
        ({"codes": np.int8(1), "labels": LABELS}, r"\(N, K\)"),
        ({"packed": pack(CODES), "bits": [20, 20], "labels": LABELS}, "`bits`"),
        ({"packed": pack(CODES), "bits": 20.5, "labels": LABELS}, "`bits`"),
        ({"packed": np.uint8(3), "bits": 8, "labels": LABELS}, "uint8"),
        ({"codes": np.array([{"a": 1}], dtype=object)}, "damaged"),
    ],
)
def test_read_codes_malformed_arrays(tmp_path: Path, arrays: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=rf"codes\.npz'.*{words}"):
        read_codes(write(tmp_path / "codes.npz", **arrays))


def test_read_codes_damaged_files(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.npz", codes=CODES, labels=LABELS).read_bytes()
    flipped = bytearray(whole)
    flipped[200] ^= 0xFF
    for content in (b"", b"not an archive", b"PK\x03\x04 cut", whole[:-30], bytes(flipped)):
        (tmp_path / "codes.npz").write_bytes(content)
        with pytest.raises(DataError, match=r"codes\.npz"):
            read_codes(tmp_path / "codes.npz")
    with pytest.raises(DataError, match=r"gone\.npz"):
        read_codes(tmp_path / "gone.npz")


@pytest.mark.parametrize("query", FORMS)
@pytest.mark.parametrize("database", FORMS)
def test_evaluate_bare_arrays(tmp_path: Path, query: str, database: str) -> None:
    np.save(tmp_path / "query.npy", FORMS[query][:4])
    np.save(tmp_path / "database.npy", FORMS[database])
    labels = tmp_path / "query_labels.npy", tmp_path / "database_labels.npy"
    np.save(labels[0], LABELS[:4])
    np.save(labels[1], LABELS.astype(np.uint8))
    bits = 20 if "packed" in (query, database) else None
    pair = read_code_pair([tmp_path / "query.npy", tmp_path / "database.npy"], bits=bits, labels=labels)
    assert evaluate_codes_of(*pair) == evaluate(CODES[:4], CODES, LABELS[:4], LABELS)


def test_read_codes_bits(tmp_path: Path) -> None:
    """Packed bytes that are all 0 or 1, and a file without bits."""
    np.save(tmp_path / "codes.npy", np.array([[0, 1], [1, 0], [1, 1]], np.uint8))
    codes = read_codes(tmp_path / "codes.npy", bits=16)
    assert (codes.bits, codes.packed.shape) == (16, (3, 2))
    assert read_codes(tmp_path / "codes.npy").bits == 2
    assert read_codes(tmp_path / "codes.npy", bits=2).bits == 2
    np.save(tmp_path / "labels.npy", LABELS)
    path = write(tmp_path / "codes.npz", packed=pack(CODES), labels=~LABELS)
    codes = read_codes(path, bits=20, labels=tmp_path / "labels.npy")
    assert np.array_equal(unpack(codes.packed, 20), CODES)
    assert np.array_equal(codes.labels, LABELS)


@pytest.mark.parametrize(
    ("form", "bits", "words"),
    [
        ("packed", None, r"\(12, 3\).*`bits="),
        ("packed", 12, "12 bits"),
        ("signs", 12, "20 bits, not of 12"),
        ("bool", 12, "20 bits, not of 12"),
    ],
)
def test_contradictory_bits(tmp_path: Path, form: str, bits: int | None, words: str) -> None:
    np.save(tmp_path / "codes.npy", FORMS[form])
    with pytest.raises(DataError, match=rf"codes\.npy': .*{words}"):
        read_codes(tmp_path / "codes.npy", bits=bits)


def test_read_code_pair_rejects(tmp_path: Path) -> None:
    path, labels = tmp_path / "codes.npy", tmp_path / "labels.npy"
    np.save(path, CODES)
    np.save(labels, LABELS[:5])
    whole = write(tmp_path / "whole.npz", codes=CODES, labels=LABELS)
    other = write(tmp_path / "other.npz", codes=CODES, labels=LABELS, classes=list("abcde"))
    named = write(tmp_path / "named.npz", codes=CODES, labels=LABELS, classes=list("fghij"))
    cases: list[tuple[list[Path], dict[str, Any], type[Exception], str]] = [
        ([path, path], {}, DataError, r"codes\.npy"),
        ([path, path], {"labels": (labels, labels)}, DataError, r"\(5, 5\)"),
        ([path, tmp_path / "gone.npy"], {}, DataError, "gone"),
        ([tmp_path / "gone"], {}, DataError, "gone"),
        ([tmp_path], {"bits": 20}, ConfigError, "bits"),
        ([tmp_path], {}, DataError, "no finished run"),
        ([whole], {}, DataError, "two code files"),
        ([whole, whole, whole], {}, ConfigError, "got 3"),
        ([named, other], {}, DataError, "classes"),
    ]
    for paths, settings, error, words in cases:
        with pytest.raises(error, match=words):
            read_code_pair(paths, **settings)


def test_exclude_self_by_ids(tmp_path: Path) -> None:
    ids = np.arange(12)
    query = write(
        tmp_path / "query.npz", **PACKED | {"packed": pack(CODES[:4])}, labels=LABELS[:4], ids=ids[:4]
    )
    database = write(tmp_path / "database.npz", codes=CODES, labels=LABELS.astype(np.float32), ids=ids)
    sides = (CODES[:4], CODES, LABELS[:4], LABELS)
    for exclude in (False, True):
        expected = evaluate(*sides, query_ids=ids[:4], database_ids=ids, exclude_self=exclude)
        assert evaluate_files([query, database], exclude_self=exclude) == expected
        assert expected.queries_in_database == 4
    bare = write(tmp_path / "bare.npz", codes=CODES, labels=LABELS)
    with pytest.raises(InputError):
        evaluate_files([query, bare], exclude_self=True)


def test_write_and_read_codes(tmp_path: Path) -> None:
    scores = np.arange(60, dtype=np.uint8).reshape(12, 5)
    stored = CodeFile(
        20,
        pack(CODES),
        # Bytes of a file name that are no text, and one long name, which must not widen the others.
        names=(*(f"{row}\udc80\0é" for row in range(11)), "x" * 100_000),
        labels=LABELS,
        classes=tuple("abcde"),
        ids=np.arange(12),
        general=np.ones((12, 16), np.uint8),
        probabilities=scores,
        shares=scores[::-1],
    )
    write_codes(tmp_path / "codes.npz", stored)
    assert (tmp_path / "codes.npz").stat().st_size < 110_000
    codes = read_codes(tmp_path / "codes.npz")
    for name, value in vars(stored).items():
        assert np.array_equal(getattr(codes, name), value), name
    assert codes.label_names(()) == [tuple(np.array(list("abcde"))[row].tolist()) for row in LABELS]


@pytest.mark.parametrize(
    "wrong",
    [b"", b"{}", b"[1]", b'["a"]', b"\xff", b'["\\ud800"]' * 12, b'["' + b'a", "' * 10 + b'\\ud800", "b"]'],
)
def test_malformed_names(tmp_path: Path, wrong: bytes) -> None:
    arrays = {"codes": CODES, "names": np.frombuffer(wrong, np.uint8)}
    with pytest.raises(DataError, match="names"):
        read_codes(write(tmp_path / "codes.npz", **arrays))
