"""The sums of docs/scale.md, computed again."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "scale.md").read_text()
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


def test_a_scan_is_in_proportion() -> None:
    million, ten, billion = rows("Time and memory to search")[:3]  # then come tables of tables
    assert [size(row[1]) for row in (million, ten, billion)] == [8e6, 8e7, 8e9]
    for column in (2, 3):
        once, measured = (float(row[column].split()[0]) for row in (billion, ten))
        assert abs(once - 100 * measured) < 1e-6
