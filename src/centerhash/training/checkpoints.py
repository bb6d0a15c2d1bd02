"""Checkpoints: everything a training needs to resume, in one safetensors file. Nothing is ever unpickled."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor, nn

from centerhash.core.errors import DataError
from centerhash.networks.tensors import load_tensors, save_tensors

EpochRow: TypeAlias = dict[str, float]  # one line of the log: epoch, loss, its parts, learning rate, seconds
Modules: TypeAlias = Mapping[str, nn.Module]


def _optimizer_tensors(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    for number, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            yield f"optimizer.{number}.{name}", torch.as_tensor(value).cpu().contiguous()


def store(path: Path, modules: Modules, optimizer: torch.optim.Optimizer, log: list[EpochRow]) -> None:
    """Write modules, optimizer and log as one safetensors file, whole or not at all."""
    tensors = {
        f"{kind}.{name}": value.cpu().contiguous()
        for kind, module in modules.items()
        for name, value in module.state_dict().items()
    }
    tensors.update(_optimizer_tensors(optimizer))
    save_tensors(path, tensors, {"log": json.dumps(log)})


def restore(path: Path, modules: Modules, optimizer: torch.optim.Optimizer) -> list[EpochRow]:
    """Read what `store` wrote into modules and optimizer; return the log so far."""
    try:
        tensors, metadata = load_tensors(path)
        log: list[EpochRow] = json.loads(metadata["log"])
        for kind, module in modules.items():
            prefix = f"{kind}."
            own = {
                name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)
            }
            module.load_state_dict(own)
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            if key.startswith("optimizer."):
                _, number, name = key.split(".", 2)
                state.setdefault(int(number), {})[name] = value
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
        _lay_out_as_parameters(optimizer)
        if not isinstance(log, list) or [row["epoch"] for row in log] != list(range(1, len(log) + 1)):
            raise ValueError("its log is not that of the first epochs")
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, IndexError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(
            f"the checkpoint '{path}' is damaged or of another run ({reason}): delete it to train from the start."
        ) from None
    return log


def _lay_out_as_parameters(optimizer: torch.optim.Optimizer) -> None:
    """Bring what an optimizer knows of each parameter into its order in memory, which a fused step takes for granted."""
    for parameter, known in optimizer.state.items():
        for name, value in known.items():
            if value.shape == parameter.shape and value.stride() != parameter.stride():
                known[name] = torch.empty_like(parameter).copy_(value)
