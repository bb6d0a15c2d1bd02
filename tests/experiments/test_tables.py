from __future__ import annotations

import csv
import io
from typing import Any

import pytest

from centerhash.core.errors import DataError
from centerhash.experiments.tables import csv_text, latex, markdown, summarize
from tests.stored import stored_row

ROWS = [
    stored_row("ics", 16, 0, 0.6),
    stored_row("ics", 16, 1, 0.8),
    stored_row("ics", 64, 0, 0.9),
    stored_row("ics", 64, 1, 0.9),
    stored_row("csq", 16, 0, 0.5),
    stored_row("csq", 16, 1, 0.5),
    stored_row("csq", 64, 0, 0.7),
]
FAILURE = {"config": {"method": "dch", "bits": 16, "seed": 2}, "error": "out of\n  memory"}


def test_summarize_lines() -> None:
    summary = summarize(list(reversed(ROWS)))
    assert list(summary.lines.values()) == ["CSQ", "ICS"]
    assert summary.bits == [16, 64]
    assert summary.most_seeds == 2


def test_summarize_equal_rows() -> None:
    text = csv_text(summarize([*ROWS, stored_row("csq", 64, 0, 0.75)]))
    assert [row["map_retrieved_mean"] for row in csv.DictReader(io.StringIO(text))][1] == "0.75"


def test_markdown() -> None:
    text = markdown(summarize(ROWS), [FAILURE])
    for line in (
        "| method | 16 bits | 64 bits |",
        "| CSQ | 0.500 ± 0.000 | 0.700 (n=1) |",
        "| ICS | **0.700 ± 0.141** | **0.900 ± 0.000** |",
        "| random ranking | 0.250 | 0.250 |",
        "| ICS | **0.600 ± 0.141** | **0.800 ± 0.000** |",
        "| random ranking | 0.125 | 0.125 |",
        "| ICS | 10.0 | 40.0 | 96 |",
    ):
        assert line in text.splitlines()
    assert text.endswith("## Failed\n\n- dch 16 bits seed 2: out of memory\n")
    assert "Failed" not in markdown(summarize(ROWS))


def test_latex() -> None:
    text = latex(summarize(ROWS))
    assert r"CSQ & 0.500 $\pm$ 0.000 & 0.700 (n=1) \\" in text
    assert r"ICS & \textbf{0.700 $\pm$ 0.141} & \textbf{0.900 $\pm$ 0.000} \\" in text
    assert text.count("over n = 2 seeds}") == text.count(r"\toprule") == 2
    single = latex(summarize([{**ROWS[0], "data": "a_b & 50% {}"}]))
    assert r"\caption{a\_b \& 50\% \{\}, mAP@30 over retrieved relevant items}" in single


def test_csv() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_text(summarize(ROWS)))))
    assert [row["method"] + row["bits"] + row["seeds"] for row in rows] == [
        "csq162",
        "csq641",
        "ics162",
        "ics642",
    ]
    assert float(rows[2]["map_retrieved_mean"]) == pytest.approx(0.7)
    assert float(rows[2]["map_retrieved_std"]) == pytest.approx(0.141421)
    assert rows[1]["map_retrieved_std"] == ""
    assert float(rows[0]["random_all"]) == 0.125
    assert float(rows[3]["train_seconds_mean"]) == 40


def test_missing_cells() -> None:
    rows = [row for row in ROWS if (row["config"]["method"], row["config"]["bits"]) != ("csq", 64)]
    lines = markdown(summarize(rows)).splitlines()
    assert "| CSQ | 0.500 ± 0.000 |  |" in lines
    assert "| CSQ | 10.0 |  | 96 |" in lines


@pytest.mark.parametrize(
    ("rows", "titles"),
    [
        (
            [
                stored_row("ics", 16, 0, 0.6, options={"lambda": 0.1}),
                stored_row("ics", 16, 0, 0.7, options={"lambda": 0.2}),
                stored_row("ics", 16, 0, 0.8, options={"lambda": 0.1}, head={"hidden": [8]}),
            ],
            ["ICS, lambda=0.1, hidden=None", "ICS, lambda=0.1, hidden=[8]", "ICS, lambda=0.2, hidden=None"],
        ),
        ([stored_row(bits=bits, options={"beta": 1 / bits}) for bits in (16, 32)], ["ICS"]),
        ([stored_row("newer"), stored_row("csq")], ["CSQ", "newer"]),
    ],
    ids=["several settings", "defaults by bits", "unknown method"],
)
def test_titles_of_lines(rows: list[dict[str, Any]], titles: list[str]) -> None:
    assert list(summarize(rows).lines.values()) == titles


@pytest.mark.parametrize("change", [{"fingerprint": "beef"}, {"split": "validation"}])
def test_rows_of_other_data(change: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"(data|split) was"):
        summarize([stored_row(), {**stored_row(seed=1), **change}])
