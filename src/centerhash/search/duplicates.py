"""Duplicates: images that are there more than once, in three kinds of groups, and which of each to keep.

*same*     equal bytes
*near*     the same photo: encoded again, resized, in grey, brightened, rotated, mirrored, cropped down to 60 % of its
           sides, or in a screenshot; the pixels decide, see `pixels`
*similar*  photos of the same kind of thing, by the visual code alone

Each kind compares what the kinds before it would keep, so a file is proposed for removal at most once. Every image of a
group is near the one to keep. A file is in a group once, whatever links lead to it. Nothing is ever deleted here;
`moving` moves files and moves them back.
"""

from __future__ import annotations

import csv
import io
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rich.filesize import decimal

from centerhash.codes import Packed, pack
from centerhash.core.errors import ConfigError, DataError, ImageError, unknown_name
from centerhash.core.files import write_text
from centerhash.core.parallel import batches_ahead, read_all
from centerhash.core.progress import Progress, resolve_progress, silent
from centerhash.core.rendering import Listed, templates_of, to_frame
from centerhash.data.images import (
    Header,
    content_key,
    load_with_header,
    read_header,
    squash_and_crop,
)
from centerhash.data.layouts.parquet import is_stored_image
from centerhash.data.listing import list_images
from centerhash.model.base import Model
from centerhash.model.loading import load
from centerhash.search.items import VISUAL_BITS, Item
from centerhash.search.keepers import Keeping, RealFile, deciding_rule, file_at, without_moved
from centerhash.search.moving import Wanted
from centerhash.search.near_pairs import code_pairs, star_groups, view_hits
from centerhash.search.pixels import (
    FRAMED,
    ORIENTATIONS,
    SIDE,
    Picture,
    correlations,
    oriented,
    picture_of,
    view_boxes,
)
from centerhash.search.results import thumbnail
from centerhash.search.uploads import ID_DIGITS

if TYPE_CHECKING:
    from centerhash.search.index import Index

KINDS = ("same", "near", "similar")
MOVED = ("same", "near")  # kinds whose others may be moved without looking at each
# chosen on other photos than those of docs/how-to/duplicates.md: `python -m benchmarks.duplicates --choose`
HASH_BITS = 12  # of 64 that the hashes of candidates may differ in
CORRELATION = 0.9  # of aligned pixels and their details, from which on two photos are one
SIMILAR = 10  # visual bits; narrow, as nothing confirms them
_FLATTEST = 3.0  # standard deviation of grey levels; a picture with less has nothing to compare
_ALIGNED = 256  # pairs at once
_BATCH = 32  # images per pass through the network


@dataclass(frozen=True)
class Photo:
    """Describe one image of a group; sizes are None if its file is missing.

    `correlation` and `bits` compare its pixels and its visual code with those of the image to keep. `change` is the
    edit between them, such as "rotated" or "cropped".
    """

    id: str | None  # in an index
    path: str | None
    width: int | None = None
    height: int | None = None
    bytes: int | None = None
    exif: bool | None = None
    taken: str | None = None
    bits: int | None = None
    correlation: float | None = None
    change: str | None = None
    modified: int | None = field(default=None, repr=False)  # of the file when it was compared, in nanoseconds


@dataclass(frozen=True)
class Group:
    """Hold duplicates of one kind: the image to keep, the rule that decided, and the others, best first."""

    kind: str
    keep: Photo
    others: tuple[Photo, ...]
    rule: str

    @property
    def photos(self) -> tuple[Photo, ...]:
        """Return all images, the one to keep first."""
        return (self.keep, *self.others)


