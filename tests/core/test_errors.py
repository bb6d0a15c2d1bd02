from __future__ import annotations

import pytest

from centerhash.core.errors import (
    CenterhashError,
    ConfigError,
    DataError,
    ImageError,
    InputError,
    OutputError,
    first_reasons,
    nearest,
    unknown_name,
)


@pytest.mark.parametrize(
    ("received", "words"),
    [
        ("isc", "Did you mean 'ics'? Allowed: Ewcs, csq, ics. See `centerhash methods`."),
        ("EWCS", "Did you mean 'Ewcs'?"),
        ("zzzzzz", "'zzzzzz'. Allowed:"),
    ],
)
def test_unknown_name_suggests_the_nearest(received: str, words: str) -> None:
    error = unknown_name("method", received, iter(["ics", "csq", "Ewcs"]), see="See `centerhash methods`.")
    assert isinstance(error, ConfigError)
    assert words in str(error)


def test_the_tree_of_errors() -> None:
    for kind in (InputError, ConfigError, DataError, ImageError):
        assert issubclass(kind, ValueError)
        assert issubclass(kind, CenterhashError)
    assert issubclass(ImageError, DataError)
    assert issubclass(OutputError, CenterhashError)
    assert not issubclass(OutputError, ValueError)


def test_the_nearest_of_very_many_names_is_not_looked_for() -> None:
    names = [f"name {number}" for number in range(5001)]
    assert nearest("name", names) is None
    assert nearest("name 7", names[:5000]) == "name 7"


def test_only_the_first_reasons_are_shown() -> None:
    assert first_reasons([]) == ""
    assert first_reasons(["a", InputError("b")]) == "  a\n  b"
    assert first_reasons("abcdefg", ", see x.txt").endswith("  e\n  ... and 2 more, see x.txt")
    assert first_reasons(map(str, range(1005))).endswith("  4\n  ... and 1,000 more")
