"""The packages of centerhash: what they import from each other, and how many files a search and a training run pass.

    python -m tools.packages        # checks the order, draws docs/images/architecture.svg, and counts files

A package imports only from itself and from the packages before it in `PACKAGES`; imports inside functions and under
`TYPE_CHECKING` count as well. tests/test_packages.py checks this.
"""

from __future__ import annotations

import ast
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "centerhash"
PICTURE = ROOT / "docs" / "images" / "architecture.svg"

# bottom to top, with their contents
PACKAGES = {
    "core": "errors, files, options, progress",
    "codes": "bits: binarize, pack, hamming",
    "evaluation": "mAP and other metrics",
    "data": "datasets, layouts, images, downloads",
    "separation": "MDSH's search for hash centers",
    "centers": "hash centers, and which class gets which",
    "weights": "instance weights of ICS",
    "losses": "one loss per method",
    "methods": "the registry, shallow methods",
    "networks": "backbones, engines, encoder, heads",
    "model": "HashModel, hub, ONNX export",
    "encoding": "code files, parquet shards, Ray",
    "training": "the one path: features, fit, finish",
    "experiments": "compare, tune, plots",
    "index": "Index, SQLite store, scan, rankings",
    "photos": "PhotoIndex, sync, words, duplicates",
    "serve": "server and page",
    "cli": "one command per verb",
}
ENTRIES = ("__init__", "__main__")  # the public names of all packages


def imports() -> Iterator[tuple[str, str, str]]:
    """Yield the importing and the imported package of every import, and its file and line."""
    for file in sorted(SOURCE.rglob("*.py")):
        importer = file.relative_to(SOURCE).with_suffix("").parts[0]
        if importer in ENTRIES:
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            for module in modules(node):
                yield importer, module.split(".")[1], f"{file.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"


def modules(node: ast.AST) -> list[str]:
    """Return the modules below `centerhash` that a statement imports."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module == "centerhash":
        names = [f"centerhash.{alias.name}" for alias in node.names]
    else:
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
    return [name for name in names if name.startswith("centerhash.")]


def against_the_order() -> list[str]:
    """Return the imports from a later package, or of an unlisted one, one sentence each."""
    rank = {package: number for number, package in enumerate(PACKAGES)}
    return [
        f"{place}: {importer} imports {imported}, which is not below it."
        for importer, imported, place in imports()
        if not rank.get(imported, len(rank)) <= rank.get(importer, -1)
    ]


def drawn() -> str:
    """Return the picture: packages from top to bottom, and an arc from each to the packages it imports from."""
    step, box, left, top = 46, 34, 250, 20
    places = {package: top + step * row for row, package in enumerate(reversed(PACKAGES))}
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {top + step * len(places)}" '
        'font-family="sans-serif" font-size="14">',
        "<title>The packages of centerhash, each importing only from those below it</title>",
        "<style>text{fill:#1c2733}.what{fill:#5b6b7a;font-size:12px}rect{fill:#eef3fb;stroke:#7d9cc9}"
        "path{fill:none;stroke:#7d9cc9;opacity:.55}@media(prefers-color-scheme:dark){text{fill:#e6edf5}"
        ".what{fill:#9fb0c3}rect{fill:#1d2a3d;stroke:#5a7fb5}}</style>",
    ]
    for above, below in sorted({(importer, imported) for importer, imported, _ in imports()}):
        if above != below:
            start, end = places[above] + box / 2, places[below] + box / 2
            reach = left - 12 - (end - start) * 0.42
            curve = f"M{left} {start} C{reach:.0f} {start} {reach:.0f} {end} {left} {end}"
            lines.append(f'<path d="{curve}"><title>{above} imports from {below}</title></path>')
    for package, y in places.items():
        name = f"{package}.py" if (SOURCE / f"{package}.py").exists() else f"{package}/"
        lines.append(f'<rect x="{left}" y="{y}" width="150" height="{box}" rx="8"/>')
        lines.append(f'<text x="{left + 14}" y="{y + 22}" font-weight="600">{name}</text>')
        lines.append(f'<text class="what" x="{left + 166}" y="{y + 22}">{PACKAGES[package]}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def files_passed(work: Callable[[], object]) -> list[str]:
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
    return sorted(found)


def passed() -> dict[str, list[str]]:
    """Return the files that a search in an index and a plain training run with its evaluation pass."""
    import centerhash as ch

    data = ch.sample("coco6k")
    with tempfile.TemporaryDirectory() as folder:
        run, first = Path(folder) / "run", Path(folder) / "first"

        def train(out: Path = run) -> None:
            ch.evaluate(ch.train(data, method="ics", epochs=1, out=out, progress=False), data)

        train(first)  # imports everything
        training = files_passed(train)
        model = ch.load(run)
        with ch.Index.create(Path(folder) / "index", model) as index:
            index.add(codes=ch.pack(model.encode_features(data.features[:400])), ids=range(400))
            search = files_passed(lambda: index.search(id="7"))
    return {"a search": search, "a training run": training}


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
