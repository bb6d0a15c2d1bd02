"""Duplicates: photos that are there more than once, in three kinds of groups.

*same*     equal bytes
*near*     the same photo: encoded again, resized, in gray, brightened, rotated, mirrored, cropped down to 60 % of its
           sides, or in a screenshot; the pixels decide, see `pixels`
*similar*  photos of the same kind of thing, by the general code alone

The first file of a group is the largest one, and every other one is near it. Each kind compares the first files of the
kinds before it only, so a file is the second or a later one of at most one group. No file is changed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from centerhash.core.errors import DataError, unknown_name
from centerhash.core.parallel import read_all
from centerhash.core.progress import Progress, silent
from centerhash.core.rendering import RowSequence
from centerhash.index import Index
from centerhash.index.near_pairs import view_hits
from centerhash.photos.files import File, FileState, all_files, file_at
from centerhash.photos.pixels import FRAMED, Picture, correlations, oriented, picture_of, view_boxes

KINDS = ("same", "near", "similar")
# Both were selected by `python -m benchmarks.duplicates --choose`, on other photos than those of the documentation.
HASH_BITS = 12
CORRELATION = 0.9
SIMILAR_BITS = 10
# A picture with a smaller standard deviation of gray levels has nothing to compare.
_MIN_CONTRAST = 3.0
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
    photos, skipped = _unchanged_photos(index)
    groups = [("same", photo) for photo in photos if len(photo) > 1]
    firsts = sorted((photo[0] for photo in photos), key=lambda file: -file.size)
    if kind != "same":
        near = _near_files(firsts, skipped, progress)
        groups += [("near", group) for group in near]
        later = {file for group in near for file in group[1:]}
        firsts = [file for file in firsts if file not in later]
    if kind in (None, "similar") and index.general_bits is not None:
        groups += [("similar", group) for group in _similar_files(index, firsts, progress)]
    rows = [
        Group(name, tuple(file.path for file in group), tuple(index.ids([file.key for file in group])))
        for name, group in groups
        if kind in (None, name)
    ]
    return Duplicates(rows, sum(map(len, photos)), skipped)


def _unchanged_photos(index: Index) -> tuple[list[list[File]], dict[str, str]]:
    """Return the unchanged files of each photo, and the reason for each file that is not compared, by path.

    Short paths come first. Several links to one file count once.
    """
    photos: dict[int, list[File]] = {}
    skipped: dict[str, str] = {}
    seen = set[tuple[int, int]]()
    with index.reading() as connection:
        present = [file for file in all_files(connection) if file.state == FileState.PRESENT]
    for file in sorted(present, key=lambda file: (len(file.path), file.path)):
        current = file_at(file.path)
        if current is None or not current.is_unchanged(file):
            reason = "is missing" if current is None else "was changed after it was added"
            skipped[file.path] = f"'{file.path}' {reason}: add its folder again."
            continue
        status = Path(file.path).stat()
        if (status.st_dev, status.st_ino) not in seen:
            seen.add((status.st_dev, status.st_ino))
            photos.setdefault(file.key, []).append(file)
    return list(photos.values()), skipped


def _near_files(files: Sequence[File], skipped: dict[str, str], progress: Progress) -> list[list[File]]:
    """Return groups of the same photo by the pixels of files, and add those that cannot be read to `skipped`."""
    paths = {row: file.path for row, file in enumerate(files)}
    pictures, broken = read_all(picture_of, paths, "pixels", progress)
    skipped |= {paths[row]: str(error) for row, error in broken.items()}
    readable = sorted(pictures)
    groups = near_groups([pictures[row] for row in readable], progress)
    return [[files[readable[number]] for number in group] for group in groups]


def _similar_files(index: Index, files: Sequence[File], progress: Progress) -> list[list[File]]:
    """Return groups of files whose general codes are near."""
    row_of = {file.key: row for row, file in enumerate(files)}
    pairs = index.near_pairs(SIMILAR_BITS, progress=progress)
    keys = zip(pairs.first.tolist(), pairs.second.tolist(), strict=True)
    rows = [(row_of[first], row_of[second]) for first, second in keys if {first, second} <= row_of.keys()]
    groups = star_groups({row: [row] for row in range(len(files))}, rows)
    return [[files[row] for row in group] for group in groups]


def star_groups(members: Mapping[int, Sequence[int]], pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Group nodes, best first, each group around its best node; return the rows of the `members` of each group.

    Each node in turn forms a group with all nodes that it is paired with and that have no group yet. A chain of small
    steps therefore does not join what is far apart, and no two best nodes are paired. Groups of one row are omitted.
    """
    linked = defaultdict[int, set[int]](set)
    for first, second in pairs:
        linked[first].add(second)
        linked[second].add(first)
    ungrouped, groups = dict(members), list[list[int]]()
    for node in members:
        if node in ungrouped:
            rows = chain.from_iterable(ungrouped.pop(other, ()) for other in (node, *linked[node]))
            groups.append(sorted(rows))
    return [group for group in groups if len(group) > 1]


class Alignment(NamedTuple):
    """A picture whose hash is near that of a view of another: rows, view, differing bits, correlation of pixels."""

    whole: int
    viewed: int
    view: int
    bits: int
    correlation: float


def near_groups(pictures: Sequence[Picture], progress: Progress = silent) -> list[list[int]]:
    """Return the rows of pictures that show the same photo, each group around its first row."""
    by_pixels = defaultdict[bytes, list[int]](list)
    for row, picture in enumerate(pictures):
        by_pixels[picture.gray.tobytes()].append(row)
    equal = {rows[0]: rows for rows in by_pixels.values()}
    compared = [row for row in equal if pictures[row].gray.std() >= _MIN_CONTRAST]
    hits = aligned_hits(pictures, compared, HASH_BITS, progress)
    return star_groups(equal, [(hit.whole, hit.viewed) for hit in hits if hit.correlation >= CORRELATION])


def aligned_hits(
    pictures: Sequence[Picture], rows: Sequence[int], radius: int, progress: Progress = silent
) -> list[Alignment]:
    """Compare the pictures of `rows` whose hash differs in at most `radius` bits from that of a view of another one."""
    if len(rows) < 2:
        return []
    hits = view_hits(np.stack([pictures[row].views for row in rows]), radius, progress)
    boxes, aligned = view_boxes(), list[Alignment]()
    for start in range(0, len(hits.whole), _ALIGNED_AT_ONCE):
        batch = slice(start, start + _ALIGNED_AT_ONCE)
        pairs = [
            (rows[whole], rows[viewed], view, bits)
            for whole, viewed, view, bits in zip(*(column[batch].tolist() for column in hits), strict=True)
        ]
        parts = [pictures[viewed].content if view == FRAMED else boxes[view] for _, viewed, view, _ in pairs]
        scores = correlations(
            np.stack([pictures[whole].gray for whole, *_ in pairs]),
            np.stack([oriented(pictures[viewed].gray, view) for _, viewed, view, _ in pairs]),
            np.array(parts),
        )
        aligned += [Alignment(*pair, score) for pair, score in zip(pairs, scores.tolist(), strict=True)]
        progress("aligned", min(start + _ALIGNED_AT_ONCE, len(hits.whole)), len(hits.whole))
    return aligned
