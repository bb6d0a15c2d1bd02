from __future__ import annotations

import csv
import io
from typing import Any

import pytest
from rich.table import Table

from centerhash.core.errors import DataError
from centerhash.experiments.runner import failure_text
from centerhash.experiments.tables import (
    csv_text,
    latex,
    markdown,
    score_text,
    summarize,
    terminal_tables,
    time_texts,
)
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


def columns(table: Table) -> list[list[str]]:
    return [[str(cell) for cell in column.cells] for column in table.columns]


def test_tables_name_the_depth_that_a_small_database_has() -> None:
    rows = [{**row, "images": {**row["images"], "database": 25}} for row in ROWS]
    summary = summarize(rows)
    assert (summary.depth, summarize(ROWS).depth) == (25, 30)
    assert "mAP@25" in markdown(summary)
    assert "mAP@30" not in markdown(summary)


def test_lines_are_in_the_order_of_the_methods_and_bits_ascend() -> None:
    summary = summarize(list(reversed(ROWS)))
    assert [line.title for line in summary.lines] == ["CSQ", "ICS"]
    assert summary.bits == (16, 64)
    assert summary.most_seeds == 2


def test_latex_has_booktabs_deviations_and_the_best_in_bold() -> None:
    text = latex(summarize(ROWS))
    assert text.count(r"\begin{tabular}{lrr}") == text.count(r"\toprule") == text.count(r"\bottomrule") == 2
    assert r"CSQ & 0.500 $\pm$ 0.000 & 0.700 (n=1) \\" in text
    assert r"ICS & \textbf{0.700 $\pm$ 0.141} & \textbf{0.900 $\pm$ 0.000} \\" in text
    assert r"random ranking & 0.250 & 0.250 \\" in text
    assert text.count("over n = 2 seeds}") == 2
    assert "±" not in text


def test_latex_of_one_seed_names_no_deviation_and_escapes_names() -> None:
    text = latex(summarize([{**ROWS[0], "data": "a_b & 50% {}"}]))
    assert r"\caption{a\_b \& 50\% \{\}, mAP@30 over retrieved relevant items}" in text
    assert r"ICS & \textbf{0.600} \\" in text


def test_mean_and_sample_deviation_by_hand() -> None:
    score = summarize(ROWS).lines[1].scores[16]
    assert score.seeds == 2
    assert score.mean("map_peers") == pytest.approx(0.7)
    assert score.deviation("map_peers") == pytest.approx(0.02**0.5)  # sqrt((0.1^2 + 0.1^2) / (2 - 1))
    assert score.mean("train_seconds") == 10
    assert score.mean("unknown") is None


def test_a_row_stored_twice_counts_once() -> None:
    score = summarize([*ROWS, stored_row("csq", 64, 0, 0.75)]).lines[0].scores[64]
    assert score.values("map_peers") == [0.75]  # the later one


def test_texts_of_missing_cells() -> None:
    summary = summarize(ROWS)
    line = summary.lines[1]
    assert score_text(summary, None, "map_peers") == ""
    assert time_texts(line, (16, 32, 64)) == ["10.0", "", "40.0", "96"]


def test_markdown_by_hand() -> None:
    text = markdown(summarize(ROWS))
    assert text.startswith(
        "# toy\n\n8 queries against 40 images, 20 to train on; split: files; mAP@30.\n\n## mAP@30 over retrieved"
    )
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
    assert "Failed" not in text


def test_markdown_names_failures_on_one_line_each() -> None:
    failure = {"config": {"method": "dch", "bits": 16, "seed": 2}, "error": "out of\n  memory"}
    assert failure_text(failure) == "dch 16 bits seed 2: out of memory"
    assert markdown(summarize(ROWS), [failure]).endswith("## Failed\n\n- dch 16 bits seed 2: out of memory\n")


def test_the_validation_split_says_that_queries_do_not_find_themselves() -> None:
    row = stored_row()
    row["evaluation"]["exclude_self"] = True
    assert "8 queries, each without its own item, against 40 images" in summarize([row]).about()


def test_csv_has_one_line_per_method_and_bits() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_text(summarize(ROWS)))))
    assert [(row["method"], row["bits"], row["seeds"]) for row in rows] == [
        ("csq", "16", "2"),
        ("csq", "64", "1"),
        ("ics", "16", "2"),
        ("ics", "64", "2"),
    ]
    assert float(rows[2]["map_peers_mean"]) == pytest.approx(0.7)
    assert float(rows[2]["map_peers_std"]) == pytest.approx(0.141421)
    assert rows[1]["map_peers_std"] == ""
    assert float(rows[0]["chance_textbook"]) == 0.125
    assert float(rows[3]["train_seconds_mean"]) == 40


def test_terminal_tables_hold_the_same_cells() -> None:
    peers, textbook, times = (columns(table) for table in terminal_tables(summarize(ROWS)))
    assert peers == [
        ["CSQ", "ICS", "random ranking"],
        ["0.500 ± 0.000", "0.700 ± 0.141", "0.250"],
        ["0.700 (n=1)", "0.900 ± 0.000", "0.250"],
    ]
    assert textbook[1] == ["0.400 ± 0.000", "0.600 ± 0.141", "0.125"]
    assert times[1:] == [["10.0", "10.0"], ["40.0", "40.0"], ["96", "96"]]


def test_several_settings_of_a_method_get_lines_of_their_own() -> None:
    rows = [
        stored_row("ics", 16, 0, 0.6, options={"lambda": 0.1}),
        stored_row("ics", 16, 0, 0.7, options={"lambda": 0.2}),
        stored_row("ics", 16, 0, 0.8, options={"lambda": 0.1}, head={"hidden": [8]}),
    ]
    assert [line.title for line in summarize(rows).lines] == [
        "ICS, lambda=0.1, hidden=None",
        "ICS, lambda=0.1, hidden=[8]",
        "ICS, lambda=0.2, hidden=None",
    ]


def test_defaults_that_follow_the_bits_make_no_settings() -> None:
    rows = [stored_row(bits=bits, options={"beta": 1 / bits}) for bits in (16, 32)]
    (line,) = summarize(rows).lines
    assert (line.title, sorted(line.scores)) == ("ICS", [16, 32])


def test_a_method_of_another_version_is_shown_by_its_name() -> None:
    assert [line.title for line in summarize([stored_row("newer"), stored_row("csq")]).lines] == [
        "CSQ",
        "newer",
    ]


@pytest.mark.parametrize("change", [{"fingerprint": "beef"}, {"split": "validation"}])
def test_rows_of_different_comparisons_are_not_mixed(change: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"of different comparisons: (data|split) was"):
        summarize([stored_row(), {**stored_row(seed=1), **change}])
