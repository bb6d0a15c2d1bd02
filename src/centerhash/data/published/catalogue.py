"""The catalogue of published datasets: their facts, how each is split, and how it is downloaded and opened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from centerhash.core.checks import whole_number
from centerhash.core.errors import ConfigError, DataError, unknown_name
from centerhash.core.files import WriterLock, make_folder, write_json
from centerhash.core.progress import Progress, silent
from centerhash.core.rendering import filled
from centerhash.data import fetch
from centerhash.data.layouts.contents import Contents, first_few
from centerhash.data.splits import Splits, make_splits

COMMON_DEPTH = 5_000  # of mAP, in the paper and nearly everywhere
_RECEIPTS = ".unpacked"  # folder with one note per finished archive
_LOCKED = "process {holder} downloads into '{folder}': wait for it."  # two writers would spoil a partial file


@dataclass(frozen=True)
class RandomSplit:
    """Queries drawn from all images, the rest is the database, training images drawn from the database.

    With `per_class`, images have one label and the counts are those of each class. Without `joined`, the database does
    not hold the training images.
    """

    train: int
    query: int
    source: str
    note: str = ""
    per_class: bool = False
    joined: bool = True

    def __str__(self) -> str:
        query, train = f"{self.query:,} random queries", f"{self.train:,} random training images"
        if self.per_class:
            rest = "all images but the queries" if self.joined else "the rest"
            return f"{query} and {train} per class, {rest} as database ({self.source})"
        return f"{query}, the rest as database, {train} from the database ({self.source}{self.note})"


@dataclass(frozen=True)
class RemoteFile:
    """An archive of a dataset and the subfolder it is unpacked into.

    `size` in bytes and `md5` are None if no trustworthy source states them.
    """

    url: str
    size: int | None = None
    md5: str | None = None
    into: str = "."

    @property
    def name(self) -> str:
        """The file name."""
        return PurePosixPath(urlsplit(self.url).path).name


@dataclass(frozen=True)
class PublishedDataset:
    """A published dataset. `images` carry at least one label; `photos` are all that belong to it."""

    name: str
    title: str
    classes: int
    images: int
    photos: int
    split: RandomSplit | str  # a text: the parts that its makers published, as they were read
    areas: str
    license: str
    citation: str
    home: str
    folder: str  # below --root
    files: tuple[RemoteFile, ...]
    needs: tuple[str, ...]  # paths below the folder without which nothing can be read; "a|b" is either
    reader: Callable[[Path], Contents]
    by_hand: tuple[str, ...] = ()
    depth: int = COMMON_DEPTH


DATASETS: dict[str, PublishedDataset] = {}  # filled by the modules of this package


def register(row: PublishedDataset) -> PublishedDataset:
    """Add a dataset to the catalogue."""
    DATASETS[row.name] = row
    return row


def get_dataset(name: str) -> PublishedDataset:
    """Return a dataset by its name; ConfigError lists the names there are."""
    if name not in DATASETS:
        raise unknown_name("dataset", name, DATASETS, see="See `centerhash datasets`.")
    return DATASETS[name]


def describe(row: PublishedDataset, root: Path) -> dict[str, Any]:
    """Return the facts of a dataset as plain values, and its `path` under `root` (None if it is not there)."""
    shown = "name title classes images photos depth areas license by_hand"
    home = home_of(row, root)
    return {
        **{field: getattr(row, field) for field in shown.split()},
        "citation": row.citation,
        "split": str(row.split),
        "homepage": row.home,
        "files": [asdict(file) for file in row.files],
        "path": None if home is None else str(home),
    }


def home_of(row: PublishedDataset, root: Path) -> Path | None:
    """Return where a dataset is: in its folder below `root`, or in `root` itself; None if it is not complete."""
    return next((home for home in (root / row.folder, root) if not missing_parts(row, home)), None)


def missing_parts(row: PublishedDataset, home: Path) -> list[str]:
    """Return the parts of a dataset that a folder does not have."""
    return [
        part.split("|")[0]
        for part in row.needs
        if not any((home / name).exists() for name in part.split("|"))
    ]


# ---------------------------------------------------------------- opening and splitting


def read_published(row: PublishedDataset, root: Path, seed: int) -> tuple[Path, Contents, Splits]:
    """Read a dataset below `root`, and split it by its rule with `seed`; also return the folder where it is."""
    home = home_of(row, root)
    if home is None:
        missing = first_few(missing_parts(row, root / row.folder))
        by_hand = f" and by hand: {' '.join(row.by_hand)}" if row.by_hand else "."
        raise DataError(
            f"{row.title} is incomplete in '{root / row.folder}': it has no {missing}. "
            f"Download it by `centerhash download {row.name} --root {root}`{by_hand}"
        )
    contents = row.reader(home)
    if isinstance(row.split, str):
        return home, contents, make_splits(len(contents.names), contents.splits, source=contents.source)
    splits = draw_splits(contents.labels, row.split, seed, row.images)
    if len(contents.names) < row.images:
        smaller = (
            f"this copy has {len(contents.names):,} of the {row.images:,} labeled images: {len(splits.query):,} "
            f"queries and {len(splits.train):,} training images are drawn from it, so that results cannot be compared "
            "with published ones."
        )
        contents = replace(contents, warnings=(*contents.warnings, smaller))
    return home, contents, splits


def draw_splits(labels: NDArray[np.bool_], rule: RandomSplit, seed: int, complete: int) -> Splits:
    """Draw the splits of images with labels (N, C) by the rule for a `complete` copy.

    A copy with fewer images keeps the counts of the rule if it can, and shrinks them in proportion if queries and
    training images do not fit; per class, if it has fewer than its part of the complete images.
    """
    whole_number(seed, "the seed", 0)
    size, classes = labels.shape
    if not rule.per_class:
        query, train = rule.query, rule.train
        if size < complete and query + train > size:
            query, train = max(1, query * size // complete), max(1, train * size // complete)
        splits = make_splits(size, seed=seed, queries=query, training=train)
        return replace(splits, made=f"{rule.source}, {splits.made}")
    generator, each = np.random.default_rng(seed), complete // classes
    drawn: dict[str, list[NDArray[np.int64]]] = {"train": [], "query": [], "database": []}
    for column in range(classes):
        rows = generator.permutation(np.flatnonzero(labels[:, column]))
        query, train = (max(1, min(count, count * len(rows) // each)) for count in (rule.query, rule.train))
        drawn["query"].append(rows[:query])
        drawn["train"].append(rows[query : query + train])
        drawn["database"].append(rows[query if rule.joined else query + train :])
    joined = {name: np.sort(np.concatenate(parts)) for name, parts in drawn.items()}
    return Splits(**joined, made=f"{rule.source}, drawn with seed {seed}")


# ---------------------------------------------------------------- downloading


def download(
    files: Sequence[RemoteFile],
    folder: Path,
    *,
    mirror: str | None = None,
    keep_archives: bool = False,
    progress: Progress = silent,
) -> list[str]:
    """Download and unpack archives into `folder`, and return the names of those that were not there yet.

    Finished steps are skipped, so the same call resumes where it stopped. Archives are deleted once unpacked,
    unless `keep_archives`. A `mirror` is an address to use instead of the source.
    """
    lock = WriterLock.take(make_folder(folder) / ".downloading", _LOCKED)
    try:
        todo = [file for file in files if not _receipt(file, folder).is_file()]
        # pictures do not shrink in archives, so an archive takes its size once more when it is unpacked
        sizes = [(folder / file.name, file.size or 0) for file in todo]
        fetch.check_space(folder, sum(2 * size - fetch.downloaded(archive, size) for archive, size in sizes))
        for file in todo:
            archive = _download_file(file, folder / file.name, mirror, progress)
            fetch.unpack(archive, folder / file.into, progress=progress)
            write_json(_receipt(file, folder), asdict(file))
            if not keep_archives:
                archive.unlink()
    finally:
        lock.release(delete=True)
    return [file.name for file in todo]


def _receipt(file: RemoteFile, folder: Path) -> Path:
    return folder / _RECEIPTS / f"{file.name}.json"


def _download_file(file: RemoteFile, target: Path, mirror: str | None, progress: Progress) -> Path:
    """Download one archive; a mirror may keep the source's folders or only the file."""
    if mirror is None:
        addresses = [file.url]
    else:
        base = mirror.rstrip("/")
        addresses = [f"{base}{urlsplit(file.url).path}", f"{base}/{file.name}"]
        if urlsplit(mirror).scheme not in ("http", "https") or not urlsplit(mirror).netloc:
            raise ConfigError(f"a mirror is an address such as https://example.org/data, got '{mirror}'.")
    for address in addresses:
        try:
            return fetch.download(address, target, size=file.size, md5=file.md5, progress=progress)
        except fetch.NotFoundError as error:
            missing = error
    raise DataError(f"{missing} Try another mirror, or look at the home page.") from missing