class Duplicates(Listed[Group]):
    """Hold groups of duplicates: same, near, similar, the largest first.

    `looked_at` is the number of images, and `root` the folder that contains them. `skipped` are the reasons why some
    could not be read, and `notes` list what was not compared.
    """

    def __init__(
        self,
        groups: Iterable[Group],
        looked_at: int,
        skipped: Mapping[str, str],
        notes: Sequence[str] = (),
        root: Path | None = None,
    ) -> None:
        super().__init__(sorted(groups, key=_group_order))
        self.looked_at, self.skipped, self.notes, self.root = looked_at, dict(skipped), tuple(notes), root

    def of_kind(self, kind: str) -> tuple[Group, ...]:
        """Return the groups of one kind."""
        return tuple(group for group in self if group.kind == kind)

    def wanted(self, kind: str | None = None) -> list[Wanted]:
        """Return the files to move: all that are not kept, of one kind or of those that are the same photo."""
        kinds = MOVED if kind is None else (kind,)
        return [
            wanted_file(group.keep, one)
            for group in self
            if group.kind in kinds
            for one in group.others
            if one.path is not None and group.keep.path is not None and one.modified is not None
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the output of `centerhash duplicates --json`."""
        return {
            "images": self.looked_at,
            "groups": [
                {
                    "kind": group.kind,
                    "rule": group.rule,
                    "keep": asdict(group.keep),
                    "others": [asdict(one) for one in group.others],
                }
                for group in self
            ],
            "skipped": self.skipped,
            "notes": list(self.notes),
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per image: group, kind, rule, keep, and the fields of `Photo`."""
        return [
            {
                "group": number,
                "kind": group.kind,
                "rule": group.rule,
                "keep": one is group.keep,
                **asdict(one),
            }
            for number, group in enumerate(self)
            for one in group.photos
        ]

    def to_pandas(self) -> Any:
        """Return the rows as a DataFrame."""
        return to_frame(self.rows())

    def write_csv(self, path: str | Path) -> None:
        """Write the rows as a table that spreadsheets open."""
        stream = io.StringIO(newline="")
        names = ["group", "kind", "rule", "keep", *Photo.__dataclass_fields__]
        table = csv.DictWriter(stream, names)
        table.writeheader()
        table.writerows(self.rows())
        write_text(Path(path), stream.getvalue())

    def write_page(self, path: str | Path) -> None:
        """Write an HTML page with all thumbnails in one file."""
        write_page(self, Path(path))

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(self.of_kind(kind)):,} {kind}" for kind in KINDS)
        return f"Duplicates({counts}; {self.looked_at:,} images)"


def _group_order(group: Group) -> tuple[int, int, str]:
    return KINDS.index(group.kind), -len(group.others), group.keep.path or group.keep.id or ""


def wanted_file(keep: Photo, other: Photo) -> Wanted:
    """Return an image of a group as a file to move."""
    assert keep.path is not None
    assert other.path is not None
    return Wanted(Path(other.path), other.bytes or 0, other.modified or 0, Path(keep.path), other.id)


# --- the three kinds


@dataclass(frozen=True)
class Content:
    """An image: its id in an index, and the files of exactly these bytes; none if they are gone."""

    id: str | None
    files: Sequence[RealFile]


@dataclass
class Looks:
    """What is known of N images: pictures and headers by row, and visual codes (N, 16) of the rows that have one."""

    contents: Sequence[Content]
    pictures: dict[int, Picture] = field(default_factory=dict)
    headers: dict[int, Header] = field(default_factory=dict)
    visual: dict[int, Packed] = field(default_factory=dict)


class Link(NamedTuple):
    """How near two images are."""

    correlation: float | None = None
    change: str | None = None
    bits: int | None = None


def find_duplicates(
    looks: Looks, keeping: Keeping, *, kind: str | None = None, progress: Progress = silent
) -> list[Group]:
    """Return the groups among images; of one kind only if it is named."""
    finder = _Finder(looks, keeping)
    finder.same()
    if kind != "same":
        finder.near(progress)
    if kind in (None, "similar"):
        finder.similar(progress)
    return [group for group in finder.groups if kind in (None, group.kind)]


def check_kind(kind: str | None) -> None:
    """Raise ConfigError for a kind that there is not."""
    if kind is not None and kind not in KINDS:
        raise unknown_name("kind of duplicates", str(kind), KINDS)


