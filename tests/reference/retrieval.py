"""Retrieval metrics as plain loops over one query's ranking, written from the formulas and not from the package.

`grades` are the numbers of shared labels by rank, nearest first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray


def distance(first: Sequence[int], second: Sequence[int]) -> int:
    return sum(1 for a, b in zip(first, second, strict=True) if a != b)


def shared(first: Sequence[bool], second: Sequence[bool]) -> int:
    return sum(1 for a, b in zip(first, second, strict=True) if a and b)


def order_by_distance(distances: Sequence[int], ties: Sequence[int]) -> list[int]:
    """Positions by distance; equal distances are in the order of `ties`."""
    return sorted(ties, key=lambda item: distances[item])


def precision(grades: Sequence[int], depth: int) -> float:
    first = grades[:depth]
    return sum(1 for grade in first if grade > 0) / len(first) if first else 0.0


def precision_sum(grades: Sequence[int], k: int) -> float:
    return sum(precision(grades, rank) for rank in range(1, min(k, len(grades)) + 1) if grades[rank - 1] > 0)


def average_precision_retrieved(grades: Sequence[int], k: int) -> float:
    hits = sum(1 for grade in grades[:k] if grade > 0)
    return precision_sum(grades, k) / hits if hits else 0.0


def average_precision_all(grades: Sequence[int], k: int) -> float:
    """`grades` must cover the whole database."""
    relevant = sum(1 for grade in grades if grade > 0)
    return precision_sum(grades, k) / min(k, relevant) if relevant else 0.0


def acg(grades: Sequence[int], k: int) -> float:
    first = grades[:k]
    return sum(first) / len(first) if first else 0.0


def wap(grades: Sequence[int], k: int) -> float:
    values = [acg(grades, rank) for rank in range(1, min(k, len(grades)) + 1) if grades[rank - 1] > 0]
    return sum(values) / len(values) if values else 0.0


def dcg(grades: Sequence[int], k: int) -> float:
    return sum((2**grade - 1) / math.log2(1 + rank) for rank, grade in enumerate(grades[:k], start=1))


def ndcg(grades: Sequence[int], k: int) -> float:
    """`grades` must cover the whole database."""
    ideal = dcg(sorted(grades, reverse=True), k)
    return dcg(grades, k) / ideal if ideal else 0.0


def mean_over_tie_orders(
    metric: Callable[[Sequence[int], int], float],
    distances: Sequence[int],
    item_grades: Sequence[int],
    k: int,
) -> float:
    """Mean of a metric over every order of the tied items: every permutation of the database, sorted stably."""
    values = []
    for ties in itertools.permutations(range(len(distances))):
        order = order_by_distance(distances, ties)
        values.append(metric([item_grades[item] for item in order], k))
    return sum(values) / len(values)


def balls(
    distances: NDArray[np.int64], grades: NDArray[np.int64], bits: int
) -> tuple[list[float | None], list[float], list[int]]:
    """Mean precision over non-empty balls, mean recall and number of non-empty balls, for (Q, N) arrays."""
    precisions: list[float | None] = []
    recalls, filled = [], []
    for radius in range(bits + 1):
        ball_precisions, ball_recalls = [], []
        for row, row_grades in zip(distances, grades, strict=True):
            inside = [grade for d, grade in zip(row, row_grades, strict=True) if d <= radius]
            hits = sum(1 for grade in inside if grade > 0)
            relevant = sum(1 for grade in row_grades if grade > 0)
            if inside:
                ball_precisions.append(hits / len(inside))
            ball_recalls.append(hits / relevant if relevant else 0.0)
        precisions.append(sum(ball_precisions) / len(ball_precisions) if ball_precisions else None)
        recalls.append(sum(ball_recalls) / len(ball_recalls))
        filled.append(len(ball_precisions))
    return precisions, recalls, filled
