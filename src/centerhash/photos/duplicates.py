"""Duplicates: photos that are there more than once, in three kinds of groups.

*same*     equal bytes
*near*     the same photo: encoded again, resized, in grey, brightened, rotated, mirrored, cropped down to 60 % of its
           sides, or in a screenshot; the pixels decide, see `pixels`
*similar*  photos of the same kind of thing, by the general code alone

The first file of a group is the largest one, and every other one is near it. Each kind compares the first files of the
kinds before it only, so a file is the second or a later one of at most one group. No file is changed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from centerhash.core.errors import DataError, unknown_name
from centerhash.core.parallel import read_all
from centerhash.core.progress import Progress, silent
from centerhash.core.rendering import RowSequence
from centerhash.data.images import load_image
from centerhash.index import Index
from centerhash.index.near_pairs import star_groups, view_hits
from centerhash.photos.files import File, FileState, all_files, file_at
from centerhash.photos.pixels import FRAMED, SIDE, Picture, correlations, oriented, picture_of, view_boxes

KINDS = ("same", "near", "similar")
# both selected by `python -m benchmarks.duplicates --choose`, on other photos than those of the documentation
HASH_BITS = 12
CORRELATION = 0.9
SIMILAR_BITS = 10
_MIN_CONTRAST = 3.0  # standard deviation of grey levels; a picture with less has nothing to compare
_ALIGNED_AT_ONCE = 256


@dataclass(frozen=True)
class Group:
    """Hold the paths of duplicates of one kind, the largest file first, and the ids of their photos."""

    kind: str
    paths: tuple[str, ...]
    ids: tuple[str, ...]


class Duplicates(RowSequence[Group]):
    """Hold groups of duplicates: same, near, similar, those of most files first.

    `compared` is the number of files, `skipped` has the reason for each one that was not compared.
    """

    def __init__(self, groups: Iterable[Group], compared: int, skipped: Mapping[str, str]) -> None:
        ranked = sorted(groups, key=lambda group: (KINDS.index(group.kind), -len(group.paths), group.paths))
        super().__init__(ranked)
        self.compared, self.skipped = compared, dict(skipped)

    def of_kind(self, kind: str) -> tuple[Group, ...]:
        """Return the groups of one kind."""
        return tuple(group for group in self if group.kind == kind)

    def to_dict(self) -> dict[str, Any]:
        """Return the output of `centerhash photos duplicates --json`."""
        return {"groups": [{"kind": group.kind, "paths": list(group.paths)} for group in self]}

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(self.of_kind(kind)):,} {kind}" for kind in KINDS)
        return f"Duplicates({counts}; {self.compared:,} files)"


def find_duplicates(index: Index, kind: str | None = None, progress: Progress = silent) -> Duplicates:
    """Return the groups of duplicates among the photos of an index, of one kind only if it is named."""
    if kind is not None and kind not in KINDS:
        raise unknown_name("kind of duplicates", str(kind), KINDS)
    if kind == "similar" and index.general_bits is None:
        raise DataError(
            "the model of this index has no general code, so similar photos cannot be found: create the index with "
            "the built-in model."
        )
    photos, skipped = _photos(index)
    groups = [("same", photo) for photo in photos if len(photo) > 1]
    firsts = sorted((photo[0] for photo in photos), key=lambda file: (-file.size, *_path_order(file)))
    if kind != "same":
        near = _near_groups(firsts, skipped, progress)
        groups += [("near", group) for group in near]
        later = {file for group in near for file in group[1:]}
        firsts = [file for file in firsts if file not in later]
    if kind in (None, "similar") and index.general_bits is not None:
        groups += [("similar", group) for group in _similar_groups(index, firsts, progress)]
    rows = [
        Group(name, tuple(file.path for file in group), tuple(index.ids([file.key for file in group])))
        for name, group in groups
        if kind in (None, name)
    ]
    return Duplicates(rows, sum(map(len, photos)), skipped)


def _path_order(file: File) -> tuple[int, str]:
    return len(file.path), file.path


def _photos(index: Index) -> tuple[list[list[File]], dict[str, str]]:
    """Return the files of each photo that are as they were added, and why others are not compared.

    Several links to one file count once.
    """
    photos: dict[int, list[File]] = {}
    skipped: dict[str, str] = {}
    seen = set[tuple[int, int]]()
    with index.reading() as connection:
        present = [file for file in all_files(connection) if file.state == FileState.PRESENT]
    for file in sorted(present, key=_path_order):
        now = file_at(file.path)
        if now is None or not now.is_unchanged(file):
            what = "is missing" if now is None else "was changed after it was added"
            skipped[file.path] = f"'{file.path}' {what}: add its folder again."
            continue
        status = Path(file.path).stat()
        if (status.st_dev, status.st_ino) not in seen:
            seen.add((status.st_dev, status.st_ino))
            photos.setdefault(file.key, []).append(file)
    return list(photos.values()), skipped


def _near_groups(ranked: Sequence[File], skipped: dict[str, str], progress: Progress) -> list[list[File]]:
    """Return groups of the same photo by the pixels of files, and add those that cannot be read to `skipped`."""
    pictures, broken = read_all(_picture, dict(enumerate(ranked)), "pixels", progress)
    skipped |= {ranked[row].path: str(error) for row, error in broken.items()}
    readable = [ranked[row] for row in sorted(pictures)]
    groups = near_groups([pictures[row] for row in sorted(pictures)], progress)
    return [[readable[at] for at in group] for group in groups]


def _similar_groups(index: Index, ranked: Sequence[File], progress: Progress) -> list[list[File]]:
    """Return groups of files whose general codes are near."""
    row_of = {file.key: row for row, file in enumerate(ranked)}
    pairs = index.near_pairs(SIMILAR_BITS, progress=progress)
    keys = zip(pairs.first.tolist(), pairs.second.tolist(), strict=True)
    linked = _linked((row_of[one], row_of[other]) for one, other in keys if {one, other} <= row_of.keys())
    groups = star_groups(range(len(ranked)), linked.__getitem__)
    return [[ranked[row] for row in sorted(group)] for group in groups]


def _linked(pairs: Iterable[tuple[int, int]]) -> dict[int, set[int]]:
    """Return the rows that each row is paired with."""
    linked = defaultdict[int, set[int]](set)
    for first, second in pairs:
        linked[first].add(second)
        linked[second].add(first)
    return linked


# --- by pixels


class Alignment(NamedTuple):
    """A picture whose hash is near that of a view of another: rows, view, differing bits, correlation of pixels."""

    whole: int
    viewed: int
    view: int
    bits: int
    correlation: float


def _picture(file: File) -> Picture:
    return picture_of(load_image(file.path, at_least=2 * SIDE))


def near_groups(pictures: Sequence[Picture], progress: Progress = silent) -> list[list[int]]:
    """Return the rows of pictures that show the same photo, each group around its first row."""
    by_pixels = defaultdict[bytes, list[int]](list)
    for row, picture in enumerate(pictures):
        by_pixels[picture.grey.tobytes()].append(row)
    equal = {row: rows for rows in by_pixels.values() for row in rows}
    firsts = [rows[0] for rows in by_pixels.values() if pictures[rows[0]].grey.std() >= _MIN_CONTRAST]
    hits = aligned_hits(pictures, firsts, HASH_BITS, progress)
    near = _linked((hit.whole, hit.viewed) for hit in hits if hit.correlation >= CORRELATION)

    def linked(row: int) -> Iterable[int]:
        first = equal[row][0]
        return (other for one in (first, *near[first]) for other in equal[one])

    return [sorted(group) for group in star_groups(range(len(pictures)), linked)]


def aligned_hits(
    pictures: Sequence[Picture], rows: Sequence[int], radius: int, progress: Progress = silent
) -> list[Alignment]:
    """Compare the pictures of `rows` whose hash differs in at most `radius` bits from that of a view of another one."""
    if len(rows) < 2:
        return []
    hits = view_hits(np.stack([pictures[row].views for row in rows]), radius, progress)
    boxes, aligned = view_boxes(), list[Alignment]()
    for start in range(0, len(hits.whole), _ALIGNED_AT_ONCE):
        part = slice(start, start + _ALIGNED_AT_ONCE)
        pairs = [
            (rows[whole], rows[viewed], view, bits)
            for whole, viewed, view, bits in zip(*(column[part].tolist() for column in hits), strict=True)
        ]
        scores = correlations(
            np.stack([pictures[whole].grey for whole, *_ in pairs]),
            np.stack([oriented(pictures[viewed].grey, view) for _, viewed, view, _ in pairs]),
            np.array(
                [pictures[viewed].content if view == FRAMED else boxes[view] for _, viewed, view, _ in pairs]
            ),
        )
        aligned += [Alignment(*pair, score) for pair, score in zip(pairs, scores.tolist(), strict=True)]
        progress("aligned", min(start + _ALIGNED_AT_ONCE, len(hits.whole)), len(hits.whole))
    return aligned