class _Finder:
    """Goes from kind to kind; `left` are the rows that those before would keep."""

    def __init__(self, looks: Looks, keeping: Keeping) -> None:
        self.looks, self.keeping = looks, keeping
        self.left = list(range(len(looks.contents)))
        self.groups: list[Group] = []

    def same(self) -> None:
        """Groups of files with equal bytes."""
        for row, content in enumerate(self.looks.contents):
            if len(content.files) > 1:
                header = self.looks.headers.get(row) or _header(content.files[0].path)
                files = sorted(content.files, key=lambda file: self._key(file, row))
                keep, *others = (self._photo(row, file, header) for file in files)
                rule = deciding_rule(*self._keys([(row, file) for file in files]))
                self.groups.append(Group("same", keep, tuple(others), rule))

    def near(self, progress: Progress) -> None:
        """Groups of the same photo, by their pixels."""
        rows = [row for row in self.left if row in self.looks.pictures]
        self._link("near", rows, *near_links([self.looks.pictures[row] for row in rows], progress))

    def similar(self, progress: Progress) -> None:
        """Groups whose visual codes are very near."""
        rows = [row for row in self.left if row in self.looks.visual]
        self._link("similar", rows, *similar_links([self.looks.visual[row] for row in rows], progress))

    def _link(
        self, kind: str, rows: Sequence[int], twins: Sequence[int], links: Mapping[tuple[int, int], Link]
    ) -> None:
        """Note the groups of rows; what is not kept is left out of what follows."""
        order = sorted(range(len(rows)), key=lambda place: self._key(self._file(rows[place]), rows[place]))
        found = star_groups(order, _neighbors(twins, links))
        for group in found:
            best = group[0]
            others = sorted(group[1:], key=order.index) if len(group) < 9 else group[1:]
            keys = self._keys([(rows[place], self._file(rows[place])) for place in [best, *others]])
            photos = [
                self._photo(
                    rows[place],
                    self._file(rows[place]),
                    self.looks.headers.get(rows[place]),
                    _link_of(twins[best], twins[place], links, kind),
                )
                for place in others
            ]
            keep = self._photo(rows[best], self._file(rows[best]), self.looks.headers.get(rows[best]))
            self.groups.append(Group(kind, keep, tuple(photos), deciding_rule(*keys)))
        gone = {rows[place] for group in found for place in group[1:]}
        self.left = [row for row in self.left if row not in gone]

    def _file(self, row: int) -> RealFile | None:
        """The file of an image that would be kept."""
        return min(self.looks.contents[row].files, key=lambda file: self._key(file, row), default=None)

    def _key(self, file: RealFile | None, row: int) -> tuple[Any, ...]:
        name = (self.looks.contents[row].id or "") if file is None else str(file.path)
        return self.keeping.key(file, name, self.looks.headers.get(row))

    def _keys(
        self, files: Sequence[tuple[int, RealFile | None]]
    ) -> tuple[tuple[Any, ...], list[tuple[Any, ...]]]:
        first, *others = (self._key(file, row) for row, file in files)
        return first, others

    def _photo(
        self, row: int, file: RealFile | None, header: Header | None, link: Link | None = None
    ) -> Photo:
        facts: dict[str, Any] = {}
        if header is not None:
            facts = {
                "width": header.width,
                "height": header.height,
                "exif": header.exif,
                "taken": _date(header),
            }
        if file is not None:
            facts |= {"path": str(file.path), "bytes": file.bytes, "modified": file.modified}
        return Photo(
            **{"id": self.looks.contents[row].id, "path": None, **facts, **(link or Link())._asdict()}
        )


def _neighbors(twins: Sequence[int], links: Mapping[tuple[int, int], Link]) -> Callable[[int], Iterable[int]]:
    """Return what gives the rows linked to a row: its twins, and those of the rows that its first twin is linked to."""
    members: dict[int, list[int]] = {}
    for row, first in enumerate(twins):
        members.setdefault(first, []).append(row)
    linked: dict[int, list[int]] = {}
    for one, other in links:
        linked.setdefault(one, []).append(other)
        linked.setdefault(other, []).append(one)

    def neighbors(row: int) -> Iterable[int]:
        return (other for first in [twins[row], *linked.get(twins[row], ())] for other in members[first])

    return neighbors


