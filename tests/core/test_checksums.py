from __future__ import annotations

import json
from pathlib import Path

import pytest

from centerhash.core.files import read_with_checksum, verify_checksum, with_checksum

VALUE = {"bits": 64, "classes": ["é", "dog"], "threshold": 0.1}


def test_a_sealed_object_comes_back_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "file.json").write_text(json.dumps(with_checksum(VALUE), indent=1))
    assert read_with_checksum(tmp_path / "file.json") == VALUE


def test_a_change_is_noticed() -> None:
    for change in ({"bits": 65}, {"classes": ["e", "dog"]}, {"more": None}, {"checksum": None}):
        with pytest.raises(ValueError, match="it does not match its checksum"):
            verify_checksum({**with_checksum(VALUE), **change}, "it")


def test_only_objects_are_read() -> None:
    with pytest.raises(ValueError, match="it is no json object"):
        verify_checksum([1], "it")