# ---------------------------------------------------------------- docs/reference/datasets.md

_PAGE = """\
# Datasets

Download a published dataset, and train on it by name.

Needs: base install for `datasets` and `download`; `pip install 'centerhash[train]'` for `train`

```console
centerhash datasets --root data
```

This command lists the datasets and which of them are in the folder `data`.

```text
centerhash download voc2007 --root data
centerhash train voc2007 --root data --out run
```

`--root` holds one folder per dataset, or is the folder of the dataset itself. In Python, use
`ch.open_dataset("voc2007", root="data")`. `compare` and `tune` accept names too. `inspect` opens folders in one of the
[layouts](data-layouts.md); COCO's folder is one.

| name | dataset | classes | labeled images | of | mAP@k |
|---|---|---|---|---|---|
{% for row in rows %}
| `{{ row.name }}` | {{ row.title }} | {{ row.classes }} | {{ "{:,}".format(row.images) }} | \
{{ "{:,}".format(row.photos) }} | {{ "{:,}".format(row.depth) }} |
{% endfor %}

Image counts are those of the literature; a warning is printed if your copy has fewer.

## Downloads

- The same command resumes an interrupted download. The disk must hold the archives and their contents.
- Archives are checked by size and MD5 checksum if known, unpacked, and deleted unless you set `--keep-archives`.
- `--mirror URL` downloads from another address, with the same paths (`URL/zips/train2014.zip`) or without folders.

## Splits

Images without a label are skipped. A random split depends on `--seed`: queries are drawn from all images, the rest is the
database, and training images are drawn from the database. If your copy has too few images, the counts are reduced in
proportion, with a warning.

`--lists DIR` reads the list files of HashNet, CSQ and others instead, also for your own folder (`centerhash train IMAGES
--lists DIR --out RUN`). The files are `train.txt`, `test.txt` (or `query.txt`) and `database.txt`, each possibly in
numbered parts. A line is `path 0 1 0 ...` with one 0 or 1 per class.

- A path matches the image with the longest common end. Missing images are skipped with a warning.
- Class names come from `classes.txt` next to the lists; otherwise they are `class 0`, `class 1` and so on.
- HashNet's COCO database contains its queries; use `evaluate --exclude-self` with it.
{% for folder, group in groups.items() %}

## {{ group[0].name }}

{{ group[0].citation }}. <{{ group[0].home }}>

{% for row in group %}
- `{{ row.name }}`: {{ row.split }}.
{% endfor %}
- Areas: {{ group[0].areas }}. License: {{ group[0].license }}.
{% if group[0].files %}
- Archives, unpacked into `{{ folder }}/`:
{% for file in files(group) %}
  - [{{ file.name }}]({{ file.url }}){{ ", {:,} MB".format((file.size / 1e6)|round|int) if file.size else "" }}
{% endfor %}
{% endif %}
{% if group[0].by_hand %}

Download the photos by hand:

{% for step in group[0].by_hand %}
{{ loop.index }}. {{ step }}
{% endfor %}
{% endif %}
{% endfor %}

What next: [layouts of your data](data-layouts.md), [results on COCO](../explanation/results.md).
"""


def datasets_page() -> str:
    """Return docs/reference/datasets.md; datasets with the same citation share a section."""
    groups: dict[str, list[PublishedDataset]] = {}
    for row in DATASETS.values():
        groups.setdefault(row.citation, []).append(row)

    def files(group: Sequence[PublishedDataset]) -> list[RemoteFile]:
        return list(dict.fromkeys(file for row in group for file in row.files))

    named = {"` and `".join(dict.fromkeys(row.folder for row in group)): group for group in groups.values()}
    return filled(_PAGE, rows=DATASETS.values(), groups=named, files=files)
