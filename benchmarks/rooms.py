"""The rooms of the package and what they import from each other, read from the code.

    python -m benchmarks.rooms

names every import that goes against the order, and draws docs/images/architecture.svg.

A room may import only from itself and from the rooms before it in `ROOMS`; imports inside functions and under
`TYPE_CHECKING` count as well. `tests/test_rooms.py` holds this.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "centerhash"
PICTURE = ROOT / "docs" / "images" / "architecture.svg"

# bottom to top, with what each is for
ROOMS = {
    "core": "errors, files, options, progress",
    "codes": "bits: binarize, pack, hamming",
    "evaluation": "mAP and other measures",
    "data": "data sets, layouts, images, scenes",
    "methods": "centers, weights, losses, shallow",
    "model": "HashModel, hub, ONNX export",
    "encoding": "code files, parquet shards, Ray",
    "training": "config, loop, runs",
    "search": "Index and its engines",
    "serve": "server and page",
    "experiments": "compare, tune",
    "cli": "one command per verb",
}
_ENTRIES = ("__init__", "__main__")  # the front door, which names things of all rooms


class Import(NamedTuple):
    """One import of one of the package's modules: who, from where, on which line."""

    importer: str
    imported: str
    file: Path
    line: int


def room_of(module: str) -> str:
    """The room that a module below `centerhash` is in."""
    return module.split(".")[0]


def imports() -> Iterator[Import]:
    """Every import of the package's modules by its modules, lazy ones too."""
    for file in sorted(PACKAGE.rglob("*.py")):
        importer = ".".join(file.relative_to(PACKAGE).with_suffix("").parts)
        if importer in _ENTRIES:
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            for module in _modules(node):
                yield Import(importer, module, file, getattr(node, "lineno", 0))


def _modules(node: ast.AST) -> list[str]:
    """The modules below `centerhash` that a statement imports."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module == "centerhash":
        names = [f"centerhash.{alias.name}" for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.level == 0:
        names = [node.module or ""]
    elif isinstance(node, ast.ImportFrom):
        raise ValueError(f"a relative import on line {node.lineno}: write it in full.")
    else:
        names = []
    return [name.removeprefix("centerhash.") for name in names if name.startswith("centerhash.")]


def against_the_order() -> list[str]:
    """Imports from a room that stands above, one sentence each."""
    order = list(ROOMS)
    found = []
    for one in imports():
        here, there = room_of(one.importer), room_of(one.imported)
        if here not in order or there not in order:
            found.append(f"{_place(one)}: '{here if here not in order else there}' is no room of ROOMS.")
        elif order.index(there) > order.index(here):
            found.append(f"{_place(one)}: {here} imports {one.imported}, which stands above it.")
    return found


def _place(one: Import) -> str:
    return f"{one.file.relative_to(ROOT)}:{one.line}"


def drawn() -> str:
    """The picture: rooms from top to bottom, and an arc from each to the rooms that it imports from."""
    order = list(reversed(ROOMS))
    pairs = {(room_of(one.importer), room_of(one.imported)) for one in imports()}
    step, box, left, top = 46, 34, 250, 20
    width, height = 760, top + step * len(order)
    places = {room: top + step * row for row, room in enumerate(order)}
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="14">',
        "<title>The rooms of centerhash, each importing only from those below it</title>",
        "<style>text{fill:#1c2733}.what{fill:#5b6b7a;font-size:12px}rect{fill:#eef3fb;stroke:#7d9cc9}"
        "path{fill:none;stroke:#7d9cc9;opacity:.55}@media(prefers-color-scheme:dark){text{fill:#e6edf5}"
        ".what{fill:#9fb0c3}rect{fill:#1d2a3d;stroke:#5a7fb5}}</style>",
    ]
    for above, below in sorted(pairs):
        if above != below:
            start, end = places[above] + box / 2, places[below] + box / 2
            reach = left - 12 - (end - start) * 0.42
            lines.append(
                f'<path d="M{left} {start} C{reach:.0f} {start} {reach:.0f} {end} {left} {end}">'
                f"<title>{above} imports from {below}</title></path>"
            )
    for room, y in places.items():
        name = f"{room}.py" if (PACKAGE / f"{room}.py").exists() else f"{room}/"
        lines += [
            f'<rect x="{left}" y="{y}" width="150" height="{box}" rx="8"/>',
            f'<text x="{left + 14}" y="{y + 22}" font-weight="600">{name}</text>',
            f'<text class="what" x="{left + 166}" y="{y + 22}">{ROOMS[room]}</text>',
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"


def main() -> None:
    """Check the order, and draw the picture."""
    wrong = against_the_order()
    PICTURE.write_text(drawn(), encoding="utf-8")
    print("\n".join(wrong) or "every room imports only from the rooms below it")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
