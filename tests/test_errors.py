from __future__ import annotations

import pytest

from centerhash.errors import (
    CenterhashError,
    ConfigError,
    DataError,
    ImageError,
    InputError,
    NotFittedError,
    OutputError,
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


@pytest.mark.parametrize("kind", [NotFittedError, OutputError])
def test_other_errors_are_not_value_errors(kind: type[Exception]) -> None:
    assert issubclass(kind, CenterhashError)
    assert not issubclass(kind, ValueError)


def test_an_image_that_cannot_be_read_is_a_data_error() -> None:
    assert issubclass(ImageError, DataError)
