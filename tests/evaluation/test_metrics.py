from __future__ import annotations

import json
from fractions import Fraction
from math import comb
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from centerhash.codes import hamming, pack
from centerhash.evaluation import Evaluation, evaluate, kernels, ranking
from centerhash.evaluation import metrics as module
from tests.reference import retrieval as naive


def random_task(
    seed: int, queries: int, items: int, bits: int, classes: int, share: float = 0.3
) -> tuple[NDArray[np.int8], NDArray[np.int8], NDArray[np.bool_], NDArray[np.bool_]]:
    rng = np.random.default_rng(seed)
    codes = rng.choice(np.array([-1, 1], np.int8), size=(queries + items, bits))
    labels = rng.random((queries + items, classes)) < share
    return codes[:queries], codes[queries:], labels[:queries], labels[queries:]


def line(distances: list[int], bits: int) -> NDArray[np.int8]:
    """Codes at the given distances from the code of all +1."""
    codes = np.ones((len(distances), bits), np.int8)
    for row, distance in enumerate(distances):
        codes[row, :distance] = -1
    return codes


def grade_labels(grades: list[int], classes: int) -> NDArray[np.bool_]:
    """Labels that share the given numbers with an item that has all of them."""
    return np.arange(classes) < np.array(grades)[:, None]


def one_query(distances: list[int], grades: list[int], **options: Any) -> Evaluation:
    """Evaluate one query against items at these distances that share so many labels with it."""
    bits, classes = 8, max(*grades, 1)
    query = np.ones((1, bits), np.int8)
    return evaluate(
        query, line(distances, bits), np.ones((1, classes), bool), grade_labels(grades, classes), **options
    )


def test_one_ranking() -> None:
    # At the ranks 1 to 5, 2, 0, 1, 0 and 3 labels are shared; the first four ranks count.
    result = one_query([0, 1, 2, 3, 4], [2, 0, 1, 0, 3], k=4, precision_at=(1, 2, 3))
    assert result.map_retrieved == pytest.approx((1 / 1 + 2 / 3) / 2)
    assert result.map_all == pytest.approx((1 / 1 + 2 / 3) / 3)
    assert result.map_retrieved_expected == pytest.approx(result.map_retrieved)
    assert result.map_all_expected == pytest.approx(result.map_all)
    assert result.precision == pytest.approx({1: 1.0, 2: 1 / 2, 3: 2 / 3})
    assert result.acg == pytest.approx(3 / 4)
    assert result.wap == pytest.approx((2 / 1 + 3 / 3) / 2)
    ideal = 7 / 1 + 3 / np.log2(3) + 1 / np.log2(4)
    assert result.ndcg == pytest.approx((3 / 1 + 1 / np.log2(4)) / ideal)


def test_cut_inside_tie() -> None:
    # Irrelevant, relevant, then three tied items, of which one is relevant and one is within k.
    result = one_query([0, 1, 2, 2, 2], [0, 1, 1, 0, 0], k=3)
    assert result.map_retrieved_expected == pytest.approx(1 / 3 * (1 / 2 + 2 / 3) / 2 + 2 / 3 * (1 / 2) / 1)
    assert result.map_all_expected == pytest.approx((1 / 2 + 1 / 3 * 2 / 3) / 2)


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_expectation_over_all_orders(data: st.DataObject) -> None:
    items = data.draw(st.integers(1, 6))
    distances = data.draw(st.lists(st.integers(0, 2), min_size=items, max_size=items))
    grades = data.draw(st.lists(st.integers(0, 2), min_size=items, max_size=items))
    k = data.draw(st.integers(1, items + 1))
    result = one_query(distances, grades, k=k)

    def mean(metric: Any, distances: list[int]) -> float:
        return naive.mean_over_tie_orders(metric, distances, grades, k)

    assert result.map_retrieved_expected == pytest.approx(mean(naive.average_precision_retrieved, distances))
    assert result.map_all_expected == pytest.approx(mean(naive.average_precision_all, distances))
    everything_tied = [0] * items
    assert result.random_retrieved == pytest.approx(mean(naive.average_precision_retrieved, everything_tied))
    assert result.random_all == pytest.approx(mean(naive.average_precision_all, everything_tied))


