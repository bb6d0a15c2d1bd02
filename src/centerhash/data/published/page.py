"""docs/datasets.md, made from the rows of DATASETS: `centerhash datasets --markdown`."""

from __future__ import annotations

from collections.abc import Iterator

from centerhash.core.files import packaged
from centerhash.data.published.catalogue import DATASETS, NamedSet
from centerhash.data.published.download import RemoteFile


def datasets_page() -> str:
    """The whole page as markdown."""
    words = packaged("centerhash.data.published", "page.toml")
    sections = (line for row in DATASETS.values() for line in _dataset(row))
    return "\n".join([words["head"], _overview(), *sections, words["tail"]])


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
