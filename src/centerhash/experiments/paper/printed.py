"""What the paper prints, for the eye to compare: other backbones, other data, other schedules than ours."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

PRINTED_BITS = (16, 32, 64)
DATA = {"nus-wide": "NUS-WIDE", "coco": "MS COCO"}
_SAME = {"ics-printed": "ics"}  # both stand for the paper's own method


@cache
def printed() -> Mapping[str, Any]:
    """Everything in printed.toml."""
    text = (
        resources.files("centerhash.experiments.paper").joinpath("printed.toml").read_text(encoding="utf-8")
    )
    return tomllib.loads(text)


def printed_map(table: str, data: str, method: str, bits: int) -> float | None:
    """The mAP that a table (alexnet, resnet50, ablation) prints for a method on nus-wide or coco, if it does."""
    values = printed()[table][data].get(_SAME.get(method, method))
    return None if values is None or bits not in PRINTED_BITS else float(values[PRINTED_BITS.index(bits)])
