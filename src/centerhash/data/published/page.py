"""docs/datasets.md, made from the rows of DATASETS: `centerhash datasets --markdown`."""

from __future__ import annotations

from collections.abc import Iterator

from centerhash.data.published.catalogue import DATASETS, NamedSet
from centerhash.data.published.download import RemoteFile

_HEAD = """# Data sets

The published data sets that centerhash knows by name: how to fetch them, how they are split, what their files are.

```
centerhash datasets --root data                     # which there are, and which are here
centerhash download coco2014 --root data
centerhash train coco2014 --root data --out run
```

The folder `data` holds one folder per data set, named below; `--root` may also be the folder of the data set itself.

Downloads resume where they stopped: run the same command again, also after a kill. An archive is checked by its size
and MD5 checksum where these are known, unpacked beside its place, moved there when it is whole, and then deleted
(`--keep-archives` keeps it). Members that lead out of the folder, links and devices are refused. The disk must hold the
archives and as much again. `--mirror URL` fetches from another address, where the files lie at the same path
(`URL/zips/train2014.zip`) or directly (`URL/train2014.zip`).

MIRFLICKR publishes a checksum for its photos, and CIFAR-10 for its archive. COCO and VOC publish none: theirs are those
that other libraries have recorded. "unknown" means that no such source was found. Numbers of labelled images are those
that the literature gives; your copy may differ, and opening it says what was found.
"""

_TAIL = """
## Splits

Images without a label are left out. CIFAR-10's pixels come in binary files: opening it for the first time writes them as
60,000 PNG files beside. Its three names are three protocols of the field.

A random split is drawn with `--seed`: the queries from all images, the rest is the
database, and the training images come from the database, so that no query is trained on or finds itself. Where the paper
says otherwise (docs/paper.md), this is the clean reading. A copy with fewer images than the data set has keeps these
counts where it can, shrinks them in proportion where queries and training images do not fit, and warns.

**List files.** `--lists DIR` takes the splits of others instead, in the form that HashNet, CSQ and many others ship:
`train.txt`, `test.txt` (or `query.txt`) and `database.txt`, any of them perhaps in parts (`database1.txt`,
`database_2.txt`), each line `path 0 1 0 ...` with one 0 or 1 per class.

- Paths are those of somebody else's machine: of all images under the folder, the one with the longest common end of the
  path is taken. `/home/me/data/val2014/x.jpg` finds `coco2014/val2014/x.jpg`. Two equally good ones are an error.
- Images that are not found are left out and counted in a warning.
- Classes are named by a `classes.txt` beside the lists, else `class 0`, `class 1`, ...
- How many images two of the lists share is always said: HashNet's database for COCO holds its own queries, so that each
  finds itself unless you `evaluate --exclude-self`.

It also works for a folder of your own: `centerhash train IMAGES --lists DIR --out RUN`.

What next: [your own images](own-images.md), [comparing methods](tutorials/comparing-methods.md) on one of these.
This page is made by `centerhash datasets --markdown` from `data/published/catalogue.py`; a test keeps the two equal.
"""


def datasets_page() -> str:
    """The whole page as markdown."""
    rows = DATASETS.values()
    return "\n".join([_HEAD, _overview(), *(line for row in rows for line in _dataset(row)), _TAIL])


def _overview() -> str:
    lines = ["| name | what | classes | labelled images | of | mAP depth |", "|---|---|---|---|---|---|"]
    lines += [
        f"| [`{row.name}`](#{row.name}) | {row.title} | {row.classes} | {row.images:,} | {row.photos:,} | "
        f"{row.depth:,} |"
        for row in DATASETS.values()
    ]
    return "\n".join(lines)


def _dataset(row: NamedSet) -> Iterator[str]:
    yield f"\n## {row.name}\n"
    yield f"**{row.title}**: {row.citation}. <{row.home}>\n"
    yield f"- Split: {row.split}."
    yield f"- Areas: {row.areas}."
    yield f"- Licence: {row.licence}."
    yield f"- Folder: `{row.folder}/`\n"
    if row.files:
        yield "| file | bytes | MD5 | unpacked into |\n|---|---|---|---|"
        yield from (_file(row, file) for file in row.files)
    yield f"\n```\ncenterhash download {row.name} --root data\ncenterhash train {row.name} --root data --out run\n```"
    if row.by_hand:
        yield "\nThe photos can only be had by hand:\n"
        yield from (f"{number}. {step}" for number, step in enumerate(row.by_hand, 1))


def _file(row: NamedSet, file: RemoteFile) -> str:
    size = "unknown" if file.size is None else f"{file.size:,}"
    folder = row.folder if file.into == "." else f"{row.folder}/{file.into}"
    return f"| [{file.name}]({file.url}) | {size} | {file.md5 or 'unknown'} | `{folder}/` |"
