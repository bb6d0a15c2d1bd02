"""Checkpoints: everything that a run needs to resume, in one safetensors file. Nothing is ever unpickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor, nn

from centerhash.core.errors import DataError
from centerhash.networks.tensors import load_tensors, save_tensors

CHECKPOINT, HEAD_CHECKPOINT = "checkpoint.safetensors", "checkpoint-head.safetensors"  # in the run's folder

EpochRow: TypeAlias = dict[str, float]  # one line of the log: epoch, loss, its parts, learning rate, seconds
Modules: TypeAlias = Mapping[str, nn.Module]


def store(path: Path, modules: Modules, optimizer: torch.optim.Optimizer, log: list[EpochRow]) -> None:
    """Write modules, optimizer and log as one safetensors file, atomically."""
    tensors = {
        f"{kind}.{name}": value
        for kind, module in modules.items()
        for name, value in module.state_dict().items()
    }
    for number, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{name}": torch.as_tensor(value) for name, value in state.items()}
    save_tensors(path, tensors, {"log": json.dumps(log)})


def restore(path: Path, modules: Modules, optimizer: torch.optim.Optimizer) -> list[EpochRow]:
    """Read a file written by `store` into modules and optimizer; return the log so far."""
    try:
        tensors, metadata = load_tensors(path)
        log: list[EpochRow] = json.loads(metadata["log"])
        for kind, module in modules.items():
            prefix = f"{kind}."
            module.load_state_dict(
                {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
            )
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            if key.startswith("optimizer."):
                _, number, name = key.split(".", 2)
                state.setdefault(int(number), {})[name] = value
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
        if not isinstance(log, list) or [row["epoch"] for row in log] != list(range(1, len(log) + 1)):
            raise ValueError("its log does not list the first epochs")
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, IndexError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(
            f"the checkpoint '{path}' is damaged or of another run ({reason}): delete it to train from the start."
        ) from None
    for parameter, known in optimizer.state.items():
        for name, value in known.items():
            # a fused step relies on the memory layout of the parameter
            if value.shape == parameter.shape and value.stride() != parameter.stride():
                known[name] = torch.empty_like(parameter).copy_(value)
    return log
