"""The stored results of `make bench` as one picture: ratios against what stands beside us, with the goals.

python -m benchmarks.chart [--results benchmarks/results] [--out docs/images/bench.svg]
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

ROOT = Path(__file__).parent.parent
NAMES = ("search", "encoding", "speed", "load", "busy", "multi_index", "memory")
SIZES = {"100,000": "100,000", "1,000,000": "1 million", "10,000,000": "10 million"}
TABLES = {  # the share of a whole scan's time that is the goal
    "10,000,000 drawn": ("10 million codes of a model", 1 / 20),
    "10,000,000 random": ("10 million random codes", 1 / 20),
    "100,000,000 drawn": ("100 million codes of a model", 1 / 50),
    "100,000,000 random": ("100 million random codes", 1 / 50),
}
MEMORY = {
    "indexing": "Adding 100,000 photos",
    "encoding": "Encoding a million rows of features",
    "importing": "Importing 4 million codes",
    "evaluation": "Evaluating COCO",
    "serving": "Serving 10 million codes",
}
COMPILED = {"onnx": "ONNX Runtime", "openvino": "OpenVINO"}
Results = Mapping[str, Mapping[str, Any]]

WIDTH, LEFT, BARS, ROW, HEAD = (
    960,
    330,
    430,
    44,
    84,
)  # of the picture, its labels, the longest bar, rows, headings
INK, SOFT, GRID, GOAL = "#1d2733", "#5b6775", "#dfe4ea", "#1d2733"
MET, MISSED = "#0072B2", "#D55E00"  # Okabe and Ito's blue and vermilion: told apart by every eye


@dataclass(frozen=True)
class Bar:
    """One measurement: what it is, against what, its length in the unit of its panel, its goal, and both in words."""

    title: str
    against: str
    value: float
    goal: float
    shown: str
    goal_shown: str


@dataclass(frozen=True)
class Panel:
    """Bars of one unit. Longer is better, unless `limit`: then the goal is not to be exceeded."""

    title: str
    note: str
    bars: Sequence[Bar]
    ticks: Mapping[float, str]
    log: bool = False
    limit: bool = False

    def place(self, value: float) -> float:
        """Pixels from the left end of the bars."""
        low, high = min(self.ticks), max(self.ticks)
        value = min(max(value, low), high)
        if self.log:
            return BARS * math.log(value / low) / math.log(high / low)
        return BARS * (value - low) / (high - low)

    def is_met(self, bar: Bar) -> bool:
        """Whether the measurement reaches its goal."""
        return bar.value <= bar.goal if self.limit else bar.value >= bar.goal


def faster(results: Results) -> Panel:
    """How many times faster than what others use."""
    search, encoding, speed = results["search"], results["encoding"], results["speed"]
    bars = [
        _times(
            f"Exact search of {SIZES[size]} codes",
            "one query, against faiss IndexBinaryFlat",
            1 / search[f"{size} random codes of 64 bits"]["index_to_faiss"],
            2,
        )
        for size in SIZES
    ]
    bars.append(
        _times(
            "Exact search of 10 million codes",
            "batches of 1,000, against faiss IndexBinaryFlat",
            1 / search["10,000,000 random codes of 64 bits"]["batch_index_to_faiss"],
            1,
        )
    )
    for name, title in COMPILED.items():
        ratio = encoding["photos of 256 x 256"][name]["times_eager"]
        bars.append(_times(f"Image files to codes by {title}", "against PyTorch eager", ratio, 3))
    loop, jobs = speed["evaluation"]["times_faster"], speed["jobs"]
    bars.append(_times("All retrieval measures at COCO's size", "against an argsort per query", loop, 20))
    for key, against in {
        "times_faster_than_one_thread": "against one after the other, one thread",
        "times_faster": "against one after the other, a thread per core",
    }.items():
        bars.append(_times("Trainings at once, one per core", against, jobs[key], 1.7))
    ticks = {1: "1x", 2: "2x", 5: "5x", 10: "10x", 20: "20x", 50: "50x", 100: "100x"}
    return Panel("Times faster", "longer is better; logarithmic", bars, ticks, log=True)


def _times(title: str, against: str, value: float, goal: float) -> Bar:
    shown = f"{math.floor(value)}x" if value >= 10 else f"{value:.1f}x"  # 19.6 does not meet 20
    return Bar(title, against, value, goal, shown, f"goal {goal:g}x")


def shares(results: Results) -> Panel:
    """How much of the compiled network's own speed is left when files have to be decoded beside it."""
    bars = []
    for size in ("256 x 256", "500 x 375", "4000 x 3000"):
        for name, title in COMPILED.items():
            share = results["encoding"][f"photos of {size}"][name]["share_of_alone"]
            against = "of what the network alone does"
            bars.append(
                _percent(f"{title}, files of {size}", against, share, 0.9, f"{share:.0%}", "goal 90 %")
            )
    return Panel("Loading beside computing", "longer is better; share of the network alone", bars, _PERCENT)


