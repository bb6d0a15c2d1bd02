from __future__ import annotations

import pytest

from centerhash.core.errors import ConfigError, InputError, first_reasons, nearest_names, unknown_name


@pytest.mark.parametrize(("received", "hint"), [("isc", "'ics'"), ("EWCS", "'Ewcs'"), ("zzzzzz", None)])
def test_unknown_name(received: str, hint: str | None) -> None:
    error = unknown_name("method", received, iter(["ics", "csq", "Ewcs"]), see="See `centerhash methods`.")
    assert isinstance(error, ConfigError)
    assert (f"mean {hint}?" in str(error)) == ("mean" in str(error)) == (hint is not None)
    assert "Ewcs, csq, ics" in str(error)


def test_nearest_names() -> None:
    names = [f"name {number}" for number in range(5001)]
    assert nearest_names("name", names, 1, 0.5) == []
    assert nearest_names("name 7", names[:5000], 1, 0.5) == ["name 7"]


def test_first_reasons() -> None:
    assert first_reasons(["a", InputError("b")]) == "  a\n  b"
    assert first_reasons("abcdefg", ", see x.txt").endswith("  e\n  ... and 2 more, see x.txt")
