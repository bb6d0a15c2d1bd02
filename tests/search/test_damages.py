from __future__ import annotations

from pathlib import Path

import pytest

from centerhash.search import verify_index
from tests.search.damages import counted, cuts, make_index, torture


@pytest.mark.slow
def test_a_damaged_index_returns_the_right_results_or_an_error(feature_run: Path, tmp_path: Path) -> None:
    sound = make_index(tmp_path / "index", feature_run)
    assert verify_index(sound) == []
    results, bad = counted(torture(sound, tmp_path, 60, seed=7))
    assert bad == []
    assert results["refused"] > 25


def test_a_log_that_was_cut_is_always_noticed(feature_run: Path, tmp_path: Path) -> None:
    assert list(cuts(make_index(tmp_path / "index", feature_run), tmp_path, 15)) == [True] * 15