def limits(results: Results) -> Panel:
    """How much of what is allowed is used."""
    speed = results["speed"]
    solver, seconds = speed["solver"]["exact_share_of_step"], speed["start_up"]["help_seconds"]
    read = results["search"]["10,000,000 random codes of 64 bits"]["scan_to_read"]
    epoch, waited = speed["training"]["times_products"], results["load"]["one_client"]["p50_ms"]
    bars = [
        _percent(
            "The exact weight solver", "of a training step", solver / 0.1, 1, f"{solver:.1%}", "limit 10 %"
        ),
        _percent(
            "centerhash --help", "until it is there", seconds / 0.5, 1, f"{seconds:.2f} s", "limit 0.5 s"
        ),
        _percent(
            "A scan of 10 million codes", "times merely reading them", read / 2, 1, f"{read:.2f}x", "limit 2x"
        ),
        _percent(
            "An epoch on frozen features",
            "times its matrix products, one thread",
            epoch / 1.3,
            1,
            f"{epoch:.2f}x",
            "limit 1.3x",
        ),
        _percent(
            "An answer of the server by id",
            "a million codes, one client, median",
            waited / 5,
            1,
            f"{waited:.1f} ms",
            "limit 5 ms",
        ),
    ]
    for name in ("training", "encoding", "serving"):
        ratio = results["busy"][name]["ratio beside 2"]
        title, against = f"{name.capitalize()} beside two busy programs", "times the same alone, two cores"
        bars.append(_percent(title, against, ratio / 2.2, 1, f"{ratio:.2f}x", "limit 2.2x"))
    return Panel("Within a limit", "shorter is better; share of the limit", bars, _PERCENT, limit=True)


def searching(results: Results) -> Panel:
    """How much of a scan's time a search by tables takes."""
    tables, bars = results["multi_index"], []
    for key, (title, goal) in TABLES.items():
        if found := tables.get(f"{key} codes, k 10"):
            share = found["tables_to_whole"]
            bars.append(_share_of_scan(title, "median, of a scan that reads them all", share, goal))
            share = found["tables_p99_to_scan_p99"]
            bars.append(_share_of_scan(title, "99th percentile, of the scan's", share, 1))
    ticks = {0.001: "0.1 %", 0.01: "1 %", 0.1: "10 %", 1: "100 %"}
    note = "shorter is better; share of a scan, logarithmic"
    return Panel("Exact search by tables, one thread", note, bars, ticks, log=True, limit=True)


def _share_of_scan(title: str, against: str, share: float, goal: float) -> Bar:
    return Bar(title, against, share, goal, f"{100 * share:.3g} %", f"limit {100 * goal:g} %")


def growing(results: Results) -> Panel:
    """By how much memory grows with each item."""
    memory = results["memory"]
    code = memory["bytes of a code"]
    bars = [
        Bar(
            title,
            "at its peak",
            max(1.0, growth),
            code,
            f"{growth:.0f} bytes",
            f"limit {code}, those of a code",
        )
        for name, title in MEMORY.items()
        for growth in [memory[name]["bytes per item"]]
    ]
    ticks = {1: "1", 10: "10", 100: "100", 1000: "1,000"}
    return Panel(
        "Memory per item",
        "shorter is better; growth, logarithmic",
        bars,
        ticks,
        log=True,
        limit=True,
    )


def panels(results: Results) -> list[Panel]:
    """All panels, from the top."""
    return [made(results) for made in (faster, searching, limits, shares, growing)]


_PERCENT = {0: "0 %", 0.25: "25 %", 0.5: "50 %", 0.75: "75 %", 1: "100 %"}


def _percent(title: str, against: str, value: float, goal: float, shown: str, goal_shown: str) -> Bar:
    return Bar(title, against, value, goal, shown.replace("%", " %"), goal_shown)


def missed(results: Results) -> list[str]:
    """A line for every measurement that misses its goal."""
    bars = [bar for panel in panels(results) for bar in panel.bars if not panel.is_met(bar)]
    return [f"goal missed: {bar.title} ({bar.against}): {bar.shown}, {bar.goal_shown}" for bar in bars]


