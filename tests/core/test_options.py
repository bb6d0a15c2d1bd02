from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import Field

from centerhash.core.errors import ConfigError
from centerhash.core.options import Options, merge_options, read_options


class Sample(Options):
    rate: float = Field(0.5, gt=0)
    entropy: float = Field(1.0, alias="lambda")
    steps: int = Field(3, ge=1)
    form: Literal["joint", "per_center"] = "joint"
    scaled: bool = True


class Nested(Options):
    inner: Sample = Sample()


def problem(values: dict[str, Any], kind: type[Options] = Sample) -> str:
    with pytest.raises(ConfigError) as caught:
        read_options(kind, values, "the sample")
    return str(caught.value)


def test_read_options_of_strings() -> None:
    assert read_options(Sample, {}, "the sample") == Sample()
    texts = {"rate": "0.25", "lambda": "2", "steps": "7", "form": "per_center", "scaled": "no"}
    values = read_options(Sample, texts, "the sample").model_dump(by_alias=True)
    assert values == {"rate": 0.25, "lambda": 2.0, "steps": 7, "form": "per_center", "scaled": False}


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("lamda", "lambda"), ("step", "steps"), ("froms", "form"), ("Rate", "rate"), ("zzz", None)],
)
def test_read_options_unknown(wrong: str, right: str | None) -> None:
    text = problem({wrong: 1})
    assert f"unknown option '{wrong}' of the sample." in text
    assert ("Did you mean" in text) == (right is not None)
    assert f"Did you mean '{right}'?" in text or right is None
    assert "Allowed: rate, lambda, steps, form, scaled." in text


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("rate", "fast", "valid number"),
        ("rate", 0, "greater than 0"),
        ("steps", 0, "greater than or equal to 1"),
        ("steps", 1.5, "integer"),
        ("form", "jont", "'joint' or 'per_center'"),
        ("rate", "nan", ""),
    ],
)
def test_read_options_impossible(key: str, value: Any, reason: str) -> None:
    text = problem({key: value})
    assert f"option '{key}' of the sample cannot be {value!r}: " in text
    assert reason in text


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"inner": {"steps": 0}}, "option 'inner.steps' of {} cannot be 0"),
        ({"inner": {"stps": 0}}, "'inner.stps' of {}. Did you mean 'steps'?"),
        ({"inner": 3}, "option 'inner' of {} cannot be 3"),
    ],
)
def test_read_options_nested(values: dict[str, Any], words: str) -> None:
    assert words.format("the sample") in problem(values, Nested)
    with pytest.raises(ConfigError) as caught:  # of the constructor
        Nested(**values)
    assert words.format("Nested") in str(caught.value)


def test_merge_options() -> None:
    first = {"epochs": 3, "head": {"hidden": [8], "rotate": True}, "options": {"gamma": 1}}
    last = {"epochs": 4, "head": {"hidden": [16]}}
    assert merge_options(first, {}, last) == {
        "epochs": 4,
        "head": {"hidden": [16], "rotate": True},
        "options": {"gamma": 1},
    }
    assert first["head"] == {"hidden": [8], "rotate": True}
