"""The README's picture, from the demo's report: search results and weights, as a browser shows them.

make demo && python -m benchmarks.picture demo/report.html docs/images/demo.png
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.browser import browser_page, picture_arguments, show_size

ROWS, CARDS = 3, 6  # what fits a README: the first queries and the first weighted images


def main() -> None:
    parser = picture_arguments(__doc__)
    parser.add_argument("report", type=Path)
    parser.add_argument("picture", type=Path)
    arguments = parser.parse_args()
    with browser_page(1080, 900) as page:
        page.goto(arguments.report.resolve().as_uri())
        page.add_style_tag(
            content="main > :not(#search-results, #what-the-weights-say), section p { display: none }"
            "main { padding: 1rem } section { margin-top: .6rem }"
            f".results:nth-of-type(n+{ROWS + 1}), .example:nth-child(n+{CARDS + 1}) {{ display: none }}"
        )
        arguments.picture.parent.mkdir(parents=True, exist_ok=True)
        page.locator("main").screenshot(path=str(arguments.picture))
    show_size(arguments.picture)


if __name__ == "__main__":
    main()
