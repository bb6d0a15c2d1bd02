from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from pydantic import Field, ValidationError

from centerhash.core.errors import ConfigError
from centerhash.core.options import Options, joined, read_options
from centerhash.methods.registry import get_method


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


def test_strings_of_a_command_line_are_converted() -> None:
    assert read_options(Sample, {}, "the sample") == Sample()
    given = {"rate": "0.25", "lambda": "2", "steps": "7", "form": "per_center", "scaled": "no"}
    found = read_options(Sample, given, "the sample").model_dump(by_alias=True)
    assert found == {"rate": 0.25, "lambda": 2.0, "steps": 7, "form": "per_center", "scaled": False}


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("lamda", "lambda"), ("step", "steps"), ("froms", "form"), ("Rate", "rate"), ("zzz", None)],
)
def test_an_unknown_key_names_the_nearest(wrong: str, right: str | None) -> None:
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
        ("rate", "inf", ""),
        ("lambda", "inf", ""),
    ],
)
def test_an_impossible_value_is_named_with_its_option(key: str, value: Any, reason: str) -> None:
    text = problem({key: value})
    assert f"option '{key}' of the sample cannot be {value!r}: " in text
    assert reason in text


def test_every_problem_is_named_at_once() -> None:
    assert len(problem({"rate": -1, "stepps": 2, "scaled": "maybe"}).splitlines()) == 3


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"inner": {"steps": 0}}, "option 'inner.steps' of {} cannot be 0"),
        ({"inner": {"stps": 0}}, "'inner.stps' of {}. Did you mean 'steps'?"),
        ({"inner": 3}, "option 'inner' of {} cannot be 3"),
    ],
)
def test_a_nested_option_is_named_with_its_place(values: dict[str, Any], words: str) -> None:
    assert words.format("the sample") in problem(values, Nested)
    with pytest.raises(ConfigError) as caught:  # of the constructor
        Nested(**values)
    assert words.format("Nested") in str(caught.value)


def test_options_are_frozen() -> None:
    with pytest.raises(ValidationError):
        Sample().rate = 2.0  # type: ignore[misc]


def test_a_method_takes_lambda_by_both_names_also_over_its_own_defaults() -> None:
    for method in ("ics", "ics-printed", "ics-softmax"):
        for name in ("lambda", "entropy"):
            found = get_method(method).options({name: "0.375"}, 64)
            assert found.model_dump()["entropy"] == 0.375
            assert found.model_dump(by_alias=True)["lambda"] == 0.375


def test_resolved_options_survive_json() -> None:
    row = get_method("ics")
    found = row.options({"beta": 0.3, "form": "per_center"}, 16)
    again = row.options(json.loads(json.dumps(found.model_dump(by_alias=True))), 16)
    assert again == found


def test_values_are_joined_layer_by_layer() -> None:
    first = {"epochs": 3, "head": {"hidden": [8], "rotate": True}, "options": {"gamma": 1}}
    last = {"epochs": 4, "head": {"hidden": [16]}}
    assert joined(first, {}, last) == {
        "epochs": 4,
        "head": {"hidden": [16], "rotate": True},
        "options": {"gamma": 1},
    }
    assert first["head"] == {"hidden": [8], "rotate": True}
