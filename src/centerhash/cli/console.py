"""What the command line shows: progress on stderr, tables on stdout."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from centerhash.core.progress import Progress, bars
from centerhash.evaluation.result import Evaluation
from centerhash.methods.table import METHODS

if TYPE_CHECKING:
    from centerhash.experiments.bench import Task
    from centerhash.experiments.rows import Row
    from centerhash.networks.engines import Engine

# no markup and no emoji codes: file names and labels are printed as they are, also "[b]" and ":dog:"
out = Console(highlight=False, markup=False, emoji=False)
err = Console(stderr=True, highlight=False, markup=False, emoji=False)


def progress() -> AbstractContextManager[Progress]:
    """Show one bar per stage on stderr while the block runs; silent where stderr is not a terminal."""
    return bars(err)


def warn(messages: Sequence[str]) -> None:
    """Print warnings on stderr."""
    for message in messages:
        err.print("warning: ", style="yellow", end="")
        err.print(message, soft_wrap=True)  # a path that is cut in two cannot be copied


def features_by(engine: Engine | None) -> str:
    """Which engine read the pictures, as the end of a sentence; what it has to say of itself is a warning."""
    if engine is None:
        return ""
    warn(engine.warnings)
    return f", features by {engine.name}"


def evaluation_table(result: Evaluation, title: str) -> Table:
    """The figures of one evaluation for people."""
    table = Table(title=title, title_justify="left", show_header=True)
    table.add_column("measure")
    table.add_column("value", justify="right")
    table.add_column("chance", justify="right")
    table.add_column("what it says", style="dim")
    for row in result.measures():
        chance = "" if row.chance is None else f"{row.chance:.4f}"
        table.add_row(row.name, f"{row.value:.4f}", chance, row.meaning)
    return table


def curve_table(result: Evaluation) -> Table:
    """Precision and recall of one evaluation by Hamming radius."""
    table = Table(title="by Hamming radius", title_justify="left")
    for column in ("radius", "precision", "recall", "queries with items"):
        table.add_column(column, justify="right")
    rows = zip(result.curve.precision, result.curve.recall, result.curve.filled, strict=True)
    for radius, (precision, recall, filled) in enumerate(rows):
        shown = "" if precision is None else f"{precision:.4f}"
        table.add_row(str(radius), shown, f"{recall:.4f}", f"{filled:,}")
    return table


def cell_done(done: int, total: int, cell: Task, row: Row) -> None:
    """Print one line on stderr for a cell of a grid that has ended."""
    if "error" in row:
        text = f"failed: {row['error']}"
    else:
        found = row["evaluation"]
        scores = f"{found['map_peers']:.4f} peers, {found['map_textbook']:.4f} textbook"
        text = f"{scores}, {row['train_seconds']:.0f} s"
    err.print(f"{done}/{total}  {cell.name}: {text}", soft_wrap=True)


def failed_cells(failures: Sequence[Row], folder: Path) -> str:
    """Say which cells failed, and what to do."""
    from centerhash.experiments.tables import failure_text

    shown = "\n".join(f"  {failure_text(row)}" for row in failures)
    return (
        f"{len(failures)} of the trainings failed, all others are kept:\n{shown}\nThe same command tries them "
        f"again; {folder / 'failures.jsonl'} tells more."
    )


def evaluation_notes(result: Evaluation) -> list[str]:
    """One line per fact that a reader of the figures must know."""
    notes = [
        f"{result.queries:,} queries, {result.database:,} database items, {result.bits} bits; "
        f"ties broken by permutation {result.seed}."
    ]
    if result.queries_without_hits:
        notes.append(
            f"{result.queries_without_hits:,} queries without hits in the top {result.k:,} count as 0 "
            f"({result.queries_without_relevant:,} have nothing relevant in the database, "
            f"{result.queries_without_labels:,} have no label)."
        )
    if result.queries_in_database:
        state = "left out" if result.exclude_self else "kept: pass --exclude-self to leave it out"
        notes.append(
            f"{result.queries_in_database:,} queries are in the database; a query's own item is {state}."
        )
    return notes


def methods_table() -> Table:
    """All methods, one per row."""
    table = Table(title="methods", title_justify="left", show_lines=True)
    for column in ("name", "family", "year", "labels", "an image with several labels", "paper"):
        table.add_column(column, no_wrap=column == "name")
    for row in METHODS.values():
        used = "yes" if row.uses_labels else "no"
        table.add_row(row.name, row.family, str(row.year), used, row.multi_label, row.paper)
    return table
