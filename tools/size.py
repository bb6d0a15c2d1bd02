"""Count the lines of code per package, against the goals.

python -m tools.size            # lines of each package, and of all
python -m tools.size --goals    # next to their goals; exits with 1 if a total is above its goal
"""

from __future__ import annotations

import argparse
import subprocess
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent

# Goals in lines of Python. A package without a goal counts for its total only.
GOALS = {
    "src": 24_800,
    "src/core": 890,
    "src/codes": 105,
    "src/evaluation": 680,
    "src/data": 3_300,
    "src/losses": 2_500,
    "src/methods": 1_300,
    "src/networks": 1_700,
    "src/training": 1_850,
    "src/model": 1_700,
    "src/encoding": 680,
    "src/experiments": 1_200,
    "src/index": 2_810,
    "src/photos": 1_590,
    "src/serve": 1_280,
    "src/cli": 1_980,
    "tests": 23_500,
    "rest": 4_000,
}
FILE_GOALS = {"files in src": 165, "serve/static": 1_600}
OTHERS = (".js", ".css", ".html", ".toml", ".tsv")


def package_of(file: Path) -> list[str]:
    """Return the names under which a file counts: its total, and its package."""
    top = file.parts[0]
    if top in ("benchmarks", "reproduction", "tools"):
        return ["rest", top]
    if len(file.parts) < 3:
        return [top]
    return [top, f"{top}/{Path(file.parts[2]).stem if top == 'src' else file.parts[1]}"]


def count_lines() -> tuple[Counter[str], Counter[str]]:
    """Count lines of Python by package, and lines of other files by suffix, in the files that git lists."""
    python, others = Counter[str](), Counter[str]()
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    for file in (Path(name) for name in listed.splitlines()):
        if file.suffix not in (".py", *OTHERS) or not (ROOT / file).is_file():
            continue
        lines = len((ROOT / file).read_bytes().splitlines())
        if file.suffix == ".py":
            python.update(dict.fromkeys(package_of(file), lines))
            others["files in src"] += file.parts[0] == "src"
        else:
            others[f"*{file.suffix}"] += lines
            others["serve/static"] += lines if "serve/static" in file.as_posix() else 0
    return python, others


def main() -> None:
    """Print the lines, the totals last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--goals", action="store_true", help="compare with the stored goals")
    goals = parser.parse_args().goals
    python, others = count_lines()
    totals = ("src", "tests", "rest")
    for name in sorted(python.keys() - set(totals) - {"examples"}):
        print(f"{name:24}{python[name]:8,}" + (f" of {GOALS[name]:,}" if goals and name in GOALS else ""))
    print()
    for name, lines in sorted(others.items()):
        print(f"{name:24}{lines:8,}" + (f" of {FILE_GOALS[name]:,}" if goals and name in FILE_GOALS else ""))
    print()
    print(
        ", ".join(f"{name} {python[name]:,}" + (f" of {GOALS[name]:,}" if goals else "") for name in totals)
    )
    raise SystemExit(goals and any(python[name] > GOALS[name] for name in totals))


if __name__ == "__main__":
    main()
