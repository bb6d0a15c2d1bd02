"""What is promised of stored data, tried in full: kills, damages, cut logs, full disks. `make torture`

    python -m benchmarks.torture [--kills 300] [--damages 300] [--seed 0] [--out benchmarks/results/torture.json]

kills      a process that adds, removes and compacts is killed at any moment: what it reported as done is there
damages    of the database: flipped bits, zeroed and swapped pages, truncations, deleted chunks. All that is
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

BITS, GENERAL_BITS = 64, 128  # of the built-in model
KIND: Any = {"bits": BITS, "general_bits": GENERAL_BITS, "attributes": ATTRIBUTES}  # of an index without it
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
    added, found = items_of(step), facts(item)
    codes = {
        name: added[column][place].tolist() for name, column in (("code", "codes"), ("general", "general"))
    }
    attributes = {name: values[place] for name, values in added["attributes"].items()}
    rest = {name: added[name][place] for name in ("labels", "scores")}
    return found.items() >= {**codes, **rest, "attributes": attributes}.items()


def step_of(folder: Path, steps: Sequence[int]) -> int | str:
    """Read an index whole; return after which of these steps it is, or else what is wrong with it."""
    with Index.open(folder) as index:
        problems, items = index.verify(), list(index)
        found = index.search(code=[1] * BITS, k=len(items) + 1, by="semantic")
    ids, wrong = {item.id for item in items}, [item.id for item in items if not as_added(item)]
    if problems or wrong or {row.id for row in found} != ids or len(ids) != len(items):
        return f"broken: {problems[:1]}, {len(wrong)} wrong items, {len(found)} of {len(items)} found"
    broken = f"broken: {len(ids)} items, of none of the steps {steps}"
    return next((step for step in steps if held_after(step) == ids), broken)


# Processes

WRITER = """
import resource, signal, sys
from benchmarks.torture import CenterhashError, Index, change

folder = sys.argv[1]
step, limit, compacts = map(int, sys.argv[2:])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a file that grows beyond the limit is an error of the writer
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
def running(script: str, *arguments: object) -> Iterator[Any]:
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


def killed(folder: Path, first: int, count: int, wait: float, *, compacts: bool = True) -> int:
    """Kill a writer some time after it has reported some steps; return the last one that it reported."""
    with running(WRITER, folder, first, -1, int(compacts)) as process:
        reported = [process.stdout.readline() for _ in range(count)]
        time.sleep(wait)
        process.kill()
        reported += process.stdout
    return int(reported[-1]) if reported else first - 1


# Parts: each yields what happened in a round, "broken: ..." if a promise was.


def kills(place: Path, rounds: int, seed: int) -> Iterator[str]:
    moments, last, folder = random.Random(seed), -1, place / "index"
    Index.create(folder, **KIND).close()
    for _ in range(rounds):
        count = moments.randrange(8)  # without a line to wait for, at any moment of the start
        last = killed(folder, last + 1, count, moments.random() * (0.05 if count else 1))
        found = step_of(folder, (last, last + 1))
        yield found if isinstance(found, str) else "all there"


def cuts(place: Path, rounds: int, seed: int) -> Iterator[str]:
    moments, folder, copy = random.Random(seed), place / "index", place / "copy"
    Index.create(folder, **KIND).close()
    before = killed(folder, 0, 30, 0)
    Index.open(folder).close()  # empties the log
    last = killed(folder, before + 1, 25, 0, compacts=False)
    size = (folder / f"{FILE}-wal").stat().st_size
    for length in sorted(moments.randrange(size) for _ in range(rounds)):
        shutil.copytree(folder, copy)
        os.truncate(copy / f"{FILE}-wal", length)
        found = step_of(copy, range(before, last + 2))  # a longer log is no earlier commit
        if isinstance(found, int):
            before = found
            with Index.open(copy) as index:
                change(index, found + 1)
            found = step_of(copy, (found + 1,))
        shutil.rmtree(copy)
        yield found if isinstance(found, str) else "an earlier commit"


def disks(place: Path, rounds: int, seed: int) -> Iterator[str]:
    moments = random.Random(seed)
    for number in range(rounds):
        folder, last = place / str(number), -1
        Index.create(folder, **KIND).close()
        with running(WRITER, folder, 0, moments.randrange(200_000, 2_000_000), 1) as process:
            while (line := process.stdout.readline().strip()).isdecimal():
                last = int(line)
            found = step_of(folder, (last,))
            print(file=process.stdin, flush=True)
            if FILE not in line or process.stdout.readline() != f"{last + 1}\n":
                found = f"broken: after step {last}: {line}"
        yield found if isinstance(found, str) else "an error that names the file"


