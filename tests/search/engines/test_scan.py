from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from centerhash.codes import Packed
from centerhash.search.engines import scan

Listed = tuple[list[int], list[int]]


def random_codes(generator: np.random.Generator, count: int, bits: int, distinct: int = 256) -> Packed:
    """Random packed codes; few distinct byte values make many ties."""
    packed = generator.integers(0, distinct, (count, (bits + 7) // 8), dtype=np.uint8)
    if bits % 8:
        packed[:, -1] &= (0xFF << (8 - bits % 8)) & 0xFF
    return packed


def naive(
    query: Packed,
    database: Packed,
    alive: NDArray[np.uint8] | None,
    k: int | None = None,
    radius: int | None = None,
) -> Listed:
    """The same answer by a loop over all items."""
    asked = int.from_bytes(query.tobytes())
    items = sorted(
        ((asked ^ int.from_bytes(code.tobytes())).bit_count(), position)
        for position, code in enumerate(database)
        if alive is None or alive[position]
    )
    items = [item for item in items if radius is None or item[0] <= radius][:k]
    return [position for _, position in items], [distance for distance, _ in items]


def listed(answer: scan.Answer) -> Listed:
    return answer[0].tolist(), answer[1].tolist()


def test_words_are_the_widest_that_divide_a_row() -> None:
    for bits, type_name, width in [
        *[(1, "uint8", 1), (16, "uint16", 1), (24, "uint8", 3), (32, "uint32", 1), (48, "uint16", 3)],
        *[(64, "uint64", 1), (96, "uint32", 3), (100, "uint8", 13), (1024, "uint64", 16)],
    ]:
        packed = np.zeros((3, (bits + 7) // 8), np.uint8)
        words = scan.words(packed, bits)
        assert words.dtype == type_name
        assert words.shape == (3, width)
        assert np.shares_memory(words, packed)


def test_words_of_no_codes() -> None:
    assert scan.words(np.zeros((0, 8), np.uint8), 64).shape == (0, 1)


def test_distances_counted_by_hand() -> None:
    packed = np.array([[0b11110000], [0b00000000], [0b10000000], [0b00000001]], np.uint8)
    query = np.array([[0b10000000]], np.uint8)
    [(positions, distances)] = list(scan.nearest(scan.words(query, 8), scan.words(packed, 8), 8, 2, None))
    assert positions.tolist() == [2, 1]
    assert distances.tolist() == [0, 1]
    assert positions.dtype == distances.dtype == np.int64


def test_of_tied_items_the_first_are_found() -> None:
    packed = np.array([[1], [0], [2], [4], [3]], np.uint8)
    [answer] = list(scan.nearest(scan.words(packed[1:2], 8), scan.words(packed, 8), 8, 3, None))
    assert listed(answer) == ([1, 0, 2], [0, 1, 1])


@pytest.mark.parametrize("bits", [3, 16, 24, 32, 48, 64, 100, 128, 256, 512])
def test_every_length_agrees_with_the_loop(bits: int) -> None:
    generator = np.random.default_rng(bits)
    database, queries = random_codes(generator, 700, bits), random_codes(generator, 3, bits)
    words, asked = scan.words(database, bits), scan.words(queries, bits)
    alive = (generator.random(700) < 0.4).astype(np.uint8)
    for mask in (None, alive):
        for k in (1, 10, 1000):
            answers = list(scan.nearest(asked, words, bits, k, mask))
            assert [listed(answer) for answer in answers] == [
                naive(row, database, mask, k=k) for row in queries
            ]
        for radius in (0, 3 * bits // 8, bits):
            answers = list(scan.within(asked, words, bits, radius, mask))
            expected = [naive(row, database, mask, radius=radius) for row in queries]
            assert [listed(answer) for answer in answers] == expected


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.sampled_from([0, 1, 2, 31, 32, 33, 511, 513, 1100]),
    asked=st.integers(0, 4),
    bits=st.sampled_from([5, 16, 48, 64]),
    distinct=st.sampled_from([1, 2, 256]),
    k=st.integers(1, 40),
    share=st.sampled_from([None, 0.0, 0.01, 0.5]),
)
def test_any_collection_agrees_with_the_loop(
    seed: int, count: int, asked: int, bits: int, distinct: int, k: int, share: float | None
) -> None:
    generator = np.random.default_rng(seed)
    database, queries = (random_codes(generator, n, bits, distinct) for n in (count, asked))
    alive = None if share is None else (generator.random(count) < share).astype(np.uint8)
    answers = list(scan.nearest(scan.words(queries, bits), scan.words(database, bits), bits, k, alive))
    assert [listed(answer) for answer in answers] == [naive(row, database, alive, k=k) for row in queries]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32 - 1),
    counts=st.lists(st.sampled_from([0, 1, 7, 33, 600]), min_size=1, max_size=5),
    asked=st.integers(1, 7),
    distinct=st.sampled_from([1, 2, 256]),
    k=st.sampled_from([1, 2, 10, 50, 2000, None]),
    cut=st.sampled_from([0, 3, 16]),
    threads=st.integers(1, 3),
)
def test_several_databases_are_scanned_as_one_but_for_ties(
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    counts: list[int],
    asked: int,
    distinct: int,
    k: int | None,
    cut: int,
    threads: int,
) -> None:
    monkeypatch.setattr(scan, "THREAD_BYTES", 1)
    monkeypatch.setattr(scan, "cpu_count", lambda: threads)
    generator = np.random.default_rng(seed)
    parts = [random_codes(generator, count, 16, distinct) for count in counts]
    masks = [(generator.random(count) < 0.7).astype(np.uint8) if count % 2 else None for count in counts]
    queries = random_codes(generator, asked, 16, distinct)
    databases = [(scan.words(part, 16), mask) for part, mask in zip(parts, masks, strict=True)]
    found = list(scan.several(scan.words(queries, 16), databases, 16, k, np.full(asked, cut)))
    for query, answers in zip(queries, found, strict=True):
        every = [naive(query, part, mask, k, radius=cut) for part, mask in zip(parts, masks, strict=True)]
        together = sorted(distance for _, distances in every for distance in distances)
        last = together[k - 1] if k is not None and len(together) >= k else cut
        for answer, (positions, distances) in zip(answers, every, strict=True):
            # what may be among the k first is there, in order, and nothing that is not among the part's own
            wanted = sum(distance <= last for distance in distances)
            assert listed(answer)[0][:wanted] == positions[:wanted]
            assert listed(answer)[1][:wanted] == distances[:wanted]
            assert len(answer[0]) <= len(positions)


@pytest.fixture
def in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Share even small scans among three threads."""
    monkeypatch.setattr(scan, "THREAD_BYTES", 1)
    monkeypatch.setattr(scan, "cpu_count", lambda: 3)


@pytest.mark.usefixtures("in_threads")
@pytest.mark.parametrize("asked", [1, 2, 20])
def test_threads_over_the_database_or_the_queries_change_nothing(asked: int) -> None:
    generator = np.random.default_rng(asked)
    database, queries = random_codes(generator, 400, 16, 8), random_codes(generator, asked, 16, 8)
    alive = (generator.random(400) < 0.5).astype(np.uint8)
    words, wanted = scan.words(database, 16), scan.words(queries, 16)
    answers = list(scan.nearest(wanted, words, 16, 7, alive))
    assert [listed(answer) for answer in answers] == [naive(row, database, alive, k=7) for row in queries]
    answers = list(scan.within(wanted, words, 16, 2, alive))
    assert [listed(answer) for answer in answers] == [
        naive(row, database, alive, radius=2) for row in queries
    ]


@pytest.mark.usefixtures("in_threads")
def test_fewer_items_than_threads() -> None:
    words = scan.words(np.array([[7]], np.uint8), 8)
    assert [listed(answer) for answer in list(scan.nearest(words, words, 8, 5, None))] == [([0], [0])]


@pytest.mark.parametrize("asked", [1, 5])
@pytest.mark.parametrize("k", [3, 2 * scan.SPARE])
def test_more_equal_codes_than_a_query_has_room_for(asked: int, k: int) -> None:
    count = 5 * scan.SPARE
    database = np.zeros((count, 8), np.uint8)
    database[7] = 255
    words, query = scan.words(database, 64), scan.words(np.zeros((asked, 8), np.uint8), 64)
    expected = [position for position in range(count) if position != 7]
    answers = list(scan.nearest(query, words, 64, k, None))
    assert [listed(answer) for answer in answers] == [(expected[:k], [0] * k)] * asked
    answers = list(scan.within(query, words, 64, 5, None))
    assert [listed(answer) for answer in answers] == [(expected, [0] * (count - 1))] * asked


def test_better_items_behind_many_tied_ones_are_found() -> None:
    database = np.ones((4 * scan.SPARE, 8), np.uint8)  # eight bits away from zero
    database[-2:] = 0
    query = np.zeros((1, 8), np.uint8)
    words, asked = scan.words(database, 64), scan.words(query, 64)
    last = [len(database) - 2, len(database) - 1]
    for k in (2, 3, scan.SPARE):
        [answer] = list(scan.nearest(asked, words, 64, k, None))
        assert listed(answer) == ([*last, *range(k - 2)], [0, 0, *[8] * (k - 2)])


def test_items_that_come_ever_nearer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The room of a query is full again and again, and what is still wanted of it moves to the front."""
    monkeypatch.setattr(scan, "SPARE", 3)
    generator = np.random.default_rng(2)
    database = np.zeros((900, 64), np.uint8)
    for row in range(900):
        database[row, : 60 - row // 15 + generator.integers(0, 4)] = 1
    packed = np.packbits(database, axis=1)
    words, query = scan.words(packed, 64), np.zeros((1, 8), np.uint8)
    for k in (1, 4, 40):
        for mask in (None, (generator.random(900) < 0.7).astype(np.uint8)):
            [answer] = list(scan.nearest(scan.words(query, 64), words, 64, k, mask))
            assert listed(answer) == naive(query[0], packed, mask, k=k)


def test_queries_beyond_the_room_of_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(3)
    database, queries = random_codes(generator, 200, 32), random_codes(generator, 7, 32)
    words, asked = scan.words(database, 32), scan.words(queries, 32)
    together = [listed(answer) for answer in list(scan.nearest(asked, words, 32, 5, None))]
    monkeypatch.setattr(scan, "ROOM", 2 * scan.SPARE)
    assert [listed(answer) for answer in list(scan.nearest(asked, words, 32, 5, None))] == together


def test_a_mapped_file_is_scanned_where_it_lies_at_any_offset(tmp_path: Path) -> None:
    packed = random_codes(np.random.default_rng(4), 600, 64)
    file = tmp_path / "codes"
    file.write_bytes(b"abc" + packed.tobytes())
    mapped = np.memmap(file, np.uint8, "r", offset=3, shape=packed.shape)
    words = scan.words(mapped, 64)
    assert np.shares_memory(words, mapped)
    [answer] = list(scan.nearest(scan.words(packed[:1], 64), words, 64, 4, None))
    assert listed(answer) == naive(packed[0], packed, None, k=4)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.usefixtures("in_threads")
def test_a_forked_process_gets_threads_of_its_own() -> None:
    words = scan.words(random_codes(np.random.default_rng(5), 100, 16), 16)
    list(scan.nearest(words[:1], words, 16, 1, None))
    child = os.fork()
    if child == 0:
        answered = len(list(scan.nearest(words[:1], words, 16, 1, None)))
        os._exit(0 if answered == 1 else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
