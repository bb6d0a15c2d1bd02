"""The packages of centerhash: what they import from each other, and how many files a query and a training run pass.

    python -m benchmarks.packages

lists every import against the order, draws docs/images/architecture.svg, and counts the files whose functions run.

A package may import only from itself and from the packages before it in `PACKAGES`; imports inside functions and under
`TYPE_CHECKING` count as well. `tests/test_packages.py` checks this.
"""

from __future__ import annotations

import ast
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import numpy as np

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "centerhash"
PICTURE = ROOT / "docs" / "images" / "architecture.svg"

# bottom to top, with their contents
PACKAGES = {
    "core": "errors, files, options, progress",
    "codes": "bits: binarize, pack, hamming",
    "evaluation": "mAP and other metrics",
    "data": "datasets, layouts, images, downloads",
    "methods": "centers, weights, losses, shallow",
    "networks": "backbones, engines, encoder, heads",
    "model": "HashModel, hub, ONNX export",
    "encoding": "code files, parquet shards, Ray",
    "training": "config, session, loop, runs",
    "search": "Index, SQLite store, scan, Milvus",
    "serve": "server and page",
    "experiments": "compare, tune",
    "cli": "one command per verb",
}
_ENTRIES = ("__init__", "__main__")  # public names of all packages


class Import(NamedTuple):
    """One import of one of the package's modules: who, from where, on which line."""

    importer: str
    imported: str
    file: Path
    line: int


def package_of(module: str) -> str:
    """Return the package of a module below `centerhash`."""
    return module.split(".")[0]


def imports() -> Iterator[Import]:
    """Every import of the package's modules by its modules, lazy ones too."""
    for file in sorted(SOURCE.rglob("*.py")):
        importer = ".".join(file.relative_to(SOURCE).with_suffix("").parts)
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
    """Return imports from a later package, one sentence each."""
    order = list(PACKAGES)
    found = []
    for one in imports():
        here, there = package_of(one.importer), package_of(one.imported)
        if here not in order or there not in order:
            found.append(f"{_place(one)}: '{here if here not in order else there}' is not in PACKAGES.")
        elif order.index(there) > order.index(here):
            found.append(f"{_place(one)}: {here} imports {one.imported}, which is above it.")
    return found


def _place(one: Import) -> str:
    return f"{one.file.relative_to(ROOT)}:{one.line}"


def drawn() -> str:
    """The picture: packages from top to bottom, and an arc from each to the packages that it imports from."""
    order = list(reversed(PACKAGES))
    pairs = {(package_of(one.importer), package_of(one.imported)) for one in imports()}
    step, box, left, top = 46, 34, 250, 20
    width, height = 760, top + step * len(order)
    places = {package: top + step * row for row, package in enumerate(order)}
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="14">',
        "<title>The packages of centerhash, each importing only from those below it</title>",
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
    for package, y in places.items():
        name = f"{package}.py" if (SOURCE / f"{package}.py").exists() else f"{package}/"
        lines += [
            f'<rect x="{left}" y="{y}" width="150" height="{box}" rx="8"/>',
            f'<text x="{left + 14}" y="{y + 22}" font-weight="600">{name}</text>',
            f'<text class="what" x="{left + 166}" y="{y + 22}">{PACKAGES[package]}</text>',
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"


def files_passed(work: Callable[[], object]) -> set[str]:
    """Return the files of the package whose functions run during `work`; imports do not count."""
    found: set[str] = set()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_name != "<module>" and code.co_filename.startswith(str(SOURCE)):
            found.add(Path(code.co_filename).relative_to(SOURCE).as_posix())

    sys.setprofile(note)
    threading.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return found


def passed() -> dict[str, list[str]]:
    """Return the files that a query by id and one by labels pass in search/, and a training run with its evaluation."""
    import centerhash as ch

    generator = np.random.default_rng(0)
    labels = generator.random((400, 5)) < 0.3
    labels[:, 0] |= ~labels.any(axis=1)
    data = ch.Dataset.from_arrays(generator.standard_normal((400, 256), np.float32), labels)
    with tempfile.TemporaryDirectory() as place:
        run = Path(place) / "run"

        def train(out: Path = run) -> None:
            ch.evaluate(ch.train(data, method="ics", bits=16, epochs=2, out=out, progress=False), data)

        train(Path(place) / "first")  # imports everything
        training = files_passed(train)
        model = ch.load(run)
        with ch.Index.create(Path(place) / "index", model) as index:
            index.add_codes(
                ch.pack(model.encode_features(data.features)),
                range(400),
                visual=np.zeros((400, 16), np.uint8),
            )
            queries = {
                "a query by id": files_passed(lambda: index.search(id="7")),
                "a query by labels": files_passed(lambda: index.search(labels=[model.classes[0]])),
            }
    search = {
        name: sorted(file for file in files if file.startswith("search/")) for name, files in queries.items()
    }
    return {**search, "a training run": sorted(training)}


def main() -> None:
    """Check the order, draw the picture, and count files."""
    wrong = against_the_order()
    PICTURE.write_text(drawn(), encoding="utf-8")
    print("\n".join(wrong) or "every package imports only from the packages below it")
    for name, files in passed().items():
        print(f"{name} passes {len(files)} files: {', '.join(files)}")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
