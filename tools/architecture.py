"""Draw docs/images/architecture.svg, the packages and their imports: `python -m tools.architecture`."""

from __future__ import annotations

from pathlib import Path

import grimp

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "architecture.svg"
# The packages from top to bottom with their contents. pyproject.toml has the same order for import-linter.
PACKAGES = {
    "cli": "one command per verb",
    "serve": "server and page",
    "photos": "PhotoIndex, sync, words, duplicates",
    "index": "Index, SQLite store, scan, rankings",
    "experiments": "compare, tune, plots",
    "training": "the one path: features, fit, finish",
    "encoding": "code files, parquet shards, Ray",
    "model": "HashModel, hub, ONNX export",
    "networks": "backbones, engines, encoder, heads",
    "methods": "the registry, shallow methods",
    "losses": "one loss per method",
    "weights": "instance weights of ICS",
    "centers": "hash centers, and which class gets which",
    "separation": "MDSH's search for hash centers",
    "data": "datasets, layouts, images, downloads",
    "evaluation": "mAP and other metrics",
    "codes": "bits: binarize, pack, hamming",
    "core": "errors, files, options, progress",
}
HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {height}" font-family="sans-serif" font-size="14">
<title>The packages of centerhash, each importing only from those below it</title>
<style>text{{fill:#1c2733}}.what{{fill:#5b6b7a;font-size:12px}}rect{{fill:#eef3fb;stroke:#7d9cc9}}\
path{{fill:none;stroke:#7d9cc9;opacity:.55}}@media(prefers-color-scheme:dark){{text{{fill:#e6edf5}}\
.what{{fill:#9fb0c3}}rect{{fill:#1d2a3d;stroke:#5a7fb5}}}}</style>"""


def architecture_svg() -> str:
    """Return the picture: a box for each package, and an arc to each package that it imports from."""
    graph = grimp.build_graph("centerhash", cache_dir=None)
    suffixes = {name: "/" if graph.find_children(f"centerhash.{name}") else ".py" for name in PACKAGES}
    for name in PACKAGES:
        graph.squash_module(f"centerhash.{name}")
    tops = {name: 20 + 46 * row for row, name in enumerate(PACKAGES)}
    arcs, boxes = [], []
    for name, y in tops.items():
        boxes.append(f'<rect x="250" y="{y}" width="150" height="34" rx="8"/>')
        boxes.append(f'<text x="264" y="{y + 22}" font-weight="600">{name}{suffixes[name]}</text>')
        boxes.append(f'<text class="what" x="416" y="{y + 22}">{PACKAGES[name]}</text>')
        imports = graph.find_modules_directly_imported_by(f"centerhash.{name}") - {f"centerhash.{name}"}
        for imported in sorted(module.removeprefix("centerhash.") for module in imports):
            start, end = y + 17, tops[imported] + 17
            reach = 238 - (end - start) * 0.42
            curve = f"M250 {start} C{reach:.0f} {start} {reach:.0f} {end} 250 {end}"
            arcs.append(f'<path d="{curve}"><title>{name} imports from {imported}</title></path>')
    return "\n".join([HEAD.format(height=20 + 46 * len(tops)), *arcs, *boxes, "</svg>"]) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(architecture_svg(), encoding="utf-8")
