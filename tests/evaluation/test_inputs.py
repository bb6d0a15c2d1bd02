from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from centerhash.codes import pack
from centerhash.core.errors import InputError
from centerhash.evaluation import evaluate, ranking

CODES = np.where(np.arange(32).reshape(4, 8) % 3 == 0, 1, -1).astype(np.int8)
LABELS = np.eye(4, 3, dtype=bool)


def call(**changes: Any) -> None:
    queries = {"query_codes": CODES[:2], "query_labels": LABELS[:2]}
    evaluate(**{**queries, "database_codes": CODES, "database_labels": LABELS, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query_labels": LABELS[:2, :2]}, "query_labels and database_labels.*2 and 3"),
        ({"database_codes": CODES[:1]}, "database_codes and database_labels.*1 and 4"),
        ({"query_codes": CODES[:0]}, r"query_codes.*\(0, 8\)"),
        ({"database_labels": LABELS[:, :0]}, r"database_labels.*\(4, 0\)"),
        ({"database_codes": CODES * 2}, "database_codes.*binarize"),
        ({"query_labels": LABELS[:2] * 3}, "query_labels.*3"),
        ({"query_labels": np.full((2, 3), np.nan)}, "query_labels.*nan"),
        ({"query_codes": pack(CODES[:2])}, "query_codes.*bits="),
        ({"bits": 8}, "query_codes.*int8"),
        ({"database_labels": None}, "database_labels.*NoneType"),
        ({"query_ids": ["a", "b"], "database_ids": np.arange(4)}, "query_ids"),
        ({"bits": 0}, "bits.*0"),
        ({"k": 0}, "k must.*0"),
        ({"k": True}, "k must.*True"),
        ({"precision_at": (5, -1)}, "precision_at.*-1"),
        ({"precision_at": 5}, "precision_at.*5"),
        ({"seed": -1}, "seed.*-1"),
        ({"exclude_self": True}, "exclude_self.*query_ids and database_ids"),
        ({"query_ids": np.arange(3), "database_ids": np.arange(4)}, "query_ids must be 2 "),
        ({"query_ids": np.arange(2), "database_ids": np.zeros(4)}, "database_ids.*float64"),
        ({"query_ids": np.arange(2), "database_ids": np.array([1, 5, 5, 2])}, "database_ids.*5"),
    ],
)
def test_wrong_input(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call(**changes)


def test_wrong_ranking_input() -> None:
    with pytest.raises(InputError, match="query_codes and database_codes"):
        ranking(CODES, CODES[:, :7], 1)
    with pytest.raises(InputError, match="top"):
        ranking(CODES, CODES, 0)


def test_packed_codes_length() -> None:
    packed = pack(CODES)
    with pytest.raises(InputError, match=r"database_codes.*5"):
        evaluate(packed[:1] & 0b11111000, packed | 1, LABELS[:1], LABELS, bits=5)


def test_longest_codes() -> None:
    codes = np.ones((1, 65535), np.int8)
    with pytest.raises(InputError, match=r"query_codes.*65535"):
        evaluate(codes, codes, LABELS[:1], LABELS[:1])


def test_most_shared_labels() -> None:
    labels = np.ones((1, 1001), bool)
    with pytest.raises(InputError, match="1001 labels"):
        evaluate(CODES[:1], CODES[:1], labels, labels)
    assert evaluate(CODES[:1], CODES[:1], labels[:, 1:], labels[:, 1:]).ndcg == pytest.approx(1.0)


def test_tensors() -> None:
    codes, labels = torch.from_numpy(CODES).float().requires_grad_(), torch.from_numpy(LABELS).bfloat16()
    assert evaluate(codes[:2], codes, labels[:2], labels) == evaluate(CODES[:2], CODES, LABELS[:2], LABELS)


@pytest.mark.parametrize("kind", [np.bool_, np.uint8, np.int64, np.float32])
def test_codes_of_0_and_1(kind: type) -> None:
    codes = (CODES > 0).astype(kind)
    expected = evaluate(CODES[:2], CODES, LABELS[:2], LABELS)
    assert evaluate(codes[:2], codes, LABELS[:2], LABELS) == expected
    assert evaluate(codes[:2], CODES, LABELS[:2], LABELS) == expected


def test_no_precision() -> None:
    result = evaluate(CODES[:1], CODES, LABELS[:1], LABELS, precision_at=(), k=1)
    assert result.precision == {}


@pytest.mark.slow
def test_numba_is_lazy() -> None:
    program = "import sys, centerhash.evaluation as e; print('numba' in sys.modules, e.Evaluation.__name__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "Evaluation"]
