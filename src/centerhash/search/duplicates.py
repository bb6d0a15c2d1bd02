"""Duplicates: images that are there more than once, in three kinds of groups, and which of each to keep.

*same*     equal bytes
*near*     the same photo, encoded again, resized, brightened, cropped a little or mirrored: the visual codes are near,
           and the pixels confirm it
*similar*  photos of the same kind of thing, by the visual code alone

Each kind looks at what the kinds before it would keep, so a file is proposed for removal at most once. Every two images
of a group are near each other, not only neighbours in a chain. Nothing is ever deleted here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps
from rich.filesize import decimal

from centerhash.codes import Packed, check_packed, pack
from centerhash.core.errors import ConfigError, DataError, ImageError, InputError, unknown_name
from centerhash.core.files import write_text
from centerhash.core.parallel import read_all
from centerhash.core.progress import Progress, resolve_progress, silent
from centerhash.core.rendering import Listed, templates_of, to_frame
from centerhash.data.images import check_image, content_key, load_image
from centerhash.data.listing import list_images
from centerhash.model.base import Model
from centerhash.model.loading import load
from centerhash.search.items import VISUAL_BITS
from centerhash.search.near_pairs import complete_link_groups, pixel_distances, visual_distances
from centerhash.search.results import thumbnail
from centerhash.search.uploads import ID_DIGITS

if TYPE_CHECKING:
    from centerhash.search.index import Index

KINDS = ("same", "near", "similar")
# chosen on other photos than those of docs/how-to/duplicates.md: `python -m benchmarks.duplicates --choose`
NEAR = 40  # visual bits; wide, as the pixels decide
PIXELS = 10  # bits of 64 between pixel hashes
SIMILAR = 12  # visual bits; narrow, as nothing confirms them


@dataclass(frozen=True)
class Photo:
    """Describe one image of a group; sizes are None if its file is missing.

    `bits` and `pixels` are the distances of its visual code and its pixel hash to those of the image to keep.
    """

    id: str
    path: str | None
    width: int | None = None
    height: int | None = None
    bytes: int | None = None
    bits: int | None = None
    pixels: int | None = None


@dataclass(frozen=True)
class Group:
    """Hold duplicates of one kind: the image to keep, and the others, best first."""

    kind: str
    keep: Photo
    others: tuple[Photo, ...]

    @property
    def photos(self) -> tuple[Photo, ...]:
        """Return all images, the one to keep first."""
        return (self.keep, *self.others)


class Duplicates(Listed[Group]):
    """Hold groups of duplicates: same, near, similar, the largest first.

    `looked_at` is the number of images, `skipped` the reasons why some could not be read, `notes` what was not compared.
    """

    def __init__(
        self, groups: Iterable[Group], looked_at: int, skipped: Mapping[str, str], notes: Sequence[str] = ()
    ) -> None:
        super().__init__(sorted(groups, key=lambda group: (KINDS.index(group.kind), -len(group.others))))
        self.looked_at, self.skipped, self.notes = looked_at, dict(skipped), tuple(notes)

    def of_kind(self, kind: str) -> tuple[Group, ...]:
        """Return the groups of one kind."""
        return tuple(group for group in self if group.kind == kind)

    def to_dict(self) -> dict[str, Any]:
        """Return the output of `centerhash duplicates --json`."""
        return {
            "images": self.looked_at,
            "groups": [
                {
                    "kind": group.kind,
                    "keep": asdict(group.keep),
                    "others": [asdict(one) for one in group.others],
                }
                for group in self
            ],
            "skipped": self.skipped,
            "notes": list(self.notes),
        }

    def to_pandas(self) -> Any:
        """Return a DataFrame with a row per image: group, kind, keep, and the fields of `Photo`."""
        rows = (
            {"group": number, "kind": group.kind, "keep": one is group.keep, **asdict(one)}
            for number, group in enumerate(self)
            for one in group.photos
        )
        return to_frame(list(rows))

    def write_page(self, path: str | Path) -> None:
        """Write an HTML page with all thumbnails in one file."""
        write_page(self, Path(path))

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(self.of_kind(kind)):,} {kind}" for kind in KINDS)
        return f"Duplicates({counts}; {self.looked_at:,} images)"


# --- the three kinds


@dataclass(frozen=True)
class Looks:
    """What the stages know of N images: ids by content, paths, visual codes (N, 16), and which rows have one."""

    ids: Sequence[str]
    paths: Sequence[Path | None]
    visual: Packed
    coded: NDArray[np.bool_]  # (N,)


def same_groups(ids: Sequence[str]) -> list[list[int]]:
    """Rows that share their content, in the order of their first rows."""
    rows: dict[str, list[int]] = {}
    for row, id in enumerate(ids):
        rows.setdefault(id, []).append(row)
    return [group for group in rows.values() if len(group) > 1]


def find_duplicates(
    looks: Looks, *, near: int | None = None, kind: str | None = None, progress: Progress = silent
) -> Duplicates:
    """The groups among images; `kind` asks for one kind only, `near` is how many visual bits near ones may differ in."""
    radius = check_options(near, kind)
    check_packed(looks.visual, VISUAL_BITS, "visual codes")
    finder = _Finder(looks)
    finder.keep("same", same_groups(looks.ids))
    if kind != "same":
        finder.near(radius, progress)
    if kind in (None, "similar"):
        finder.similar(progress)
    groups = [group for group in finder.groups if kind in (None, group.kind)]
    return Duplicates(groups, len(looks.ids), finder.skipped, finder.notes)


def check_options(near: int | None, kind: str | None) -> int:
    """Refuse what `find_duplicates` cannot be asked, before long work; return how many bits near ones may differ in."""
    radius = NEAR if near is None else near
    if type(radius) is not int or not 0 <= radius <= VISUAL_BITS:
        raise InputError(f"near must be 0 to {VISUAL_BITS} bits, got {near!r}.")
    if kind is not None and kind not in KINDS:
        raise unknown_name("kind of duplicates", str(kind), KINDS)
    return radius


class _Finder:
    """Goes from kind to kind; `left` are the rows that those before would keep."""

    def __init__(self, looks: Looks) -> None:
        self.looks = looks
        self.left = list(range(len(looks.ids)))
        self.groups: list[Group] = []
        self.skipped: dict[str, str] = {}
        self.notes: list[str] = []
        self._words = np.ascontiguousarray(looks.visual.view(np.uint64).T)
        self._views = np.zeros((len(looks.ids), VIEWS), np.uint64)
        self._seen = np.zeros(len(looks.ids), bool)

    def near(self, radius: int, progress: Progress) -> None:
        """Groups whose visual codes are near, and whose pixels confirm it."""
        rows = [row for row in self.left if self.looks.coded[row]]
        paths = {row: path for row in rows if (path := self.looks.paths[row]) is not None}
        found, broken = read_views(paths, progress)
        self.skipped |= {str(paths[row]): str(error) for row, error in broken.items()}
        for row, views in found.items():
            self._views[row], self._seen[row] = views, True
        if len(rows) > len(found):
            self.notes.append(
                f"{len(rows) - len(found):,} of {len(rows):,} images have no readable file any more, so their pixels "
                "cannot confirm that they are near: they were compared by content and by visual code alone."
            )
        self._link("near", list(found), self._views, radius, progress)

    def similar(self, progress: Progress) -> None:
        """Groups whose visual codes are very near."""
        rows = [row for row in self.left if self.looks.coded[row]]
        self._link("similar", rows, self._views[:, :0], SIMILAR, progress)

    def _link(
        self, kind: str, rows: list[int], views: NDArray[np.uint64], radius: int, progress: Progress
    ) -> None:
        rows = sorted(rows)
        groups = complete_link_groups(self.looks.visual[rows], views[rows], radius, PIXELS, progress)
        self.keep(kind, [[rows[place] for place in group] for group in groups])

    def keep(self, kind: str, groups: Iterable[Sequence[int]]) -> None:
        """Note the groups, each with its best image first; the others are left out of what follows."""
        gone: set[int] = set()
        for group in groups:
            sizes = _sizes(kind, [self.looks.paths[row] for row in group])
            photos = {
                row: Photo(self.looks.ids[row], _text(self.looks.paths[row]), *size)
                for row, size in zip(group, sizes, strict=True)
            }
            best, *others = sorted(photos, key=lambda row: _rank(photos[row]))
            gone.update(others)
            measured = [self._measured(photos[row], best, row) for row in others]
            self.groups.append(Group(kind, photos[best], tuple(measured)))
        self.left = [row for row in self.left if row not in gone]

    def _measured(self, photo: Photo, first: int, second: int) -> Photo:
        """The photo with how far it, the row `second`, is from the row `first`."""
        coded = self.looks.coded[first] and self.looks.coded[second]
        seen = self._seen[first] and self._seen[second]
        pair = np.array([first]), second
        return replace(
            photo,
            bits=int(visual_distances(self._words, *pair)[0]) if coded else None,
            pixels=int(pixel_distances(self._views, *pair)[0]) if seen else None,
        )


def _rank(photo: Photo) -> tuple[Any, ...]:
    """What is kept comes first: most pixels, most bytes, then the shortest name, which copies seldom have."""
    path = photo.path or photo.id
    return -(photo.width or 0) * (photo.height or 0), -(photo.bytes or 0), len(path), path


def _sizes(kind: str, paths: Sequence[Path | None]) -> list[tuple[int | None, int | None, int | None]]:
    """Width, height and bytes of image files, None where they cannot be read; files of equal bytes are read once."""
    if kind == "same":
        return [_size(paths[0])] * len(paths)
    return [_size(path) for path in paths]


def _size(path: Path | None) -> tuple[int | None, int | None, int | None]:
    if path is None:
        return None, None, None
    try:
        return *check_image(path), path.stat().st_size
    except (ImageError, OSError):  # why, is said where its pixels are read
        return None, None, None


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


# --- of an index, or of image files


def index_duplicates(
    index: Index, *, near: int | None = None, kind: str | None = None, progress: bool | Progress = True
) -> Duplicates:
    """Duplicates among the items of an index, by the visual codes that it keeps. Equal bytes are one item there."""
    check_options(near, kind)
    items = list(index.items())
    if len(items) < 2:
        raise DataError(
            f"the index holds {len(items)} items: two are needed to be duplicates. Add images first."
        )
    coded = np.array([item.visual is not None for item in items])
    if kind != "same" and not coded.any():
        raise DataError(
            "no item of the index has a visual code: its model is of an earlier version, or only codes were imported. "
            "Name the folder of the images instead, or create the index again."
        )
    blank = np.zeros(VISUAL_BITS // 8, np.uint8)
    visual = np.stack([blank if item.visual is None else item.visual for item in items])
    paths = [None if item.path is None else index.uploads.path(item.path) for item in items]
    with resolve_progress(progress) as report:
        looks = Looks([item.id for item in items], paths, visual, coded)
        return find_duplicates(looks, near=near, kind=kind, progress=report)


def folder_duplicates(
    images: str | Path | Sequence[str | Path],
    *,
    model: Model | str | Path = "coco",
    near: int | None = None,
    kind: str | None = None,
    device: str = "auto",
    engine: str = "auto",
    progress: bool | Progress = True,
) -> Duplicates:
    """Find duplicates among image files: files, folders, patterns. `model` computes the visual codes."""
    check_options(near, kind)
    paths = list_images([images] if isinstance(images, str | Path) else images)
    with resolve_progress(progress) as report:
        files = dict(enumerate(paths))
        keys, broken = read_all(lambda path: content_key(path)[:ID_DIGITS], files, "contents", report)
        visual = np.zeros((len(paths), VISUAL_BITS // 8), np.uint8)
        coded = np.zeros(len(paths), bool)
        if kind != "same":
            # equal files have one code; the first stands for the others
            firsts = list({key: row for row, key in reversed(keys.items())}.values())
            codes, unread = _visual_codes(model, [paths[row] for row in firsts], device, engine, report)
            of = {keys[firsts[place]]: code for place, code in codes.items()}
            why = {keys[firsts[place]]: error for place, error in unread.items()}
            for row, key in keys.items():
                if key in why:
                    broken[row] = why[key]
                else:
                    visual[row], coded[row] = of[key], True
        rows = [row for row in range(len(paths)) if row not in broken]
        skipped = {str(paths[row]): str(error) for row, error in sorted(broken.items())}
        if len(rows) < 2:
            first = f"; of the others: {next(iter(skipped.values()))}" if skipped else "."
            raise DataError(
                f"{len(rows)} of {len(paths)} images in '{images}' can be read, and duplicates need two{first}"
            )
        looks = Looks([keys[row] for row in rows], [paths[row] for row in rows], visual[rows], coded[rows])
        found = find_duplicates(looks, near=near, kind=kind, progress=report)
    return Duplicates(found, found.looked_at, skipped | found.skipped, found.notes)


def _visual_codes(
    model: Model | str | Path, paths: Sequence[Path], device: str, engine: str, progress: Progress
) -> tuple[dict[int, Packed], dict[int, ImageError]]:
    """Packed visual codes (16,) of image files by their places, and why others cannot be read."""
    chosen = model if isinstance(model, Model) else load(model)
    if chosen.visual_bits != VISUAL_BITS:
        raise ConfigError(
            f"duplicates need a model with a visual code of {VISUAL_BITS} bits, and this one has "
            f'{chosen.visual_bits or "none"}: use the built-in model "coco", or train again.'
        )
    codes: dict[int, Packed] = {}
    broken: dict[int, ImageError] = {}
    done = 0
    for step in chosen.encoder(device=device, engine=engine).stream(paths):
        if step.places:
            codes |= dict(zip(step.places, pack(chosen.visual_codes(step.features)), strict=True))
        broken |= step.broken
        done += step.seen
        progress("features", done, len(paths))
    return codes, broken


# --- pixel hashes


VIEWS = 11
_SIDE = 128  # of the grey square that all views are cut from
_WINDOW = 0.9  # of its side
_SMALL = 32  # side of a view that is hashed
_WAVES = np.cos(np.arange(8)[:, None] * (2 * np.arange(_SMALL) + 1) * np.pi / (2 * _SMALL))  # DCT-II, (8, 32)


def views_of(image: Image.Image) -> NDArray[np.uint64]:
    """Hashes (VIEWS,) of an RGB image: the whole, mirrored, and nine windows."""
    grey = image.convert("L").resize((_SIDE, _SIDE), Image.Resampling.BOX)
    return pixel_hashes([grey, ImageOps.mirror(grey), *_windows(grey)])


def pixel_hashes(images: Sequence[Image.Image]) -> NDArray[np.uint64]:
    """The pHash of grey images: which of the 8 x 8 lowest frequencies of their DCT are above the median."""
    small = [image.resize((_SMALL, _SMALL), Image.Resampling.LANCZOS) for image in images]
    # frequencies that are not there are zero, whatever order the sums are computed in
    low = (_WAVES @ np.stack([np.asarray(each, np.float64) for each in small]) @ _WAVES.T).round(6)
    bits = low > np.median(low, axis=(1, 2), keepdims=True)
    return np.packbits(bits.reshape(len(images), 64), axis=1).view(np.uint64).ravel()


def _windows(image: Image.Image) -> Iterator[Image.Image]:
    side = round(_WINDOW * image.width)
    starts = (0, (image.width - side) // 2, image.width - side)
    for top in starts:
        for left in starts:
            yield image.crop((left, top, left + side, top + side))


def read_views(
    paths: Mapping[int, Path], progress: Progress = silent
) -> tuple[dict[int, NDArray[np.uint64]], dict[int, ImageError]]:
    """The views of image files by their rows, and why others cannot be read; threads decode side by side."""
    return read_all(lambda path: views_of(load_image(path, at_least=_SIDE)), paths, "pixels", progress)


# --- the page


MOST_GROUPS = 500  # of each kind; a page with more thumbnails is too large to open
MEANINGS = {
    "same": "Equal files: every byte is the same.",
    "near": "The same photo: encoded again, resized, brightened, cropped a little or mirrored.",
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
