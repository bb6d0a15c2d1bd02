"""Check arrays and numbers that callers pass: numpy arrays, torch tensors on any device, nested lists."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import InputError

BLOCK = 4096  # rows looked at or computed with at once


def as_array(values: Any, name: str) -> NDArray[Any]:
    """Return numbers as a numpy array (a view where it can be); InputError for anything that holds no numbers."""
    given = type(values).__name__
    if hasattr(values, "detach"):  # a tensor: numpy reads none with a gradient, on a GPU, or of bfloat16
        values = values.detach().cpu()
        values = values.float() if str(values.dtype) == "torch.bfloat16" else values
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:  # rows of different lengths, sparse tensors
        raise InputError(f"{name} cannot be read as an array: {error}.") from error
    if array.dtype.kind not in "biuf" or array.ndim == 0:
        raise InputError(
            f"{name} must be a numpy array, a torch tensor or a nested list of numbers, got {given}"
            + (f" of {array.dtype}." if array.ndim else ".")
        )
    return array


def whole_number(value: Any, name: str, least: int, most: int | None = None) -> int:
    """Return `value` as int when it is a whole number from `least` to `most`."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < least or (most is not None and value > most):
        limits = f"of at least {least:,}" if most is None else f"from {least:,} to {most:,}"
        raise InputError(f"{name} must be a whole number {limits}, got {value!r}.")
    return int(value)


def check_features(features: NDArray[Any], width: int | None = None) -> NDArray[Any]:
    """Features (N, D) of finite floats, with D the `width` of the training features; InputError for anything else."""
    features = np.asarray(features)
    if features.ndim != 2 or features.dtype.kind != "f" or features.shape[1] != (width or features.shape[1]):
        raise InputError(
            f"features must be a float array of shape (N, {width or 'D'}), got {features.dtype} of shape "
            f"{features.shape}."
        )
    for start in range(0, len(features), BLOCK):
        bad = ~np.isfinite(features[start : start + BLOCK]).all(axis=1)
        if bad.any():
            raise InputError(f"features hold NaN or infinity, first in row {start + int(bad.argmax())}.")
    return features
