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


def test_unknown_name_suggests_the_nearest() -> None:
    error = unknown_name("method", "isc", ["ics", "csq", "ewcs"], see="See `centerhash methods`.")
    assert isinstance(error, ConfigError)
    assert str(error) == (
        "unknown method 'isc'. Did you mean 'ics'? Allowed: csq, ewcs, ics. See `centerhash methods`."
    )


def test_unknown_name_without_anything_near() -> None:
    error = unknown_name("method", "zzzzzz", iter(["ics", "csq"]))
    assert str(error) == "unknown method 'zzzzzz'. Allowed: csq, ics."


@pytest.mark.parametrize("kind", [InputError, ConfigError, DataError, ImageError])
def test_input_errors_are_value_errors(kind: type[Exception]) -> None:
    with pytest.raises(ValueError, match="why"):
        raise kind("why")
    assert issubclass(kind, CenterhashError)


def test_a_result_that_cannot_be_written_is_no_value_error() -> None:
    assert issubclass(OutputError, CenterhashError)
    assert not issubclass(OutputError, ValueError)


def test_an_image_that_cannot_be_read_is_a_data_error() -> None:
    assert issubclass(ImageError, DataError)


def test_unknown_name_does_not_mind_capitals() -> None:
    assert str(unknown_name("label", "DOG", ["cat", "Dog"])).startswith(
        "unknown label 'DOG'. Did you mean 'Dog'?"
    )


def test_the_nearest_of_very_many_names_is_not_looked_for() -> None:
    names = [f"name {number}" for number in range(5001)]
    assert nearest("name", names) is None
    assert nearest("name 7", names[:5000]) == "name 7"


def test_only_the_first_reasons_are_shown() -> None:
    assert first_reasons([]) == ""
    assert first_reasons(["a", InputError("b")]) == "  a\n  b"
    assert first_reasons("abcdef", ", see x.txt", most=4) == "  a\n  b\n  c\n  d\n  ... and 2 more, see x.txt"
    assert first_reasons(map(str, range(1005))).endswith("  4\n  ... and 1,000 more")