@given(
    seed=st.integers(0, 2**32 - 1),
    queries=st.integers(1, 5),
    items=st.integers(1, 30),
    bits=st.sampled_from([1, 8, 12, 64, 65, 200]),
    classes=st.sampled_from([1, 5, 64, 65, 130]),
    k=st.integers(1, 40),
    exclude=st.booleans(),
)
@settings(max_examples=80, deadline=None)
def test_against_plain_loops(
    seed: int, queries: int, items: int, bits: int, classes: int, k: int, exclude: bool
) -> None:
    q, d, ql, dl = random_task(seed, queries, items, bits, classes, share=min(0.3, 3 / classes))
    rng = np.random.default_rng(seed)
    database_ids, query_ids = rng.permutation(2 * items)[:items], rng.integers(2 * items, size=queries)
    result = evaluate(
        q, d, ql, dl, k=k, precision_at=(1, 7, 50), exclude_self=exclude, seed=seed,
        query_ids=query_ids, database_ids=database_ids,
    )  # fmt: skip
    ties = np.random.default_rng(seed).permutation(items)
    rankings = []
    for row in range(queries):
        included = [int(item) for item in ties if not (exclude and database_ids[item] == query_ids[row])]
        distances = [naive.distance(q[row], code) for code in d]
        order = naive.order_by_distance(distances, included)
        rankings.append([naive.shared(ql[row], dl[item]) for item in order])

    def mean(metric: Any, depth: int = k) -> float:
        return float(np.mean([metric(grades, depth) for grades in rankings]))

    assert result.map_retrieved == pytest.approx(mean(naive.average_precision_retrieved))
    assert result.map_all == pytest.approx(mean(naive.average_precision_all))
    assert result.ndcg == pytest.approx(mean(naive.ndcg))
    assert result.acg == pytest.approx(mean(naive.acg))
    assert result.wap == pytest.approx(mean(naive.wap))
    assert result.precision == pytest.approx({depth: mean(naive.precision, depth) for depth in (1, 7, 50)})
    assert result.queries_in_database == np.isin(query_ids, database_ids).sum()
    assert result.queries_without_labels == (ql.sum(axis=1) == 0).sum()
    assert result.queries_without_relevant == sum(sum(grades) == 0 for grades in rankings)
    assert result.queries_without_hits == sum(sum(grades[:k]) == 0 for grades in rankings)
    assert result.per_query.hits.tolist() == [sum(g > 0 for g in grades[:k]) for grades in rankings]
    assert result.per_query.relevant.tolist() == [sum(g > 0 for g in grades) for grades in rankings]


@given(seed=st.integers(0, 2**32 - 1), bits=st.sampled_from([3, 9, 70]))
@settings(max_examples=20, deadline=None)
def test_curve_against_plain_loops(seed: int, bits: int) -> None:
    q, d, ql, dl = random_task(seed, 4, 12, bits, 4)
    curve = evaluate(q, d, ql, dl).curve
    precision, recall, filled = naive.balls(hamming(q, d), ql.astype(int) @ dl.T.astype(int), bits)
    assert curve.precision == pytest.approx(tuple(precision))
    assert curve.recall == pytest.approx(tuple(recall))
    assert curve.filled == tuple(filled)


def test_sorted_database() -> None:
    # All items tie, and the relevant ones are first: without the permutation the score would be 1.
    labels = np.arange(400)[:, None] < 100
    codes = np.ones((400, 8), np.int8)
    result = evaluate(codes[:1], codes, np.ones((1, 1), bool), labels, k=50)
    assert result.map_retrieved < 0.6
    assert result.map_retrieved_expected == pytest.approx(result.random_retrieved)
    assert result.map_all_expected == pytest.approx(result.random_all)


def test_expectation_of_large_tie() -> None:
    # 2,000 tied items, 300 relevant, 500 ranks: too many orders to list, so the definition is summed in exact fractions.
    items, relevant, k = 2000, 300, 500
    inverse = sum(Fraction(1, t) for t in range(1, k + 1))
    expected = Fraction(0)
    for hits in range(1, relevant + 1):
        probability = Fraction(comb(relevant, hits) * comb(items - relevant, k - hits), comb(items, k))
        ramp = k - inverse  # sum of (t - 1) / t
        inside = Fraction(hits, k) * (inverse + Fraction(hits - 1, k - 1) * ramp)
        expected += probability * inside / hits
    labels = np.arange(items)[:, None] < relevant
    result = evaluate(np.ones((1, 8)), np.ones((items, 8)), np.ones((1, 1), bool), labels, k=k)
    assert result.random_retrieved == pytest.approx(float(expected), rel=1e-12)
    assert result.map_retrieved_expected == pytest.approx(float(expected), rel=1e-12)


def test_exclude_self() -> None:
    q, d, ql, dl = random_task(1, 6, 40, 6, 4, share=0.5)
    codes, labels, ids = np.concatenate([q, d]), np.concatenate([ql, dl]), np.arange(100, 146)
    without = evaluate(
        q, codes, ql, labels, k=10, query_ids=ids[:6], database_ids=ids, exclude_self=True, precision_at=(1,)
    )
    kept = evaluate(q, codes, ql, labels, k=10, query_ids=ids[:6], database_ids=ids, precision_at=(1,))
    assert without.exclude_self
    assert without.queries_in_database == kept.queries_in_database == 6
    assert (kept.per_query.relevant - without.per_query.relevant).tolist() == ql.any(axis=1).tolist()
    assert kept.map_all_expected > without.map_all_expected
    assert kept.curve.filled[0] == 6
    # One query at a time against a database without it must have the same expectations and curve.
    rows = [np.arange(46) != row for row in range(6)]
    alone = [evaluate(q[r : r + 1], codes[m], ql[r : r + 1], labels[m], k=10) for r, m in enumerate(rows)]
    for name in ("map_retrieved_expected", "map_all_expected", "random_retrieved", "random_all"):
        mean = np.mean([getattr(result, name) for result in alone])
        assert getattr(without, name) == pytest.approx(mean), name
    recall = np.mean([result.curve.recall for result in alone], axis=0)
    assert without.curve.recall == pytest.approx(recall.tolist())