def server_line(results: Results) -> str:
    """The server under load, which is no ratio, in words."""
    load = results["load"]
    setting, quick, slow = load["setting"], load["by_id"], load["by_upload"]
    errors = quick["errors"] + slow["errors"]
    return (
        f"Server: {setting['clients']} clients at once for {setting['seconds']:.0f} s on {setting['codes']:,} codes: "
        f"{errors or 'no'} errors; 99 % of answers within {quick['p99_ms']:.0f} ms by id, "
        f"{slow['p99_ms']:.0f} ms by upload"
    )


def machine_line(results: Results) -> str:
    """What it was measured on."""
    machine, versions = results["speed"]["machine"], results["speed"]["versions"]
    commits = {part.get("commit") or "unknown" for part in results.values()}
    return (
        f"Measured on {machine['cores']} cores ({machine['processor']}), PyTorch {versions['torch']}, "
        f"commit {' and '.join(sorted(commits))}; `make bench` measures your machine"
    )


def draw(results: Results) -> str:
    """The whole picture as an SVG."""
    top, parts = 62.0, list[str]()
    for panel in panels(results):
        parts += _panel(panel, top)
        top += HEAD + ROW * len(panel.bars) + 18
    parts += [
        _text(24, top + 16, server_line(results), 12, SOFT),
        _text(24, top + 36, machine_line(results), 12, SOFT),
    ]
    height = round(top + 56)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
            'role="img" aria-label="Speed against others, with goals">',
            "<style>text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}</style>",
            f'<rect width="{WIDTH}" height="{height}" rx="10" fill="#ffffff"/>',
            _text(24, 40, "Speed against others, measured side by side", 20, INK, 700),
            *_legend(),
            *parts,
            "</svg>\n",
        ]
    )


def _legend() -> Iterator[str]:
    for x, colour, words in ((560, MET, "goal met"), (658, MISSED, "goal missed")):
        yield f'<rect x="{x}" y="28" width="14" height="14" rx="2" fill="{colour}"/>'
        yield _text(x + 20, 40, words, 12, SOFT)
    yield _mark(786, 25, 45)
    yield _text(796, 40, "the goal", 12, SOFT)


def _panel(panel: Panel, top: float) -> Iterator[str]:
    end = top + HEAD + ROW * len(panel.bars)
    yield f'<path d="M24 {top:g}H{WIDTH - 24}" stroke="{GRID}"/>'
    yield _text(24, top + 32, panel.title, 16, INK, 700)
    yield _text(24, top + 52, panel.note, 12, SOFT)
    for tick, words in panel.ticks.items():
        x = LEFT + panel.place(tick)
        yield f'<path d="M{x:.1f} {top + HEAD - 22:g}V{end - 6:g}" stroke="{GRID}"/>'
        yield _text(x, top + HEAD - 28, words, 11, SOFT, anchor="middle")
    for number, bar in enumerate(panel.bars):
        yield from _bar(panel, bar, top + HEAD - 14 + ROW * number)


def _bar(panel: Panel, bar: Bar, top: float) -> Iterator[str]:
    length, goal = panel.place(bar.value), panel.place(bar.goal)
    yield _text(24, top + 14, bar.title, 13, INK, 600)
    yield _text(24, top + 31, bar.against, 12, SOFT)
    colour = MET if panel.is_met(bar) else MISSED
    yield f'<rect x="{LEFT}" y="{top + 4:g}" width="{max(length, 2):.1f}" height="22" rx="3" fill="{colour}"/>'
    yield _mark(LEFT + goal, top - 1, top + 31)
    x = LEFT + max(length, goal) + 12
    goal_words = (
        f'<tspan dx="8" font-size="12" font-weight="400" fill="{SOFT}">{escape(bar.goal_shown)}</tspan>'
    )
    yield _text(x, top + 20, bar.shown, 14, INK, 700).replace("</text>", f"{goal_words}</text>")


def _mark(x: float, top: float, end: float) -> str:
    """The mark of a goal: dark with a light edge, seen on a bar and beside it."""
    line = f'd="M{x:.1f} {top:g}V{end:g}"'
    return f'<path {line} stroke="#ffffff" stroke-width="5"/><path {line} stroke="{GOAL}" stroke-width="2"/>'


def _text(
    x: float, y: float, words: str, size: int, colour: str, weight: int = 400, anchor: str = "start"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:g}" font-size="{size}" fill="{colour}" font-weight="{weight}" '
        f'text-anchor="{anchor}">{escape(words)}</text>'
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images" / "bench.svg")
    arguments = parser.parse_args()
    results = {name: json.loads((arguments.results / f"{name}.json").read_text()) for name in NAMES}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(draw(results))
    for line in missed(results):
        print(line)
    print(arguments.out)


if __name__ == "__main__":
    main()
