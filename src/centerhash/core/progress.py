"""Progress of long work: its callback, and bars on a terminal or in a notebook."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID


class Progress(Protocol):
    """A callback that receives the stage of the work ("features"), two counts, and a note ("loss 0.71")."""

    def __call__(self, stage: str, done: int, total: int, note: str = "", /) -> None:
        """Move the bar of `stage` to `done` of `total`."""


def silent(stage: str, done: int, total: int, note: str = "", /) -> None:
    """Do nothing; the default callback of internal functions."""


@contextmanager
def bars(console: Console | None = None) -> Iterator[Progress]:
    """Show one bar per stage on stderr while the block runs; silent unless stderr is a terminal or a notebook."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    console = console or Console(stderr=True, highlight=False, markup=False, emoji=False)
    with RichProgress(
        TextColumn("{task.description:<10}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
        # A step such as a training run takes minutes.
        speed_estimate_period=3600,
        disable=not (console.is_terminal or console.is_jupyter),
    ) as open_bars:
        tasks: dict[str, TaskID] = {}

        def move(stage: str, done: int, total: int, note: str = "", /) -> None:
            if stage not in tasks:
                tasks[stage] = open_bars.add_task(stage, total=total, note=note)
            open_bars.update(tasks[stage], completed=done, total=total, note=note)

        yield move


def resolve_progress(progress: bool | Progress) -> AbstractContextManager[Progress]:
    """Open the argument `progress` of a public function: True for bars, False for nothing, or a custom callback."""
    if progress is True:
        return bars()
    return nullcontext(silent if progress is False else progress)