def test_queries_without_hits() -> None:
    queries, items = np.ones((4, 8), np.int8), line([0, 1, 2], 8)
    query_labels = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]], bool)
    labels = np.array([[0, 0, 1], [0, 0, 0], [0, 1, 0]], bool)
    result = evaluate(queries, items, query_labels, labels, k=1)
    assert result.per_query.average_precision_retrieved.tolist() == [0, 0, 0, 1]
    assert result.map_retrieved == result.map_all == result.ndcg == result.wap == 1 / 4
    assert result.queries_without_labels == 1
    assert result.queries_without_relevant == 2
    assert result.queries_without_hits == 3
    assert result.per_query.random_all.tolist() == pytest.approx([0, 0, 1 / 3, 1 / 3])


def test_query_is_whole_database() -> None:
    code, label, ids = np.ones((1, 8), np.int8), np.ones((1, 1), bool), np.array([7])
    alone = evaluate(code, code, label, label, query_ids=ids, database_ids=ids, exclude_self=True)
    assert alone.queries_without_relevant == alone.queries_without_hits == 1
    assert alone.map_retrieved == alone.map_all_expected == alone.random_retrieved == alone.acg == 0
    assert (alone.precision[1], alone.curve.filled) == (0, (0,) * 9)


def test_packed_codes() -> None:
    q, d, ql, dl = random_task(5, 7, 50, 20, 5)
    packed = evaluate(pack(q), pack(d), ql, dl, k=9, bits=20)
    assert packed == evaluate(q, d, ql, dl, k=9)
    assert packed.bits == 20


@pytest.mark.parametrize("block", [7, 256])
@pytest.mark.parametrize("threads", [2, 64])
def test_blocks_and_threads(block: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = random_task(7, 30, 500, 8, 5)
    monkeypatch.setattr(kernels, "cpu_count", lambda: 1)
    alone = evaluate(*arrays, k=20)
    monkeypatch.setattr(kernels, "cpu_count", lambda: threads)
    monkeypatch.setattr(module, "BLOCK_QUERIES", block)
    together = evaluate(*arrays, k=20)
    for name, values in vars(alone.per_query).items():
        assert np.array_equal(values, vars(together.per_query)[name]), name
    assert together.precision == pytest.approx(alone.precision)
    assert together.curve.recall == pytest.approx(alone.curve.recall)


def test_inputs_are_unchanged() -> None:
    arrays = random_task(8, 3, 20, 8, 5)
    copies = [array.copy() for array in arrays]
    for array in arrays:
        array.flags.writeable = False
    evaluate(*arrays)
    assert all(np.array_equal(array, copy) for array, copy in zip(arrays, copies, strict=True))


def test_to_dict() -> None:
    q, d, ql, dl = random_task(9, 3, 5, 32, 5)
    result = evaluate(q, d, ql, dl, k=np.int64(4), seed=np.uint8(3), precision_at=[2])
    values = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert (values["map_retrieved"], values["k"], values["seed"]) == (result.map_retrieved, 4, 3)
    assert values["precision"] == {"2": result.precision[2]}
    assert values["curve"]["precision"] == list(result.curve.precision)
    assert "per_query" not in values


# Rankings


def test_ranking() -> None:
    database = np.array([[-1, -1, -1], [1, 1, -1], [1, 1, 1], [-1, 1, 1]], np.int8)
    indices, distances = ranking(np.array([[1, 1, 1]], np.int8), database, 3)
    assert indices.tolist() == [[2, 1, 3]]
    assert distances.tolist() == [[0, 1, 1]]


@given(
    seed=st.integers(0, 2**32 - 1),
    items=st.integers(1, 60),
    bits=st.sampled_from([1, 4, 8, 63, 64, 65, 128, 1024]),
    top=st.integers(1, 70),
)
@settings(max_examples=60, deadline=None)
def test_ranking_against_stable_sort(seed: int, items: int, bits: int, top: int) -> None:
    rng = np.random.default_rng(seed)
    queries = rng.choice(np.array([-1, 1]), size=(3, bits))
    database = rng.choice(np.array([-1, 1]), size=(items, bits))
    indices, distances = ranking(queries, database, top)
    everything = hamming(queries, database)
    order = np.argsort(everything, axis=1, kind="stable")[:, :top]
    assert np.array_equal(indices, order)
    assert np.array_equal(distances, np.take_along_axis(everything, order, axis=1))
    packed = ranking(pack(queries), pack(database), top, bits=bits)
    assert np.array_equal(packed[0], indices)
    assert np.array_equal(packed[1], distances)