def _link_of(one: int, other: int, links: Mapping[tuple[int, int], Link], kind: str) -> Link:
    if one == other:
        return Link(correlation=1.0) if kind == "near" else Link(bits=0)
    return links[min(one, other), max(one, other)]


def near_links(
    pictures: Sequence[Picture], progress: Progress = silent
) -> tuple[list[int], dict[tuple[int, int], Link]]:
    """Return the first equal picture of each, and how near others are that show the same photo, by rows (low, high)."""
    twins = _first_equal([picture.grey.tobytes() for picture in pictures])
    firsts = [
        row for row, first in enumerate(twins) if row == first and pictures[row].grey.std() >= _FLATTEST
    ]
    if len(firsts) < 2:
        return twins, {}
    found = aligned_hits(pictures, firsts, HASH_BITS, progress)
    return twins, links_of(found, CORRELATION)


class Aligned(NamedTuple):
    """A picture whose hash is near that of a view of another one: rows, view, bits that differ, correlation of pixels."""

    whole: int
    viewed: int
    view: int
    bits: int
    score: float


def aligned_hits(
    pictures: Sequence[Picture], rows: Sequence[int], most: int, progress: Progress = silent
) -> list[Aligned]:
    """Compare the pictures of `rows` whose hash differs in at most `most` bits from that of a view of another one."""
    hits = view_hits(np.stack([pictures[row].views for row in rows]), most, progress)
    boxes, found = view_boxes(), list[Aligned]()
    for start in range(0, len(hits.whole), _ALIGNED):
        part = slice(start, start + _ALIGNED)
        pairs = [
            (rows[whole], rows[viewed], view, bits)
            for whole, viewed, view, bits in zip(*(column[part].tolist() for column in hits), strict=True)
        ]
        scores = correlations(
            np.stack([pictures[whole].grey for whole, *_ in pairs]),
            np.stack(
                [
                    oriented(pictures[viewed].grey, view) if view < ORIENTATIONS else pictures[viewed].grey
                    for _, viewed, view, _ in pairs
                ]
            ),
            np.array(
                [pictures[viewed].content if view == FRAMED else boxes[view] for _, viewed, view, _ in pairs]
            ),
        )
        found += [Aligned(*pair, score) for pair, score in zip(pairs, scores.tolist(), strict=True)]
        progress("aligned", min(start + _ALIGNED, len(hits.whole)), len(hits.whole))
    return found


def links_of(hits: Iterable[Aligned], least: float) -> dict[tuple[int, int], Link]:
    """Return the links by rows (low, high) of pictures that correlate enough, each by its best view."""
    links = dict[tuple[int, int], Link]()
    for whole, viewed, view, _, score in hits:
        pair = min(whole, viewed), max(whole, viewed)
        known = links.get(pair)
        if score >= least and (known is None or score > (known.correlation or 0)):
            links[pair] = Link(round(score, 3), change_of(view))
    return links


def change_of(view: int) -> str | None:
    """Name what a view shows of a photo; None for the whole of it."""
    names = (None, "mirrored", "mirrored", "rotated", "rotated and mirrored", "rotated", "rotated")
    return (*names, "rotated and mirrored", "framed")[view] if view <= FRAMED else "cropped"


def similar_links(
    codes: Sequence[Packed], progress: Progress = silent
) -> tuple[list[int], dict[tuple[int, int], Link]]:
    """As `near_links`, by visual codes (16,)."""
    twins = _first_equal([code.tobytes() for code in codes])
    firsts = [row for row, first in enumerate(twins) if row == first]
    if len(firsts) < 2:
        return twins, {}
    pairs = code_pairs(np.stack([codes[row] for row in firsts]), SIMILAR, progress)
    found = zip(pairs.first.tolist(), pairs.second.tolist(), pairs.bits.tolist(), strict=True)
    return twins, {(firsts[one], firsts[other]): Link(bits=bits) for one, other, bits in found}


