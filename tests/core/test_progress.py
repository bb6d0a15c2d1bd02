from __future__ import annotations

from typing import Any

from rich.console import Console

from centerhash.core.progress import bars, resolve_progress, silent


def test_bars() -> None:
    console = Console(record=True, force_terminal=True, width=100)
    with bars(console) as report:
        report("features", 1, 2)
        report("training", 3, 3, "loss 0.71")
        report("features", 2, 2)
    text = console.export_text()
    assert "features" in text
    assert "2/2" in text
    assert "loss 0.71" in text


def test_resolve_progress() -> None:
    calls: list[tuple[Any, ...]] = []
    with resolve_progress(lambda *call: calls.append(call)) as report:
        report("stage", 1, 2, "note")
    assert calls == [("stage", 1, 2, "note")]
    with resolve_progress(False) as report:
        assert report is silent
