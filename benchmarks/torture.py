"""What is promised of stored data, tried in full: kills, damages, cut logs, full disks. `make torture`

    python -m benchmarks.torture [--kills 300] [--damages 300] [--seed 0] [--out benchmarks/results/torture.json]

kills      a process that adds, removes and compacts is killed at any moment: what it reported as done is there
damages    of the database: flipped bits, zeroed and swapped pages, truncations, deleted chunks of columns. All that is
           in an answer is right, or an error names the file; the same after `compact`. `verify` finds what an error tells
cuts       of the write-ahead log of a killed process: the index opens at an earlier commit, and goes on from it
disks      that are full while a process writes: an error names the file, nothing is lost, and it goes on with more room
trainings  kills of one training run: it ends with the same files

Exits with 1 if a promise was broken. 0 leaves a part out. The tests do the same in short.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.reporting import ROOT, arguments_of, store
from centerhash.core.errors import CenterhashError
from centerhash.core.progress import Progress, bars
from centerhash.index import Index, Item, verify_index

FILE, MODEL = "items.db", "model"
ATTRIBUTES = {"price": float, "kind": str}
Damage = Callable[[Path, random.Random], None]

# Steps: changes of an index whose outcome any process knows from their numbers alone.

BITS, GENERAL_BITS = 64, 128  # of the built-in model
MOST = 500  # items of a step
WINDOW = 60  # steps after which items are removed, a multiple of 5: about two chunks of items stay
NAMES = ("bird", "cat", "dog", "person")
SOUND = 54  # steps before an index is damaged


@lru_cache(maxsize=2 * WINDOW)
def items_of(step: int) -> dict[str, Any]:
    """The items that a step adds, as arguments of `Index.add`."""
    generator = np.random.default_rng(step)
    count = int(generator.integers(1, MOST))
    levels = generator.integers(0, 256, (count, len(NAMES), 2)).tolist()
    return {
        "codes": generator.integers(0, 256, (count, BITS // 8), np.uint8),
        "general": generator.integers(1, 256, (count, GENERAL_BITS // 8), np.uint8),
        "ids": [f"{step}/{place}" for place in range(count)],
        "labels": [[NAMES[place % 4], f"step {step}"] for place in range(count)],
        "scores": [{name: tuple(pair) for name, pair in zip(NAMES, row, strict=True)} for row in levels],
        "attributes": {
            "price": [None if price == 9 else float(price) for price in generator.integers(0, 10, count)],
            "kind": [f"kind {step}" if place % 3 else None for place in range(count)],
        },
    }


def removed_by(step: int) -> list[str]:
    """The ids that a step removes: every other one of a new batch, and all that are left of old ones."""
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


def held_after(last: int) -> set[str]:
    """The ids of the items after a step; before all steps it is -1."""
    ids = set[str]()
    for step in range(max(0, last - last % 5 - WINDOW), last + 1):
        if step % 5 < 3:
            ids |= {*items_of(step)["ids"]}
        elif step % 5 == 3:
            ids -= {*removed_by(step)}
    return ids


def facts(item: Item) -> dict[str, Any]:
    """All of an item that can be compared."""
    general = None if item.general is None else item.general.tolist()
    return {**vars(item), "code": item.code.tolist(), "general": general, "labels": sorted(item.labels)}


def as_added(item: Item) -> bool:
    """Whether an item is what its step has added."""
    step, place = map(int, item.id.split("/"))
    added = items_of(step)
    expected = {name: added[name][place] for name in ("ids", "labels", "scores")}
    codes = (added["codes"][place].tolist(), added["general"][place].tolist())
    attributes = {name: values[place] for name, values in added["attributes"].items()}
    found = facts(item)
    return (
        [found["id"], found["labels"], found["scores"]] == [*expected.values()]
        and (found["code"], found["general"]) == codes
        and found["attributes"] == attributes
    )


def step_of(folder: Path, steps: Sequence[int]) -> tuple[int | None, str]:
    """Read an index whole; return after which of these steps it is, or None, and what is wrong with it."""
    with Index.open(folder) as index:
        problems, items = index.verify(), list(index)
        ids = {item.id for item in index.search(code=[1] * BITS, k=len(items) + 1, by="semantic")}
    wrong = [item.id for item in items if not as_added(item)]
    if problems or wrong or ids != {item.id for item in items} or len(ids) != len(items):
        return None, f"{problems[:1]}, {len(wrong)} wrong items, {len(ids)} of {len(items)} found"
    return next((step for step in steps if held_after(step) == ids), None), f"{len(ids)} items"


# Processes

WRITER = """
import resource, signal, sys
from pathlib import Path
from benchmarks.torture import CenterhashError, Index, change

