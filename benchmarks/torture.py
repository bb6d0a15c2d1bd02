"""Test the guarantees for stored data: killed writers, damages, cut logs, full disks. `make torture`

    python -m benchmarks.torture [--kills 300] [--damages 300] [--seed 0] [--out benchmarks/results/torture.json]

kills      of a process that adds, removes and compacts, at any moment: all changes that it reported are stored
damages    of the database: flipped bits, zeroed and swapped pages, truncations, deleted chunks. Searches return correct
           results or fail with an error that names the file, also after `compact`; then `verify` reports a problem
cuts       of the write-ahead log of a killed process: the index opens at an earlier commit, and accepts new items
disks      that are full while a process writes: an error names the file, nothing is lost, and with more room it continues
trainings  a training run that is killed again and again ends with the same files

Exits with 1 if a guarantee does not hold. A count of 0 skips a part. The tests run the same with fewer rounds.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.reporting import ROOT, arguments_of, store
from centerhash.core.errors import CenterhashError
from centerhash.core.progress import Progress, bars
from centerhash.index import Index, Item, verify_index

FILE = "items.db"
ATTRIBUTES: Any = {"price": float, "kind": str}
DAMAGES = ("a flipped bit", "a zeroed page", "swapped pages", "a truncation", "deleted chunks")

# Steps: changes of an index whose outcome any process knows from their numbers alone.

# An index without a model has the bits of the built-in one.
BITS, GENERAL_BITS = 64, 128
KIND: Any = {"bits": BITS, "general_bits": GENERAL_BITS, "attributes": ATTRIBUTES}
MOST_ITEMS_PER_STEP = 500
# Items are removed after so many steps, a multiple of 5: about two chunks of items stay.
WINDOW = 60
LABELS = ("bird", "cat", "dog", "person")
STEPS_BEFORE_DAMAGE = 54


@lru_cache(maxsize=2 * WINDOW)
def items_of(step: int) -> dict[str, Any]:
    """Return the items that a step adds, as arguments of `Index.add`."""
    generator = np.random.default_rng(step)
    count = int(generator.integers(1, MOST_ITEMS_PER_STEP))
    levels = generator.integers(0, 256, (count, len(LABELS), 2)).tolist()
    return {
        "codes": generator.integers(0, 256, (count, BITS // 8), np.uint8),
        "general": generator.integers(1, 256, (count, GENERAL_BITS // 8), np.uint8),
        "ids": [f"{step}/{row}" for row in range(count)],
        "labels": [[LABELS[row % 4], f"step {step}"] for row in range(count)],
        "scores": [{name: tuple(pair) for name, pair in zip(LABELS, pairs, strict=True)} for pairs in levels],
        "attributes": {
            "price": [None if price == 9 else float(price) for price in generator.integers(0, 10, count)],
            "kind": [f"kind {step}" if row % 3 else None for row in range(count)],
        },
    }


def removed_by(step: int) -> list[str]:
    """Return the ids that a step removes: every other one of a new batch, and all remaining ones of old batches."""
    old = [id for before in (1, 2, 3) if step > WINDOW for id in items_of(step - WINDOW - before)["ids"]]
    return [*items_of(step - 3)["ids"][::2], *old]


def change(index: Index, step: int) -> None:
    """Take a step: add, add, add, remove, compact, and so on."""
    if step % 5 < 3:
        index.add(**items_of(step))
    elif step % 5 == 3:
        index.remove(removed_by(step))
    else:
        index.compact()


def ids_after(last: int) -> set[str]:
    """Return the ids of the items after a step; `last` is -1 before all steps."""
    ids = set[str]()
    for step in range(max(0, last - last % 5 - WINDOW), last + 1):
        if step % 5 < 3:
            ids |= {*items_of(step)["ids"]}
        elif step % 5 == 3:
            ids -= {*removed_by(step)}
    return ids


def facts(item: Item) -> dict[str, Any]:
    """Return all fields of an item, ready to compare."""
    general = None if item.general is None else item.general.tolist()
    return {**vars(item), "code": item.code.tolist(), "general": general, "labels": sorted(item.labels)}


def as_added(item: Item) -> bool:
    """Return whether an item is as its step has added it."""
    step, row = map(int, item.id.split("/"))
    added = items_of(step)
    codes = {"code": added["codes"][row].tolist(), "general": added["general"][row].tolist()}
    attributes = {name: values[row] for name, values in added["attributes"].items()}
    rest = {name: added[name][row] for name in ("labels", "scores")}
    return facts(item).items() >= {**codes, **rest, "attributes": attributes}.items()


def step_of(folder: Path, steps: Sequence[int]) -> int | str:
    """Read all of an index; return after which of these steps it is, or what is wrong with it."""
    with Index.open(folder) as index:
        problems, items = index.verify(), list(index)
        results = index.search(code=[1] * BITS, k=len(items) + 1, by="semantic")
    ids, wrong = {item.id for item in items}, [item.id for item in items if not as_added(item)]
    if problems or wrong or {result.id for result in results} != ids or len(ids) != len(items):
        return f"broken: {problems[:1]}, {len(wrong)} wrong items, {len(results)} of {len(items)} found"
    broken = f"broken: {len(ids)} items, of none of the steps {steps}"
    return next((step for step in steps if ids_after(step) == ids), broken)


# Processes

WRITER = """
import resource, signal, sys
from benchmarks.torture import CenterhashError, Index, change

