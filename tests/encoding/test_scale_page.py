"""The sums of docs/how-to/large-collections.md, computed again."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "large-collections.md").read_text()
SIZES = {"1 million": 10**6, "10 million": 10**7, "100 million": 10**8}
UNITS = {"B": 1, "MB": 10**6, "GB": 10**9, "TB": 10**12}
SECONDS = {"s": 1, "minutes": 60, "hours": 3600, "days": 86400}
COUNTS = (10**7, 10**9)


def rows(section: str) -> list[list[str]]:
    """The cells of all rows of numbers in the tables of a section."""
    text = PAGE.split(f"## {section}\n")[1].split("\n## ")[0]
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [
        [cell.strip() for cell in line] for line in lines if all(re.search(r"\d", cell) for cell in line[2:])
    ]


def results(name: str) -> dict[str, Any]:
    stored: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
    return stored


def table(section: str, header: str) -> list[list[str]]:
    """The cells of the table of a section whose first line starts so, without its two first lines."""
    lines = PAGE.split(f"## {section}\n")[1].split(f"| {header}")[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def size(text: str) -> float:
    number, unit = text.split()
    return float(number.replace(",", "")) * UNITS[unit]


def test_sizes_are_bytes_times_pictures() -> None:
    found = rows("Sizes")
    assert len(found) == 11
    for _, each, *totals in found:
        assert [size(total) for total in totals] == [int(each.replace(",", "")) * count for count in COUNTS]
    assert [int(first) for first, *_ in found[:5]] == [16, 32, 64, 128, 256]
    assert all(int(bits) == 8 * int(each) for bits, each, *_ in found[:5])


def test_times_are_pictures_by_rate() -> None:
    found = rows("Time to encode")
    assert [int(row[0].split()[0].replace(",", "")) for row in found] == [40, 1_000, 10_000]
    for rate, *times, reads in found:
        per_second = int(rate.split()[0].replace(",", ""))
        for count, text in zip(COUNTS, times, strict=True):
            seconds, spoken = text.split(" = ")
            assert int(seconds.removesuffix(" s").replace(",", "")) == count / per_second
            number, unit = spoken.split()
            assert abs(float(number) * SECONDS[unit] * per_second / count - 1) < 0.02
        assert size(reads.removesuffix("/s")) == per_second * 100_000


def test_the_scan_is_what_was_measured() -> None:
    stored = results("search")
    found = rows("Time and memory to search")
    assert [row[0] for row in found] == ["1 million", "10 million"]
    for name, memory, *cells in found:
        figures = stored[f"{SIZES[name]:,} random codes of 64 bits"]
        assert size(memory) == 8 * SIZES[name]
        assert cells == [f"{figures[what]:.2f} ms" for what in ("scan_ms", "store_ms")]


def test_memory_is_what_was_measured() -> None:
    stored, found = results("memory"), table("Memory of a process", "| small")
    works = ("encoding", "evaluation")
    for work, (_, *cells) in zip(works, found, strict=True):
        figures = stored[work]
        peaks = {int(name.split()[-1]): most for name, most in figures.items() if name.startswith("peak")}
        growth = f"{figures['bytes per item']:,.0f}"
        assert cells == [*(f"{count:,}: {most:.0f} MB" for count, most in peaks.items()), growth]