def _first_equal(values: Sequence[bytes]) -> list[int]:
    """Return the first row of each value: equal ones are compared once, or a thousand would be half a million pairs."""
    first: dict[bytes, int] = {}
    return [first.setdefault(value, row) for row, value in enumerate(values)]


def _header(path: Path) -> Header | None:
    """What the header of an image tells; None if it cannot be read."""
    try:
        return read_header(path)
    except ImageError:
        return None


def _date(header: Header) -> str | None:
    if header.taken is None:
        return None
    return datetime.fromtimestamp(header.taken, UTC).strftime("%Y-%m-%d %H:%M:%S")


# --- of image files, or of an index


def folder_duplicates(
    images: str | Path | Sequence[str | Path],
    *,
    kind: str | None = None,
    prefer: str | Path | Sequence[str | Path] = (),
    model: Model | str | Path = "coco",
    device: str = "auto",
    engine: str = "auto",
    progress: bool | Progress = True,
) -> Duplicates:
    """Find same and near duplicates among image files: files, folders, patterns; similar ones only as the `kind`.

    Similar ones are compared by the visual codes of `model`, whose network takes longer than all else. Files below the
    folders in `prefer` are kept before all others.
    """
    check_kind(kind)
    keeping = Keeping(prefer)
    listed = [images] if isinstance(images, str | Path) else list(images)
    paths, moved = without_moved(list_images(listed))
    files = keeping.unique([file_at(path) or RealFile(path) for path in paths])
    network = _Network(model, device, engine) if kind == "similar" else None
    with resolve_progress(progress) as report:
        contents, skipped = equal_contents(files, report)
        looks = Looks(contents)
        if kind != "same":
            broken = look_at(looks, report, network)
            skipped |= {
                str(file.path): error for row, error in broken.items() for file in contents[row].files
            }
            left = [row for row in range(len(contents)) if row not in broken]
            looks = Looks([contents[row] for row in left], *_renumbered(looks, left))
        count = sum(len(content.files) for content in looks.contents)
        if count < 2:
            first = f"; of the others: {next(iter(skipped.values()))}" if skipped else "."
            raise DataError(
                f"{count} of {len(files)} images in '{images}' can be read, and duplicates need two{first}"
            )
        groups = find_duplicates(looks, keeping, kind=kind, progress=report)
    whole = Path(listed[0]) if len(listed) == 1 and Path(listed[0]).is_dir() else None
    root = whole or common_root([file.path for file in files])
    return Duplicates(groups, count, skipped, _notes(moved, len(paths) - len(files)), root)


def index_duplicates(
    index: Index,
    *,
    kind: str | None = None,
    prefer: str | Path | Sequence[str | Path] = (),
    progress: bool | Progress = True,
) -> Duplicates:
    """Find duplicates among the images of an index, by their files and the visual codes that the index stores."""
    check_kind(kind)
    keeping = Keeping(prefer)
    items = list(index.items())
    if len(items) < 2:
        raise DataError(
            f"the index holds {len(items)} items: two are needed to be duplicates. Add images first."
        )
    visual = {row: item.visual for row, item in enumerate(items) if item.visual is not None}
    if kind == "similar" and not visual:
        raise DataError(
            "no item of the index has a visual code: its model is of an earlier version, or only codes were imported. "
            "Name the folder of the images instead, or create the index again."
        )
    with resolve_progress(progress) as report:
        files, moved, links = _indexed_files(index, items, keeping)
        contents = _checked_contents([item.id for item in items], files, report)
        edited = {row for row, each in enumerate(files) if each and not contents[row].files}
        left = [row for row in range(len(items)) if row not in moved | edited]
        looks = Looks([contents[row] for row in left])
        looks.visual = {new: visual[old] for new, old in enumerate(left) if old in visual}
        skipped: dict[str, str] = {}
        notes = _notes(len(moved), links)
        if edited:
            notes.append(f"{len(edited):,} items are of files that were edited since, and were not compared.")
        if kind != "same":
            broken = look_at(looks, report)
            skipped = {str(looks.contents[row].files[0].path): error for row, error in broken.items()}
            if unseen := len(left) - len(looks.pictures):
                notes.append(
                    f"{unseen:,} of {len(left):,} images have no readable file any more, so their pixels cannot be "
                    "compared: they were compared by visual code alone."
                )
        groups = find_duplicates(looks, keeping, kind=kind, progress=report)
    every = [file for content in looks.contents for file in content.files]
    root = common_root([file.path for file in every if file.modified is not None])
    return Duplicates(
        groups, len(every) + sum(not content.files for content in looks.contents), skipped, notes, root
    )


