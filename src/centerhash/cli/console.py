"""The output of the command line: progress on stderr, tables on stdout."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from centerhash.cli.arguments import with_flags
from centerhash.core.errors import CenterhashError, first_reasons
from centerhash.core.extras import missing_library
from centerhash.core.progress import Progress, bars
from centerhash.core.rendering import text_table, visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from centerhash.evaluation import Evaluation
    from centerhash.experiments.tasks import Row, Task
    from centerhash.networks.engines import Engine
    from centerhash.photos import SyncResult


@cache
def stream(stderr: bool = False) -> Console:
    """Return standard output, or stderr, as a console on which labels and file names cannot control the terminal.

    It has no markup and no emoji codes: names are printed as they are, also "[b]" and ":dog:".
    """
    # This import takes as long as all others together.
    from rich.console import Console

    class Plain(Console):
        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(visible(text), **options)

    return Plain(stderr=stderr, highlight=False, markup=False, emoji=False)


# Writing to standard output raises these if it is a file or a pipe.
_WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE)


def run(app: typer.Typer, name: str) -> None:
    """Run a command line: errors of the package exit with code 2 and one message, never a traceback."""
    # A file name may have bytes that are no text, and a terminal may lack "█".
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            app(prog_name=name)
        finally:
            # Errors of writing are reported here, not by Python at exit.
            sys.stdout.flush()
    except (CenterhashError, ImportError) as error:
        message = missing_library(error) if isinstance(error, ImportError) else error
        if message is None:
            raise
        print(f"error: {visible(with_flags(str(message)))}", file=sys.stderr)
        raise SystemExit(2) from None
    except OSError as error:
        if error.errno not in _WRITE_ERRORS or error.filename is not None:
            raise
        # Python would write again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        print(f"error: cannot write the output: {os.strerror(error.errno)}.", file=sys.stderr)
        raise SystemExit(2) from None
    except SystemExit as stop:
        # Typer exits with 130 after an interrupt.
        if stop.code == 130:
            print("interrupted: the same command resumes where it stopped.", file=sys.stderr)
        raise


def progress() -> AbstractContextManager[Progress]:
    """Show one bar per stage on stderr while the block runs, if stderr is a terminal."""
    return bars(stream(stderr=True))


def output(content: str | Table) -> None:
    """Print a line or a table; lines are not wrapped, so that paths can be copied."""
    stream().print(content, soft_wrap=isinstance(content, str))


def log(text: str) -> None:
    """Print a line on stderr."""
    stream(stderr=True).print(text, soft_wrap=True)


def warn(messages: Sequence[str]) -> None:
    """Print warnings on stderr."""
    for message in messages:
        stream(stderr=True).print("warning: ", style="yellow", end="")
        log(with_flags(message))


def print_json(value: Any) -> None:
    """Print a value for machines, on one line."""
    print(json.dumps(value))


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table; see `text_table`."""
    output(text_table(title, columns, rows))


def records(title: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str], as_json: bool) -> None:
    """Print rows as JSON, or their `columns` as a table."""
    if as_json:
        print_json(rows)
        return
    heads = [name.replace("_", " ") for name in columns]
    cells = [[_cell(row[name]) for name in columns] for row in rows]
    output(text_table(title, heads, cells, show_lines=True))


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the singular for 1."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def features_by(engine: Engine | None) -> str:
    """Return which engine computed the features, as the end of a sentence; print its warnings."""
    if engine is None:
        return ""
    warn(engine.warnings)
    return f", features by {engine.name}"


def report_added(result: SyncResult, summary: str) -> None:
    """Print the result of an `add`, and a `summary` of the index after it."""
    from centerhash.data.listing import skipped_text

    if result.broken:
        reasons = first_reasons(result.broken.values())
        warn([f"{counted(len(result.broken), 'image')} skipped as unreadable:\n{reasons}"])
    counts = {
        "under a new path": result.moved,
        "files are gone": result.gone,
        "removed before, left out": result.removed,
    }
    details = "".join(f", {count:,} {state}" for state, count in counts.items() if count)
    output(f"{counted(result.added, 'image')} added, {result.known:,} already known{details}; {summary}")
    if result.given or result.predicted:
        output(f"labels of the added images: {result.given:,} given, {result.predicted:,} predicted")
    if result.skipped:
        output(f"skipped: {skipped_text(result.skipped)}")


def show_query(labels: Iterable[Any]) -> None:
    """Print the labels that explain a query, with their weights."""
    text = ", ".join(f"{row.label} {row.weight:.2f}" for row in labels)
    if text:
        output(f"query: {text}")


def show_results(results: Sequence[Any], columns: Mapping[str, Callable[[Any], str]], note: str = "") -> None:
    """Print a table of results: their distances, ids, labels with shares, and further columns."""
    cells: dict[str, Callable[[Any], str]] = {">distance": lambda row: str(row.distance)}
    if any(row.general is not None for row in results):
        cells[">general"] = lambda row: "-" if row.general is None else str(row.general)
    cells |= {"id": lambda row: str(row.id), "labels": labels_of, **columns}
    rows = [[cell(row) for cell in cells.values()] for row in results]
    table(f"{counted(len(results), 'result')}{note}", tuple(cells), rows)


def labels_of(row: Any) -> str:
    """Return the labels of a result with their shares in percent, and the other labels of the query."""
    share = row.share or {}
    names = dict.fromkeys((*row.labels, *share))
    return ", ".join(f"{name} {share[name]:.0%}" if name in share else name for name in names)


def report_task(done: int, total: int, task: Task, row: Row) -> None:
    """Print a line on stderr for a finished or failed task of an experiment."""
    if "error" in row:
        text = f"failed: {row['error']}"
    else:
        scores = row["evaluation"]
        text = f"mAP {scores['map_retrieved']:.4f} over retrieved, {scores['map_all']:.4f} over all relevant items"
        text += f", {row['train_seconds']:.0f} s"
    log(f"{done}/{total}  {task.name}: {text}")


def report_failures(failures: Sequence[Row], folder: Path) -> None:
    """If tasks failed, list them and exit with code 1."""
    from centerhash.experiments.runner import failure_text

    if failures:
        lines = "\n".join(f"  {failure_text(row)}" for row in failures)
        next_step = f"The same command tries them again; details are in {folder / 'failures.jsonl'}."
        warn([f"{len(failures)} training runs failed, all others are kept:\n{lines}\n{next_step}"])
        raise typer.Exit(1)


def evaluation_notes(result: Evaluation) -> list[str]:
    """Return one line per fact that readers of the metrics need."""
    notes = [
        f"{result.queries:,} queries, {result.database:,} database items, {result.bits} bits; "
        f"ties broken by permutation {result.seed}."
    ]
    if result.queries_without_hits:
        notes.append(
            f"{result.queries_without_hits:,} queries without hits in the top {result.depth:,} count as 0 "
            f"({result.queries_without_relevant:,} have nothing relevant in the database, "
            f"{result.queries_without_labels:,} have no label)."
        )
    if result.queries_in_database:
        state = "left out" if result.exclude_self else "kept: pass --exclude-self to leave it out"
        notes.append(
            f"{result.queries_in_database:,} queries are in the database; a query's own item is {state}."
        )
    return notes