def trainings(place: Path, rounds: int, seed: int) -> Iterator[str]:
    moments, epochs, reached = random.Random(seed), 8 * rounds, 0
    whole, broken = place / "whole", place / "broken"

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
            time.sleep(moments.random() * 0.05)
            process.kill()
        reached = len(rows(broken))
        yield "killed" if process.wait() == -signal.SIGKILL else "broken: it was over before the kill"
    for run in (broken, whole):
        with running(TRAINING, run, epochs) as process:
            process.wait()
    if (rows(broken), files(broken)) != (rows(whole), files(whole)):
        yield "broken: other files than those of a run without kills"


# Damages


def damage(file: Path, kind: str, place: random.Random) -> None:
    """Damage a database at a random place."""
    content = bytearray(file.read_bytes())
    size = int.from_bytes(content[16:18])  # of a page
    one, other = (slice(at, at + size) for at in place.sample(range(0, len(content), size), 2))
    if kind == "deleted chunks":
        with closing(sqlite3.connect(file)) as sql:
            rows = sql.execute("SELECT rowid FROM chunks ORDER BY name, chunk").fetchall()
            sql.executemany("DELETE FROM chunks WHERE rowid = ?", place.sample(rows, place.randint(1, 3)))
            sql.commit()
        return
    if kind == "a flipped bit":
        content[place.randrange(len(content))] ^= 1 << place.randrange(8)
    elif kind == "a zeroed page":
        content[one] = bytes(size)
    elif kind == "swapped pages":
        content[one], content[other] = content[other], content[one]
    else:
        del content[place.randrange(len(content)) :]
    file.write_bytes(content)


def questions(place: random.Random, ids: Sequence[str]) -> list[Callable[[Index], Any]]:
    """Everything that can be asked; answers of equal indexes are equal."""
    some, (one, other), k = place.sample(ids, 6), place.sample(NAMES, 2), place.choice((1, 20, 500))
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
        lambda index: (index.ids(index.keys(some)), some[0] in index, len(index)),
        lambda index: items_of(50)["ids"][0] in index,  # it was removed
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
    except Exception as error:
        is_named = isinstance(error, CenterhashError) and FILE in str(error)
        return "noticed" if is_named else f"broken: {error!r}"


def outcomes(folder: Path, due: Sequence[tuple[Callable[[Index], Any], Any]]) -> list[str]:
    """Ask a damaged index, let it be verified and compacted, and ask again."""
    found = [asked(lambda: Index.open(folder).close())]
    if found == ["right"]:
        with Index.open(folder) as index:
            found += [asked(partial(question, index), right) for question, right in due]
    if "noticed" in found and not verify_index(folder):
        found.append("broken: nothing found by verify")
    if found[0] == "right":
        with Index.open(folder) as index:
            found.append(asked(index.compact))
            found += [asked(partial(question, index), right) for question, right in due]
    return found


def damages(place: Path, rounds: int, seed: int) -> Iterator[str]:
    chance, sound, copy = random.Random(seed), place / "sound", place / "copy"
    shown = sound_index(sound)
    shutil.copytree(sound, copy)
    with Index.open(sound, read_only=True) as index:
        for number in range(rounds):
            for file in copy.glob(f"{FILE}*"):
                file.unlink()
            shutil.copy(sound / FILE, copy)
            kind = DAMAGES[number % len(DAMAGES)]
            damage(copy / FILE, kind, chance)
            due = questions(chance, shown)
            chance.shuffle(due)
            found = outcomes(copy, [(question, question(index)) for question in due])
            broken = [f"{one} after {kind}, round {number}" for one in found if one.startswith("broken")]
            noticed = "noticed" if "noticed" in found else "right answers"
            yield broken[0] if broken else f"{kind}: {noticed}"


PARTS = {kills: 300, damages: 300, cuts: 50, disks: 5, trainings: 5}


def tried(part: Callable[..., Iterator[str]], rounds: int, seed: int, report: Progress) -> dict[str, Any]:
    """Go through the rounds of a part, and count what happened."""
    begun, found = time.monotonic(), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="centerhash-torture-") as place:
        for outcome in part(Path(place), rounds, seed):
            found[outcome] += 1
            report(part.__name__, found.total(), rounds)
    return {"rounds": rounds, **dict(sorted(found.items())), "seconds": round(time.monotonic() - begun, 1)}


def main() -> None:
    """Try every part, print its figures and store them."""
    parser = arguments_of(__doc__)
    for part, rounds in PARTS.items():
        parser.add_argument(f"--{part.__name__}", type=int, default=rounds, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    options = vars(parser.parse_args())
    figures = dict[str, Any]()
    with bars() as report:
        for part in PARTS:
            if rounds := options[part.__name__]:
                figures[part.__name__] = tried(part, rounds, options["seed"], report)
                print(json.dumps({part.__name__: figures[part.__name__]}), flush=True)
                store(options["out"], {"seed": options["seed"], **figures})
    if "broken" in json.dumps(figures):
        raise SystemExit("a promise was broken: see above.")


if __name__ == "__main__":
    main()
