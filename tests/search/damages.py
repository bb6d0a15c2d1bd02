"""An index whose files are damaged at random: what it answers, and whether that is noticed."""

from __future__ import annotations

import hashlib
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from centerhash.codes import pack
from centerhash.core.errors import CenterhashError
from centerhash.data.images import load_image
from centerhash.search import Index, verify_index
from centerhash.search.database import FILE
from centerhash.search.items import PhotoInfo
from tests.toys import CLASSES, noise_image, separable

KINDS = ("flip", "cut", "zero")
ITEMS, FEW, UPLOADS = 1200, 5, 2  # of the first add, of each further one, in images/


def make_index(folder: Path, run: Path) -> Path:
    """An index from several adds and removals, with uploads; its items have all parts."""
    features, labels = separable(ITEMS + 3 * FEW, seed=1)
    generator = np.random.default_rng(0)
    names = [[name for name, there in zip(CLASSES, row, strict=True) if there] for row in labels]
    visual = generator.integers(0, 256, (len(features), 16), dtype=np.uint8)
    scores = [{name: (int(255 / len(row)), 255 // len(row)) for name in row} for row in names]
    paths = [f"/photos/of/some/longer/folder/{row % 7}/image-{row:05d}.jpg" for row in range(len(features))]
    photos = [
        PhotoInfo(1e6 * (row % 11), "Canon" if row % 3 else None, 10 + row, 9) for row in range(len(features))
    ]
    with Index.create(folder, run) as index:
        packed = pack(index.model.encode_features(features))
        edges = [0, ITEMS, *(ITEMS + FEW * part for part in (1, 2, 3))]
        for begin, end in pairwise(edges):
            rows, ids = slice(begin, end), [f"{row:016x}" for row in range(begin, end)]
            columns = (names[rows], paths[rows], visual[rows], scores[rows], photos[rows])
            index.store.add(packed[rows], ids, *columns)
        gone = [
            (item.id, item.files[0]) for item in index.store.get([f"{row:016x}" for row in range(0, 40, 3)])
        ]
        index.store.remove([id for id, _ in gone])
        index.store.note_removed(gone)
        index.teach("taught", like=[f"{row:016x}" for row in range(50, 55)], unlike=f"{60:016x}")
        (folder / "images").mkdir()
        for number in range(UPLOADS):
            noise_image(seed=number).save(folder / "images" / "new.png")
            content = (folder / "images" / "new.png").read_bytes()
            id = hashlib.sha256(content).hexdigest()[:16]
            (folder / "images" / "new.png").rename(folder / "images" / f"{id}.png")
            index.store.add(packed[:1], [id], [["dog"]], [f"images/{id}.png"])
    return folder


def answers(folder: Path) -> dict[str, Any]:
    """What an index returns to every kind of query."""

    def moved(found: object) -> str:
        return repr(found).replace(str(folder.resolve()), "")  # a copy of an index has another path

    with Index.open(folder, read_only=True) as index:
        items = list(index.items())
        asked = items[17].id
        uploads = [item.id for item in items if index.uploads.holds(item.path or "")]
        found = {
            "by id": index.search(id=asked, k=8),
            "by visual code": index.search(id=asked, k=8, by="visual"),
            "by semantic code": index.search(id=asked, k=8, by="semantic", within=6),
            "by labels": index.search(labels={"cat": 2, "dog": 1}, k=8),
            "by a taught label": index.search(labels={"taught": 2, "dog": 1}, k=8),
            "filtered": index.search(id=asked, k=8, having="bee", without="fox", under="/photos/of/some"),
        }
        return {
            **{name: results.to_dict() for name, results in found.items()},
            "items": [
                (
                    item.id,
                    item.code.tolist(),
                    item.labels,
                    item.files,
                    item.visual is None or item.visual.tolist(),
                    dict(item.scores),
                    item.photo,
                )
                for item in items
            ],
            "each": [moved(index.get(item.id)) for item in items],
            "newest": [moved(index.newest(0, 2000)), moved(index.newest(3, 9, having="cat"))],
            "folders": moved(sorted(index.folders().items())),
            "labels": index.labels(),
            "taught": repr(index.taught()),
            "removed": repr(index.store.removed()),
            "size": len(index),
            "codes": index.model.encode_features(separable(20, seed=3)[0]).tolist(),
            "images": [np.asarray(load_image(index.image(id))).tolist() for id in uploads],
        }


def damaged(content: bytes, kind: str, chance: random.Random) -> bytes:
    """The bytes of a file after one damage."""
    place = chance.randrange(len(content)) if content else 0
    if kind == "cut":
        return content[:place]
    if kind == "zero":
        length = min(chance.choice([1, 16, 512, 4096]), len(content) - place)
        return content[:place] + bytes(length) + content[place + length :]
    return content[:place] + bytes([content[place] ^ 1 << chance.randrange(8)]) + content[place + 1 :]


def outcome(folder: Path, expected: dict[str, Any]) -> str:
    """How an index answers: "right", "refused" in one sentence, "wrong" or with a "traceback"."""
    try:
        found = answers(folder)
    except CenterhashError as error:
        return "refused" if str(error).strip() else "refused without a word"
    except Exception as error:  # what must not happen is counted
        return f"traceback of {type(error).__name__}: {error}"
    return "right" if found == expected else "wrong"


def compacted(folder: Path) -> None:
    """What an owner does who has not noticed anything."""
    with Index.open(folder) as index:
        index.compact()


def torture(sound: Path, place: Path, cases: int, seed: int = 0) -> Iterator[tuple[str, str]]:
    """Damage a copy of an index again and again; yields a name of the damage, and what came of it.

    That is how it answers, "unnamed" where it does not answer rightly and `verify` finds nothing, or "laundered" where
    it answers wrongly after it was compacted.
    """
    expected, chance = answers(sound), random.Random(seed)
    files = sorted(
        path.relative_to(sound) for path in sound.rglob("*") if path.is_file() and path.stat().st_size
    )
    for case in range(cases):
        folder = shutil.copytree(sound, place / "damaged")
        file, kind = files[case % len(files)], KINDS[case // len(files) % len(KINDS)]
        (folder / file).write_bytes(damaged((folder / file).read_bytes(), kind, chance))
        result = outcome(folder, expected)
        if result == "refused" and not verify_index(folder):
            result = "unnamed"
        try:
            compacted(folder)
        except CenterhashError:
            pass
        else:
            after = outcome(folder, expected)
            result = f"laundered, {after}" if after not in ("right", "refused") else result
        shutil.rmtree(folder)
        yield f"{kind} {file}", result


def cuts(sound: Path, place: Path, cases: int, seed: int = 0) -> Iterator[bool]:
    """Cut the write-ahead log of a killed writer at random; yield whether that is noticed and nothing is changed.

    Every frame that is cut off belongs to a commit that was acknowledged.
    """
    chance = random.Random(seed)
    killed = shutil.copytree(sound, place / "killed")
    with Index.open(killed) as index:
        for number in range(5):
            index.store.add(np.zeros((1, 2), np.uint8), [f"{number:x}" * 16])
        left = shutil.copytree(killed, place / "left")  # as it is on the disk before anything is closed
    log = left / f"{FILE}-wal"
    whole = log.read_bytes()
    for case in range(cases):
        folder = shutil.copytree(left, place / "cut")
        end = chance.randrange(len(whole)) if case else 0
        (folder / log.name).write_bytes(whole[:end])
        if not case:
            (folder / log.name).unlink()
        noticed = bool(verify_index(folder))
        for read_only in (True, False):
            try:
                Index.open(folder, read_only=read_only).close()
            except CenterhashError:
                continue
            noticed = False
        (folder / log.name).write_bytes(whole)  # put back, as the error says
        with Index.open(folder) as again:
            yield noticed and len(again) == len(index_ids(left)) and not again.verify()
        shutil.rmtree(folder)


def index_ids(folder: Path) -> list[str]:
    """The ids of a copy of an index."""
    with Index.open(folder, read_only=True) as index:
        return [item.id for item in index.items()]


def counted(results: Iterator[tuple[str, str]]) -> tuple[Counter[str], list[str]]:
    """How often each came, and the damages that were not noticed as they should be."""
    found = list(results)
    bad = [f"{damage}: {result}" for damage, result in found if result not in ("right", "refused")]
    return Counter(result for _, result in found), bad
