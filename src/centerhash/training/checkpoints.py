"""Checkpoints: everything a training needs to resume, in one safetensors file. Nothing is ever unpickled."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from centerhash.core.errors import DataError
from centerhash.core.files import atomic

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
    with atomic(path) as stream:
        stream.write(save(tensors, {"log": json.dumps(log)}))


def restore(path: Path, modules: Modules, optimizer: torch.optim.Optimizer) -> list[EpochRow]:
    """Read what `store` wrote into modules and optimizer; return the log so far."""
    try:
        with safe_open(path, framework="pt") as stored:
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118  # not a mapping
            log: list[EpochRow] = json.loads((stored.metadata() or {})["log"])
        for kind, module in modules.items():
            prefix = f"{kind}."
            own = {
                name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)
            }
            module.load_state_dict(own)
    except (SafetensorError, RuntimeError, KeyError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(
            f"the checkpoint '{path}' is damaged or of another run ({reason}): delete it to train from the start."
        ) from None
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith("optimizer."):
            _, number, name = key.split(".", 2)
            state.setdefault(int(number), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    return log
