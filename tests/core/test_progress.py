from __future__ import annotations

from typing import Any

from rich.console import Console

from centerhash.core.progress import bars, resolve_progress, silent


def test_one_bar_per_stage_with_its_note() -> None:
    console = Console(record=True, force_terminal=True, width=100)
    with bars(console) as tell:
        tell("features", 1, 2)
        tell("training", 3, 3, "loss 0.71")
        tell("features", 2, 2)
    text = console.export_text()
    assert "features" in text
    assert "2/2" in text
    assert "loss 0.71" in text


def test_what_a_public_function_takes() -> None:
    calls: list[tuple[Any, ...]] = []
    with resolve_progress(lambda *call: calls.append(call)) as tell:
        tell("stage", 1, 2, "note")
    assert calls == [("stage", 1, 2, "note")]
    with resolve_progress(False) as tell:
        assert tell is silent
    with resolve_progress(True) as tell:
        tell("stage", 1, 2)  # no terminal here: nothing is shown
