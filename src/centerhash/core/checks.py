"""Check arrays and numbers that callers pass: numpy arrays, torch tensors on any device, nested lists."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import InputError


def as_array(values: Any, name: str) -> NDArray[Any]:
    """Return numbers as a numpy array (a view if possible); InputError for anything else, such as ragged lists."""
    if hasattr(values, "detach"):
        # numpy cannot read tensors that have a gradient, are on a GPU, or hold bfloat16.
        values = values.detach().cpu()
        values = values.float() if str(values.dtype) == "torch.bfloat16" else values
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"{name} cannot be read as an array: {error}.") from error
    if array.dtype.kind not in "biuf" or array.ndim == 0:
        raise InputError(
            f"{name} must be an array, a tensor or a nested list of numbers, got {type(values).__name__} of "
            f"{array.dtype}."
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
    """Return features (N, D) of finite floats; `width` is the D of the training features. InputError for all others."""
    features = np.asarray(features)
    if features.ndim != 2 or features.dtype.kind != "f" or features.shape[1] != (width or features.shape[1]):
        raise InputError(
            f"features must be a float array of shape (N, {width or 'D'}), got {features.dtype} of shape "
            f"{features.shape}."
        )
    # A sum is not finite if one of its numbers is not, and needs no memory for a flag of each.
    bad = ~np.isfinite(features.sum(axis=1, dtype=np.float64))
    if bad.any():
        raise InputError(f"features hold NaN or infinity, first in row {int(bad.argmax())}.")
    return features
