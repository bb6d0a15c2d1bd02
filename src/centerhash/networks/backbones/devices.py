"""The device to compute on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from centerhash.core.errors import ConfigError

if TYPE_CHECKING:
    import torch


def choose_device(name: str = "auto") -> torch.device:
    """The device to compute on: the GPU where there is one, unless a name is given."""
    import torch

    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # a value must come back: "meta" has none
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ConfigError(
            f"device '{name}' cannot be used: {reason}. Try `device=\"cpu\"` or auto."
        ) from None
    return device
