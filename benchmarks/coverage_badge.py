"""The share of the code that the tests run, as a small picture and as json: the end of `make coverage`.

coverage json -o coverage.json && python -m benchmarks.coverage_badge coverage.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
BADGE, RESULT = ROOT / "docs" / "images" / "coverage.svg", ROOT / "benchmarks" / "results" / "coverage.json"
GOOD, FAIR, POOR = (90, "#0f766e"), (75, "#b45309"), (0, "#b91c1c")  # from so many percent on


def figures(report: dict[str, Any]) -> dict[str, float]:
    """What coverage's own json says of all files together."""
    totals = report["totals"]
    return {
        "percent": totals["percent_covered"],
        "statements": totals["num_statements"],
        "statements_run": totals["covered_lines"],
        "branches": totals["num_branches"],
        "branches_run": totals["covered_branches"],
    }


def badge(percent: float) -> str:
    """A badge as an SVG; a share is rounded down, since 100 % means all."""
    shown = f"{int(percent)} %"
    colour = next(colour for least, colour in (GOOD, FAIR, POOR) if percent >= least)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="112" height="20" role="img" aria-label="coverage: {shown}">'
        f'<rect width="112" height="20" rx="4" fill="#454f5b"/><path d="M66 0h42a4 4 0 0 1 4 4v12a4 4 0 0 1-4 4H66z" '
        f'fill="{colour}"/><g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" '
        f'text-anchor="middle"><text x="33" y="14">coverage</text><text x="89" y="14">{shown}</text></g></svg>\n'
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("report", type=Path, help="what `coverage json` wrote")
    parser.add_argument("--badge", type=Path, default=BADGE)
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    found = figures(json.loads(arguments.report.read_text()))
    arguments.badge.write_text(badge(found["percent"]))
    arguments.out.write_text(json.dumps(found, indent=2) + "\n")
    print(f"{found['percent']:.1f} % of statements and branches: {arguments.badge}, {arguments.out}")


if __name__ == "__main__":
    main()