folder = sys.argv[1]
step, limit, compacts = map(int, sys.argv[2:])
# A file that grows beyond the limit raises an error in the writer.
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
index = Index.open(folder)
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
while True:
    try:
        if compacts or step % 5 < 4:
            change(index, step)
    except CenterhashError as error:
        print(error, flush=True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        input()  # waits until the index has been read
        continue
    print(step, flush=True)
    step += 1
"""
TRAINING = """
import sys, centerhash as ch
ch.train(ch.sample(), method="csq", bits=32, epochs=int(sys.argv[2]), out=sys.argv[1],
    device="cpu", checkpoint_seconds=0, progress=False)
"""


@contextmanager
def running(script: str, *arguments: object) -> Iterator[Any]:
    """Start a Python process, and kill it at the end."""
    # With one thread, sums of a training run have one order.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", script, *map(str, arguments)]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def killed(folder: Path, first: int, count: int, wait: float, *, compacts: bool = True) -> int:
    """Kill a writer some time after it has reported `count` steps; return the last step that it reported."""
    with running(WRITER, folder, first, -1, int(compacts)) as process:
        reported = [process.stdout.readline() for _ in range(count)]
        time.sleep(wait)
        process.kill()
        reported += process.stdout
    return int(reported[-1]) if reported else first - 1


# Parts: each yields the outcome of a round, "broken: ..." if a guarantee does not hold.


def kills(work: Path, rounds: int, seed: int) -> Iterator[str]:
    chance, last, folder = random.Random(seed), -1, work / "index"
    Index.create(folder, **KIND).close()
    for _ in range(rounds):
        # With a count of 0 the kill comes at any moment of the start.
        count = chance.randrange(8)
        last = killed(folder, last + 1, count, chance.random() * (0.05 if count else 1))
        step = step_of(folder, (last, last + 1))
        yield step if isinstance(step, str) else "all there"


def cuts(work: Path, rounds: int, seed: int) -> Iterator[str]:
    chance, folder, copy = random.Random(seed), work / "index", work / "copy"
    Index.create(folder, **KIND).close()
    before = killed(folder, 0, 30, 0)
    Index.open(folder).close()  # empties the log
    last = killed(folder, before + 1, 25, 0, compacts=False)
    size = (folder / f"{FILE}-wal").stat().st_size
    for length in sorted(chance.randrange(size) for _ in range(rounds)):
        shutil.copytree(folder, copy)
        os.truncate(copy / f"{FILE}-wal", length)
        # A longer log never leads to an earlier commit than a shorter one.
        step = step_of(copy, range(before, last + 2))
        if isinstance(step, int):
            before = step
            with Index.open(copy) as index:
                change(index, step + 1)
            step = step_of(copy, (step + 1,))
        shutil.rmtree(copy)
        yield step if isinstance(step, str) else "an earlier commit"


def disks(work: Path, rounds: int, seed: int) -> Iterator[str]:
    chance = random.Random(seed)
    for number in range(rounds):
        folder, last = work / str(number), -1
        Index.create(folder, **KIND).close()
        with running(WRITER, folder, 0, chance.randrange(200_000, 2_000_000), 1) as process:
            while (line := process.stdout.readline().strip()).isdecimal():
                last = int(line)
            step = step_of(folder, (last,))
            print(file=process.stdin, flush=True)
            if FILE not in line or process.stdout.readline() != f"{last + 1}\n":
                step = f"broken: after step {last}: {line}"
        yield step if isinstance(step, str) else "an error that names the file"


def trainings(work: Path, rounds: int, seed: int) -> Iterator[str]:
    chance, epochs, reached = random.Random(seed), 8 * rounds, 0
    whole, broken = work / "whole", work / "broken"

    def rows(run: Path) -> list[Any]:
        log = run / "log.jsonl"
        lines = log.read_text().splitlines() if log.exists() else []
        return [json.loads(line) | {"seconds": 0} for line in lines]

    def files(run: Path) -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in run.iterdir() if file.name != "log.jsonl"}

    for _ in range(rounds):
        with running(TRAINING, broken, epochs) as process:
            while process.poll() is None and len(rows(broken)) == reached:
                time.sleep(0.005)
            time.sleep(chance.random() * 0.05)
            process.kill()
        reached = len(rows(broken))
        yield "killed" if process.wait() == -signal.SIGKILL else "broken: it was over before the kill"
    for run in (broken, whole):
        with running(TRAINING, run, epochs) as process:
            process.wait()
    if (rows(broken), files(broken)) != (rows(whole), files(whole)):
        yield "broken: other files than those of a run without kills"


# Damages


def damage(file: Path, kind: str, chance: random.Random) -> None:
    """Damage a database at a random position."""
    content = bytearray(file.read_bytes())
    page_size = int.from_bytes(content[16:18])
    starts = chance.sample(range(0, len(content), page_size), 2)
    page, other = (slice(start, start + page_size) for start in starts)
    if kind == "deleted chunks":
        with closing(sqlite3.connect(file)) as sql:
            rows = sql.execute("SELECT rowid FROM chunks ORDER BY name, chunk").fetchall()
            sql.executemany("DELETE FROM chunks WHERE rowid = ?", chance.sample(rows, chance.randint(1, 3)))
            sql.commit()
        return
    if kind == "a flipped bit":
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    elif kind == "a zeroed page":
        content[page] = bytes(page_size)
    elif kind == "swapped pages":
        content[page], content[other] = content[other], content[page]
    else:
        del content[chance.randrange(len(content)) :]
    file.write_bytes(content)


def queries(chance: random.Random, ids: Sequence[str]) -> list[Callable[[Index], Any]]:
    """Return queries of all kinds; their results are equal for equal indexes."""
    among, (label, other), k = chance.sample(ids, 6), chance.sample(LABELS, 2), chance.choice((1, 20, 500))
    kinds = [f"kind {chance.randrange(STEPS_BEFORE_DAMAGE)}" for _ in range(9)]
    where = {"price": (2, 5), "kind": kinds}

    def search(**query: Any) -> Callable[[Index], Any]:
        return lambda index: index.search(k=k, **query).to_dict()

    return [
        search(id=among[0], by="semantic"),
        search(id=among[1], copies=True),
        search(id=among[2], by="general", having=label),
        search(code=[1] * BITS, by="semantic", where=where),
        search(labels={label: 0.7, other: 0.3}),
        search(labels=[label], by="semantic", without=other, among=among),
        search(like=among[:2], unlike=among[2:4]),
        lambda index: [list(map(facts, page)) for page in index.list(3, 50, order="price", having=label)[:1]],
        lambda index: [item.id for item in index.list(0, 50, where=where)[0]],
        lambda index: (index.count(without=label).labels, index.count(where=where).keys.tolist()),
        lambda index: list(map(facts, index.get(among))),
        lambda index: (index.ids(index.keys(among)), among[0] in index, len(index)),
        lambda index: items_of(50)["ids"][0] in index,  # a removed item
        lambda index: [column.tolist() for column in index.near_pairs(36)],
        lambda index: list(map(facts, index)),
    ]


def sound_index(folder: Path) -> list[str]:
    """Create an index of some chunks with the built-in model, for queries by labels; return the ids."""
    with Index.create(folder, attributes=ATTRIBUTES) as index:
        for step in range(STEPS_BEFORE_DAMAGE):
            change(index, step)
        items = list(index)
        assert all(map(as_added, items))
        assert {item.id for item in items} == ids_after(STEPS_BEFORE_DAMAGE - 1)
        index.hide([item.id for item in items[::50]])
        return [item.id for item in index if not item.hidden]


def outcome(work: Callable[[], Any], expected: Any = None) -> str:
    """Return whether `work` returns what is expected, raises an error that names the file, or breaks the guarantee."""
    try:
        return "right" if work() == expected else "broken: a wrong answer"
    except Exception as error:
        is_named = isinstance(error, CenterhashError) and FILE in str(error)
        return "noticed" if is_named else f"broken: {error!r}"


def outcomes(folder: Path, expected: Sequence[tuple[Callable[[Index], Any], Any]]) -> list[str]:
    """Query a damaged index, verify and compact it, and query it again."""
    results = [outcome(lambda: Index.open(folder).close())]
    opens = results == ["right"]
    if opens:
        with Index.open(folder) as index:
            results += [outcome(partial(query, index), right) for query, right in expected]
    if "noticed" in results and not verify_index(folder):
        results.append("broken: nothing found by verify")
    if opens:
        with Index.open(folder) as index:
            results.append(outcome(index.compact))
            results += [outcome(partial(query, index), right) for query, right in expected]
    return results


def damages(work: Path, rounds: int, seed: int) -> Iterator[str]:
    chance, sound, copy = random.Random(seed), work / "sound", work / "copy"
    ids = sound_index(sound)
    shutil.copytree(sound, copy)
    with Index.open(sound, read_only=True) as index:
        for number in range(rounds):
            for file in copy.glob(f"{FILE}*"):
                file.unlink()
            shutil.copy(sound / FILE, copy)
            kind = DAMAGES[number % len(DAMAGES)]
            damage(copy / FILE, kind, chance)
            shuffled = queries(chance, ids)
            chance.shuffle(shuffled)
            results = outcomes(copy, [(query, query(index)) for query in shuffled])
            broken = [f"{text} after {kind}, round {number}" for text in results if text.startswith("broken")]
            noticed = "noticed" if "noticed" in results else "right answers"
            yield broken[0] if broken else f"{kind}: {noticed}"


PARTS = {kills: 300, damages: 300, cuts: 50, disks: 5, trainings: 5}


def run_part(part: Callable[..., Iterator[str]], rounds: int, seed: int, report: Progress) -> dict[str, Any]:
    """Run the rounds of a part, and count the outcomes."""
    started, counts = time.monotonic(), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="centerhash-torture-") as folder:
        for text in part(Path(folder), rounds, seed):
            counts[text] += 1
            report(part.__name__, counts.total(), rounds)
    return {"rounds": rounds, **dict(sorted(counts.items())), "seconds": round(time.monotonic() - started, 1)}


def main() -> None:
    """Run the parts, print their results and store them."""
    parser = arguments_of(__doc__)
    for part, rounds in PARTS.items():
        parser.add_argument(f"--{part.__name__}", type=int, default=rounds, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    options = vars(parser.parse_args())
    figures = dict[str, Any]()
    with bars() as report:
        for part in PARTS:
            if rounds := options[part.__name__]:
                figures[part.__name__] = run_part(part, rounds, options["seed"], report)
                print(json.dumps({part.__name__: figures[part.__name__]}), flush=True)
                store(options["out"], {"seed": options["seed"], **figures})
    if "broken" in json.dumps(figures):
        raise SystemExit("a guarantee does not hold: see above.")


if __name__ == "__main__":
    main()
