from __future__ import annotations

import numpy as np

from centerhash.evaluation import evaluate


def test_text() -> None:
    codes, labels = np.ones((6, 8)), np.ones((6, 2), bool)
    result = evaluate(codes[:2], codes, labels[:2], labels, k=5000, precision_at=(1, 6, 10, 100))
    assert (result.k, result.depth) == (5000, 6)
    rows = {row[0].partition(",")[0]: row for row in result.table() if "@" in row[0]}
    assert list(rows) == ["mAP@6", "NDCG@6", "ACG@6", "WAP@6", "precision@1", "precision@6"]
    assert rows["ACG@6"][1:3] == ("2.0000", "")
    first, heads, *lines = str(result).splitlines()
    assert first == "2 queries, 6 database items, 8 bits"
    assert heads.split() == ["metric", "value", "random"]
    assert lines[0].split()[-2:] == ["1.0000", "1.0000"]
    assert len(lines) == len(result.table())