folder = sys.argv[1]
step, limit, compacts = map(int, sys.argv[2:])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a file that grows beyond the limit is an error of the writer
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
index = Index.open(folder)
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
while True:
    try:
        if compacts or step % 5 < 4:
            change(index, step)
    except CenterhashError as error:
        print(error, flush=True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        input()  # until the index was looked at
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
def running(script: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Start a Python process, and kill it in the end."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # sums of a training have one order
    words = [sys.executable, "-c", script, *map(str, arguments)]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def lines(process: subprocess.Popen[str], count: int) -> list[str]:
    """Wait for some lines of a process."""
    assert process.stdout is not None
    return [process.stdout.readline().strip() for _ in range(count)]


def killed(folder: Path, first: int, count: int, wait: float, *, compacts: bool = True) -> int:
    """Kill a writer some time after it has reported some steps; return the last one that it reported."""
    with running(WRITER, folder, first, 0, int(compacts)) as process:
        reported = lines(process, count)
        time.sleep(wait)
        process.kill()
        assert process.stdout is not None
        reported += process.stdout.read().split()
    return int(reported[-1]) if reported else first - 1


# Parts: each yields what happened in a round, "broken: ..." if a promise was.


def kills(place: Path, rounds: int, seed: int) -> Iterator[str]:
    moments, last, folder = random.Random(seed), -1, place / "index"
    Index.create(folder, bits=BITS, general_bits=GENERAL_BITS, attributes=ATTRIBUTES).close()
    for _ in range(rounds):
        # without a line to wait for, at any moment of the start
        count = moments.randrange(8)
        last = killed(folder, last + 1, count, moments.random() * (0.05 if count else 1))
        found, about = step_of(folder, (last, last + 1))
        if found is None:
            yield f"broken: after step {last}: {about}"
            return
        yield "all there"


def cuts(place: Path, rounds: int, seed: int) -> Iterator[str]:
    moments, folder, copy = random.Random(seed), place / "index", place / "copy"
    Index.create(folder, bits=BITS, general_bits=GENERAL_BITS, attributes=ATTRIBUTES).close()
    before = killed(folder, 0, 70, 0)
    Index.open(folder).close()  # empties the log
    last = killed(folder, before + 1, 25, 0, compacts=False)
    log = (folder / f"{FILE}-wal").read_bytes()
    for length in sorted(moments.randrange(len(log)) for _ in range(rounds)):
        shutil.copytree(folder, copy)
        os.truncate(copy / f"{FILE}-wal", length)
        found, about = step_of(copy, range(before, last + 2))
        if found is not None:
            before = found
            with Index.open(copy) as index:
                change(index, found + 1)
            found, about = step_of(copy, (found + 1,))
        shutil.rmtree(copy)
        yield f"broken: {length:,} bytes of the log: {about}" if found is None else "an earlier commit"


def disks(place: Path, rounds: int, seed: int) -> Iterator[str]:
    moments = random.Random(seed)
    for number in range(rounds):
        folder = place / str(number)
        Index.create(folder, bits=BITS, general_bits=GENERAL_BITS, attributes=ATTRIBUTES).close()
        with running(WRITER, folder, 0, moments.randrange(200_000, 2_000_000), 1) as process:
            last = -1
            while (line := lines(process, 1)[0]).isdecimal():
                last = int(line)
            found = step_of(folder, (last,))[0]
            assert process.stdin is not None
            print(file=process.stdin, flush=True)
            goes_on = lines(process, 1) == [str(last + 1)]
        if FILE not in line or found is None or not goes_on:
            yield f"broken: after step {last}: {line}"
        else:
            yield "an error that names the file"


def trainings(place: Path, rounds: int, seed: int) -> Iterator[str]:
    moments, epochs, whole, broken = random.Random(seed), 8 * rounds, place / "whole", place / "broken"
    log, reached = broken / "log.jsonl", 0

    def run_files(run: Path) -> dict[str, Any]:
        files: dict[str, Any] = {file.name: file.read_bytes() for file in run.iterdir() if file.is_file()}
        rows = [json.loads(line) for line in files["log.jsonl"].splitlines()]
        return files | {"log.jsonl": [{**row, "seconds": None} for row in rows]}

    for _ in range(rounds):
        with running(TRAINING, broken, epochs) as process:
            while process.poll() is None and reached >= (
                epoch := len(log.read_text().splitlines()) if log.exists() else 0
            ):
                time.sleep(0.002)
            reached = epoch
            time.sleep(moments.random() * 0.05)
            process.kill()
        yield "killed" if process.wait() == -signal.SIGKILL else "broken: it was over before the kill"
    for run in (broken, whole):
        with running(TRAINING, run, epochs) as process:
            process.wait()
    if run_files(broken) != run_files(whole):
        yield "broken: other files than those of a run without kills"


# Damages


def flipped(file: Path, place: random.Random) -> None:
    content = bytearray(file.read_bytes())
    content[place.randrange(len(content))] ^= 1 << place.randrange(8)
    file.write_bytes(content)


def truncated(file: Path, place: random.Random) -> None:
    os.truncate(file, place.randrange(file.stat().st_size))


def pages_changed(file: Path, place: random.Random, *, swap: bool) -> None:
    """Swap two pages, or zero some."""
    content = bytearray(file.read_bytes())
    size = int.from_bytes(content[16:18]) or 1 << 16
    first, second = (size * place.randrange(len(content) // size) for _ in range(2))
    one, other = content[first : first + size], content[second : second + size]
    if swap:
        content[first : first + size], content[second : second + size] = other, one
    else:
        end = min(first + size * place.choice((1, 1, 4)), len(content))
        content[first:end] = bytes(end - first)
    file.write_bytes(content)


def deleted(file: Path, place: random.Random) -> None:
    """Delete some chunks of columns."""
    with closing(sqlite3.connect(file)) as sql:
        rows = sql.execute("SELECT rowid FROM chunks ORDER BY name, chunk").fetchall()
        sql.executemany("DELETE FROM chunks WHERE rowid = ?", place.sample(rows, place.randint(1, 3)))
        sql.commit()


DAMAGES: Mapping[str, Damage] = {
    "a flipped bit": flipped,
    "zeroed pages": lambda file, place: pages_changed(file, place, swap=False),
    "swapped pages": lambda file, place: pages_changed(file, place, swap=True),
    "a truncation": truncated,
    "deleted chunks": deleted,
}


def questions(
    classes: Sequence[str], place: random.Random, ids: Sequence[str]
) -> list[Callable[[Index], Any]]:
    """Everything that can be asked; answers of equal indexes are equal."""
    some, (one, other), k = place.sample(ids, 6), place.sample(classes, 2), place.choice((1, 20, 10**6))
    where = {"price": (2, 5), "kind": [f"kind {place.randrange(SOUND)}" for _ in range(9)]}

    def searched(**query: Any) -> Callable[[Index], Any]:
        return lambda index: index.search(k=k, **query).to_dict()

    return [
        searched(id=some[0], by="semantic"),
        searched(id=some[1], copies=True),
        searched(id=some[2], by="general", having=one),
        searched(code=[1] * BITS, by="semantic", where=where),
        searched(labels={one: 0.7, other: 0.3}),
        searched(labels=[one], by="semantic", without=other, among=some),
        searched(like=some[:2], unlike=some[2:4]),
        lambda index: [list(map(facts, page)) for page in index.list(3, 50, order="price", having=one)[:1]],
        lambda index: [item.id for item in index.list(0, 50, where=where)[0]],
        lambda index: (index.count(without=one).labels, index.count(where=where).keys.tolist()),
        lambda index: list(map(facts, index.get(some))),
        lambda index: (
            index.ids(index.keys(some)),
            items_of(50)["ids"][0] in index,
            some[0] in index,
            len(index),
        ),
        lambda index: [column.tolist() for column in index.near_pairs(36)],
        lambda index: list(map(facts, index)),
    ]


def sound_index(folder: Path) -> list[str]:
    """Make an index of some chunks with the built-in model, whose queries by labels need no network; return the ids."""
    with Index.create(folder, attributes=ATTRIBUTES) as index:
        for step in range(SOUND):
            change(index, step)
        items = list(index)
        assert all(map(as_added, items))
        assert {item.id for item in items} == held_after(SOUND - 1)
        index.hide([item.id for item in items[::50]])
        return [item.id for item in index if not item.hidden]


def asked(work: Callable[[], Any], right: Any = None) -> str:
    """Whether some work gives the right answer, an error that names the file, or breaks the promise."""
    try:
        return "right" if work() == right else "broken: a wrong answer"
    except CenterhashError as error:
        return "noticed" if FILE in str(error) else f"broken: {error!r}"
    except Exception as error:
        return f"broken: {error!r}"


def outcomes(folder: Path, due: Sequence[tuple[Callable[[Index], Any], Any]]) -> Iterator[str]:
    """Ask a damaged index, let it be verified and compacted, and ask again."""
    found = [asked(lambda: Index.open(folder).close())]
    problems = verify_index(folder)
    if found == ["right"]:
        with Index.open(folder) as index:
            found += [asked(partial(question, index), right) for question, right in due]
            yield asked(index.compact)
            yield from [asked(partial(question, index), right) for question, right in due]
    yield from found
    if "noticed" in found and not problems:
        yield "broken: nothing found by verify"


def damages(place: Path, rounds: int, seed: int) -> Iterator[str]:
    chance, sound, copy = random.Random(seed), place / "sound", place / "copy"
    shown = sound_index(sound)
    shutil.copytree(sound, copy)
    with Index.open(sound, read_only=True) as index:
        for number in range(rounds):
            for file in copy.glob(f"{FILE}*"):
                file.unlink()
            shutil.copy(sound / FILE, copy)
            kind = chance.choice([*DAMAGES])
            DAMAGES[kind](copy / FILE, chance)
            due = questions(index.classes, chance, shown)
            found = [*outcomes(copy, [(question, question(index)) for question in due])]
            wrong = [outcome for outcome in found if outcome.startswith("broken")]
            noticed = "noticed" if "noticed" in found else "right answers"
            yield f"{wrong[0]} after {kind}, round {number}" if wrong else f"{kind}: {noticed}"


Part = Callable[[Path, int, int], Iterator[str]]
PARTS: Mapping[str, tuple[Part, int]] = {
    "kills": (kills, 300),
    "damages": (damages, 300),
    "cuts": (cuts, 50),
    "disks": (disks, 5),
    "trainings": (trainings, 5),
}


def tried(name: str, rounds: int, seed: int, report: Progress) -> dict[str, Any]:
    """Go through the rounds of a part, and count what happened."""
    begun, found = time.monotonic(), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="centerhash-torture-") as place:
        for outcome in PARTS[name][0](Path(place), rounds, seed):
            found[outcome] += 1
            report(name, found.total(), rounds)
    return {"rounds": rounds, **dict(sorted(found.items())), "seconds": round(time.monotonic() - begun, 1)}


def main() -> None:
    """Try everything, print the figures and store them."""
    parser = arguments_of(__doc__)
    for name, (_, rounds) in PARTS.items():
        parser.add_argument(f"--{name}", type=int, default=rounds, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    options = vars(parser.parse_args())
    with bars() as report:
        figures = {
            name: tried(name, options[name], options["seed"], report) for name in PARTS if options[name]
        }
    print(json.dumps(figures, indent=2))
    store(options["out"], {"seed": options["seed"], **figures})
    if "broken" in json.dumps(figures):
        raise SystemExit("a promise was broken: see above.")


if __name__ == "__main__":
    main()