def _notes(moved: int, links: int) -> list[str]:
    found = []
    if moved:
        found.append(f"{moved:,} images in folders of moved duplicates were not compared.")
    if links:
        found.append(
            f"{links:,} paths are links to images that other paths lead to as well; each counts once."
        )
    return found


def _renumbered(looks: Looks, rows: Sequence[int]) -> list[dict[int, Any]]:
    """What is known of some rows, by their new numbers."""
    columns: tuple[dict[int, Any], ...] = (looks.pictures, looks.headers, looks.visual)
    return [{new: column[old] for new, old in enumerate(rows) if old in column} for column in columns]


def equal_contents(
    files: Sequence[RealFile], progress: Progress = silent
) -> tuple[list[Content], dict[str, str]]:
    """Group files by their bytes, and return why others cannot be read; only files of equal size are read."""
    sizes = Counter(file.bytes for file in files)
    doubtful = {row: file.path for row, file in enumerate(files) if file.bytes and sizes[file.bytes] > 1}
    keys, broken = read_all(content_key, doubtful, "contents", progress)
    found: dict[object, list[RealFile]] = {}
    for row, file in enumerate(files):
        if row not in broken:
            found.setdefault(keys.get(row, row), []).append(file)
    skipped = {str(files[row].path): str(error) for row, error in broken.items()}
    return [Content(None, tuple(each)) for each in found.values()], skipped


def _indexed_files(
    index: Index, items: Sequence[Item], keeping: Keeping
) -> tuple[list[list[RealFile]], set[int], int]:
    """Return the files of each item, the rows of items that were moved, and how many paths lead to the same file."""
    found: list[list[RealFile]] = []
    moved: set[int] = set()
    links = 0
    for row, item in enumerate(items):
        paths = {path: name for name in item.paths if (path := index.uploads.path(name)) is not None}
        kept, gone = without_moved(paths)
        files = []
        for path in kept:
            file = file_at(path) or (RealFile(path) if is_stored_image(path) else None)
            if file is not None:
                upload = index.uploads.holds(paths[path])  # it stays in the index
                files.append(replace(file, modified=None, apart=True) if upload else file)
        if gone and not files:
            moved.add(row)
        found.append(keeping.unique(files))
        links += len(files) - len(found[-1])
    return found, moved, links


def _checked_contents(
    ids: Sequence[str], files: Sequence[Sequence[RealFile]], progress: Progress
) -> list[Content]:
    """Return the items of an index with the files that have their content.

    A file that was edited belongs to the item of its new content, and no longer to that of the old one.
    """
    claims = Counter(file.real for each in files for file in each if file.real is not None)
    doubtful = [
        (row, file)
        for row, each in enumerate(files)
        for file in each
        if file.real is not None and (len(each) > 1 or claims[file.real] > 1)
    ]
    paths = {place: file.path for place, (_, file) in enumerate(doubtful)}
    keys, _ = read_all(content_key, paths, "contents", progress)
    wrong = {
        (row, file.path)
        for place, (row, file) in enumerate(doubtful)
        if keys.get(place, "")[:ID_DIGITS] != ids[row]
    }
    return [
        Content(id, tuple(file for file in each if (row, file.path) not in wrong))
        for row, (id, each) in enumerate(zip(ids, files, strict=True))
    ]


# --- reading


