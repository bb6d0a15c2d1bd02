"""What the command line shows: progress on stderr, tables on stdout."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from collections.abc import Iterable, Sequence
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
    from centerhash.search import Added


@cache
def stream(stderr: bool = False) -> Console:
    """Standard output, or stderr, as a console on which labels and file names cannot steer the terminal.

    It knows no markup and no emoji codes: names are printed as they are, also "[b]" and ":dog:".
    """
    from rich.console import Console  # takes as long to import as all else here

    class Plain(Console):
        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(visible(text), **options)

    return Plain(stderr=stderr, highlight=False, markup=False, emoji=False)


# errors of writing to standard output, if that is a file or a pipe
_UNWRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE)


def run(app: typer.Typer, name: str) -> None:
    """Run a command line: our own errors exit with code 2 and one message, never a traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # file names need not be text, nor has every terminal "█"
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            app(prog_name=name)
        finally:
            sys.stdout.flush()  # errors of writing are reported here, not by Python at exit
    except (CenterhashError, ImportError) as error:
        shown = missing_library(error) if isinstance(error, ImportError) else error
        if shown is None:
            raise
        print(f"error: {visible(with_flags(str(shown)))}", file=sys.stderr)
        raise SystemExit(2) from None
    except OSError as error:
        if error.errno not in _UNWRITTEN or error.filename is not None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else Python tries again at exit
        print(f"error: cannot write the output: {os.strerror(error.errno)}.", file=sys.stderr)
        raise SystemExit(2) from None
    except SystemExit as ended:
        if ended.code == 130:  # typer's code for an interrupt
            print("interrupted: the same command resumes where it stopped.", file=sys.stderr)
        raise


def progress() -> AbstractContextManager[Progress]:
    """Show one bar per stage on stderr while the block runs; silent where stderr is not a terminal."""
    return bars(stream(stderr=True))


def output(what: str | Table) -> None:
    """Print a line or a table; a line is not cut where the terminal ends, since half a path cannot be copied."""
    stream().print(what, soft_wrap=isinstance(what, str))


def drawing(lines: str, title: str) -> None:
    """Print a picture of block characters, dark on light, if standard output is a terminal that can show it."""
    terminal = stream()
    if not terminal.is_terminal or not terminal.encoding.lower().startswith("utf"):
        return
    width = max(map(len, lines.splitlines()))
    if width <= terminal.width:
        terminal.print(title)
        for line in lines.splitlines():
            terminal.print(line, style="#000000 on #ffffff", soft_wrap=True)


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


def table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, show_lines: bool = False
) -> None:
    """Print a table; see `text_table`."""
    output(text_table(title, columns, rows, show_lines=show_lines))


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the singular for 1."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def features_by(engine: Engine | None) -> str:
    """Which engine computed the features, as the end of a sentence; what it has to say of itself is a warning."""
    if engine is None:
        return ""
    warn(engine.warnings)
    return f", features by {engine.name}"


def report_added(done: Added, now: str) -> None:
    """Say what became of the images of one `add`; `now` is what there is after it."""
    from centerhash.data.listing import skipped_text

    if done.broken:
        shown = first_reasons(done.broken.values())
        warn([f"{counted(len(done.broken), 'image')} skipped as unreadable:\n{shown}"])
    moved = f", {done.moved:,} under a new path" if done.moved else ""
    gone = f", {done.gone:,} files are gone" if done.gone else ""
    removed = f", {done.removed:,} removed before, left out" if done.removed else ""
    lines = [
        f"{counted(done.added, 'image')} added, {done.known:,} already known{moved}{gone}{removed}; {now}"
    ]
    if done.given or done.predicted:
        lines.append(f"labels of the added images: {done.given:,} given, {done.predicted:,} predicted")
    if done.skipped:
        lines.append(f"skipped: {skipped_text(done.skipped)}")
    output("\n".join(lines))


def show_evaluation(result: Evaluation, title: str) -> None:
    """Print the figures of one evaluation for people."""
    shown = (
        (row.name, f"{row.value:.4f}", "" if row.chance is None else f"{row.chance:.4f}", row.meaning)
        for row in result.measures()
    )
    table(title, ("metric", ">value", ">random", "meaning"), shown)


def show_curve(result: Evaluation) -> None:
    """Print precision and recall of one evaluation by Hamming radius."""
    rows = zip(result.curve.precision, result.curve.recall, result.curve.filled, strict=True)
    shown = (
        (str(radius), "" if precision is None else f"{precision:.4f}", f"{recall:.4f}", f"{filled:,}")
        for radius, (precision, recall, filled) in enumerate(rows)
    )
    table("by Hamming radius", (">radius", ">precision", ">recall", ">queries with items"), shown)


def report_planned(total: int, left: int) -> None:
    """Print on stderr how many training runs a grid has, and how many of them are still to run."""
    kept = f"; the other {total - left:,} are there already" if left < total else ""
    log(f"{left:,} of {total:,} training runs to do{kept}")


def report_task(done: int, total: int, task: Task, row: Row) -> None:
    """Print one line on stderr for a task of an experiment that has ended."""
    if "error" in row:
        text = f"failed: {row['error']}"
    else:
        found = row["evaluation"]
        scores = f"mAP {found['map_peers']:.4f} over retrieved, {found['map_textbook']:.4f} over all relevant items"
        text = f"{scores}, {row['train_seconds']:.0f} s"
    log(f"{done}/{total}  {task.name}: {text}")


def report_failures(failures: Sequence[Row], folder: Path) -> None:
    """If tasks failed, list them and exit with code 1."""
    from centerhash.experiments.runner import failure_text

    if failures:
        shown = "\n".join(f"  {failure_text(row)}" for row in failures)
        next_step = f"The same command tries them again; details are in {folder / 'failures.jsonl'}."
        warn([f"{len(failures)} training runs failed, all others are kept:\n{shown}\n{next_step}"])
        raise typer.Exit(1)


def evaluation_notes(result: Evaluation) -> list[str]:
    """One line per fact that a reader of the figures must know."""
    notes = [
        f"{result.queries:,} queries, {result.database:,} database items, {result.bits} bits; "
        f"ties broken by permutation {result.seed}."
    ]
    if result.depth < result.k:
        notes.append(
            f"The database is smaller than k = {result.k:,}: the depth is {result.depth:,}, all of it."
        )
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
