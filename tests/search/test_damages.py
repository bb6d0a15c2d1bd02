from __future__ import annotations

from pathlib import Path

import pytest

from centerhash.search import verify_index
from tests.search.damages import counted, cuts, make_index, torture
from tests.search.engines.places import use_small_segments


@pytest.mark.slow
@pytest.mark.parametrize("tables", [False, True])
def test_a_damaged_index_answers_rightly_or_says_that_it_is_damaged(
    feature_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tables: bool
) -> None:
    use_small_segments(monkeypatch, 64, tables=tables)
    sound = make_index(tmp_path / "index", feature_run)
    assert len(list(sound.glob("items/*.tables"))) == tables
    assert verify_index(sound) == []
    results, bad = counted(torture(sound, tmp_path, 60, seed=7))
    assert bad == []
    assert results["refused"] > 30


@pytest.mark.parametrize("killed", [False, True])
def test_a_cut_journal_is_always_noticed(feature_run: Path, tmp_path: Path, killed: bool) -> None:
    assert list(cuts(make_index(tmp_path / "index", feature_run), tmp_path, 20, killed=killed)) == [True] * 20