def look_at(looks: Looks, progress: Progress, network: _Network | None = None) -> dict[int, str]:
    """Read the picture and the metadata of every image that has a file, once; return why others cannot be read.

    With a network, their visual codes are computed from the same pixels.
    """
    paths = {row: content.files[0].path for row, content in enumerate(looks.contents) if content.files}
    broken: dict[int, str] = {}
    rows = list(paths)
    batches = [rows[start : start + _BATCH] for start in range(0, len(rows), _BATCH)]

    def read(row: int) -> tuple[Picture, Header, NDArray[np.uint8] | None]:
        image, header = load_with_header(
            paths[row], at_least=2 * SIDE if network is None else network.at_least
        )
        return picture_of(image), header, None if network is None else network.pixels(image)

    for done, (batch, futures) in enumerate(zip(batches, batches_ahead(read, batches), strict=True), 1):
        pixels: dict[int, NDArray[np.uint8]] = {}
        for row, future in zip(batch, futures, strict=True):
            try:
                looks.pictures[row], looks.headers[row], own = future.result()
            except ImageError as error:
                broken[row] = str(error)
                continue
            if own is not None:
                pixels[row] = own
        if network is not None and pixels:
            codes = network.codes(np.stack(list(pixels.values())))
            looks.visual |= dict(zip(pixels, codes, strict=True))
        progress("pixels", min(done * _BATCH, len(rows)), len(rows))
    return broken


class _Network:
    """What computes visual codes from the pixels of images."""

    def __init__(self, model: Model | str | Path, device: str, engine: str) -> None:
        self._model = model if isinstance(model, Model) else load(model)
        if self._model.visual_bits != VISUAL_BITS:
            raise ConfigError(
                f"similar photos need a model with a visual code of {VISUAL_BITS} bits, and this one has "
                f'{self._model.visual_bits or "none"}: use the built-in model "coco", or train again.'
            )
        self._encoder = self._model.encoder(device=device, engine=engine)
        self.at_least = 2 * self._encoder.backbone.resize

    def pixels(self, image: Image.Image) -> NDArray[np.uint8]:
        """What the network reads of an image."""
        backbone = self._encoder.backbone
        return squash_and_crop(image, backbone.resize, backbone.crop, backbone.interpolation)

    def codes(self, pixels: NDArray[np.uint8]) -> Packed:
        """Visual codes (n, 16) of pixels (n, crop, crop, 3)."""
        return pack(self._model.visual_codes(self._encoder.engine.features(pixels)))


# --- the page


MOST_GROUPS = 500  # of each kind; a page with more thumbnails is too large to open
MEANINGS = {
    "same": "Equal files: every byte is the same.",
    "near": "The same photo: encoded again, resized, brightened, rotated, mirrored, cropped, in grey, in a screenshot.",
    "similar": "Photos that look alike. They are different photos: look before you remove one.",
}


def write_page(found: Duplicates, path: Path) -> None:
    """Write the page of the groups that were found."""
    templates = templates_of("centerhash.search")
    page = templates.get_template("duplicates.html").render(
        found=found,
        kinds=[(kind, text, found.of_kind(kind)) for kind, text in MEANINGS.items()],
        most=MOST_GROUPS,
        shown=_shown,
        size=decimal,
        folder=common_folder([one.path for group in found for one in group.photos if one.path is not None]),
    )
    write_text(path, page)


def common_root(paths: Sequence[Path]) -> Path | None:
    """Return the deepest folder that holds all files; None if there is none."""
    parents = {path.parent.resolve() for path in paths}
    try:
        return Path(os.path.commonpath(parents)) if parents else None
    except ValueError:  # on two drives of Windows
        return None


def common_folder(paths: Sequence[str]) -> str:
    """The folder that all paths lie in, with its separator, so that names need not repeat it; "" where there is none."""
    parents = [Path(path).parents for path in paths]
    shared = set.intersection(*(set(map(str, each)) for each in parents)) if parents else set()
    longest = max(shared, key=len, default="")
    return "" if longest in ("", ".", "/") else str(Path(longest) / "x")[:-1]


def _shown(photo: Photo) -> str | None:
    """The thumbnail as an address that holds its own data; None where there is no readable file."""
    if photo.path is not None:
        with suppress(ImageError):
            return thumbnail(Path(photo.path), 240)
    return None
