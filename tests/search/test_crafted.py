from __future__ import annotations

from pathlib import Path

import pytest

from tests.search.crafted import cases, tried
from tests.search.sound_index import sound_index

pytestmark = pytest.mark.slow

# each of them ended in a traceback, without an end, in gigabytes, or in an index that was found whole
ONCE_WRONG = (
    "state.commits huge",
    "state.terms huge",
    "items.id long text",
    "files.name long text",
    "files.modified infinite",
    "terms.entries huge",
    "an item in another row",
    "an item more",
    "a label of the name of another",
    "a label as bytes",
    "empty postings",
    "codes of an unknown chunk",
    "a name with a zero",
    "an absolute name",
    "a billion terms",
    "a trigger with the name of a table",
    "a journal",
    "no write-ahead log",
    "terms without an end",
    "items without an end",
    "a pipe as index.json",
    "a huge file as index.json",
    "a pipe as model/model.onnx",
    "a huge file as model/model.onnx",
)


def test_a_crafted_index_is_right_or_one_error(tmp_path: Path) -> None:
    known = [case.name for case in cases()]
    assert len(known) > 500
    assert {*ONCE_WRONG} <= {*known}
    chosen = [*ONCE_WRONG, *known[::60]]
    results = dict(tried(list(dict.fromkeys(chosen)), sound_index(tmp_path / "sound"), tmp_path))
    assert results.keys() == {*chosen}
    assert {name: result for name, result in results.items() if result not in ("right", "refused")} == {}
