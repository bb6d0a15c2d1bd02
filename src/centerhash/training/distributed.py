"""One process or many: what training needs to know of the others.

`torchrun --nproc-per-node 2 -m centerhash train ...` starts the processes and Lightning Fabric joins them (gloo on
cpu_count, nccl on GPUs). Every process works on its share of each batch, and the loss sees the gathered batch, so
that pairs and triplets cross the processes and the result is that of one process with the same batch, up to rounding.

How the gradients add up: every process computes the whole loss, and the backward pass of `gather` sums over the
processes, so a share's gradient is `size` times too large; the mean over the processes that follows sets it right.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from centerhash.core.errors import ConfigError
from centerhash.networks.backbones import choose_device
from centerhash.networks.heads import Dropout, HeadOutput
from centerhash.training.config import Precision

_PATIENCE = timedelta(days=2)  # one process may compute features for hours while the others wait


class Team:
    """This process alone."""

    rank, size = 0, 1

    def __init__(self, device: str | torch.device = "auto") -> None:
        self.device = choose_device(device) if isinstance(device, str) else device

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and shows progress."""
        return self.rank == 0

    def share(self, count: int) -> slice:
        """Which of `count` rows are this process's: consecutive ones, in the order of the ranks."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def setup(
        self, network: nn.Module, optimizer: torch.optim.Optimizer
    ) -> tuple[nn.Module, torch.optim.Optimizer]:
        """The network as it is to be called, and its optimizer."""
        return network, optimizer

    def autocast(self) -> AbstractContextManager[Any]:
        """Within it, the network computes in the precision asked for."""
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        """Back-propagate."""
        torch.autograd.backward(loss)

    def gather(self, output: HeadOutput, count: int) -> HeadOutput:
        """All `count` rows of a batch from the shares of all processes, with their gradients."""
        return output

    def wait(self) -> None:
        """Return when all processes are here."""


class FabricTeam(Team):
    """Several processes, or mixed precision, by Lightning Fabric."""

    def __init__(self, device: str | torch.device = "auto", precision: Precision = "32") -> None:
        from lightning_fabric import Fabric
        from lightning_fabric.strategies.ddp import DDPStrategy

        chosen = choose_device(device) if isinstance(device, str) else device
        kind = {"32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}[precision]
        self.size = int(os.environ.get("WORLD_SIZE", "1"))
        local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        settings: dict[str, Any] = {"accelerator": chosen.type, "devices": 1}
        if self.size > 1:
            strategy = DDPStrategy(process_group_backend=_backend(chosen), timeout=_PATIENCE)
            settings |= {"devices": local, "num_nodes": self.size // local, "strategy": strategy}
        elif chosen.index is not None:
            settings["devices"] = [chosen.index]
        self._fabric = Fabric(precision=cast(Any, kind), **settings)
        self._fabric.launch()
        self.rank, self.device = self._fabric.global_rank, self._fabric.device

    def setup(
        self, network: nn.Module, optimizer: torch.optim.Optimizer
    ) -> tuple[nn.Module, torch.optim.Optimizer]:
        """The network behind DDP where there are several processes."""
        wrapped: tuple[nn.Module, torch.optim.Optimizer] = self._fabric.setup(network, optimizer)
        return wrapped

    def autocast(self) -> AbstractContextManager[Any]:
        """Within it, the network computes in the precision asked for."""
        return self._fabric.autocast()

    def backward(self, loss: Tensor) -> None:
        """Back-propagate; Fabric scales the loss where the precision needs it."""
        self._fabric.backward(loss)

    def gather(self, output: HeadOutput, count: int) -> HeadOutput:
        """All rows of a batch; their gradients are summed over the processes."""
        if self.size == 1:
            return output
        return output.each(lambda rows: _Gather.apply(rows, self, count))  # type: ignore[no-untyped-call]  # untyped in torch

    def wait(self) -> None:
        """Return when all processes are here."""
        self._fabric.barrier()


def open_team(device: str = "auto", precision: Precision = "32") -> Team:
    """The processes that torchrun started, or this one alone."""
    if precision == "32" and int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return Team(device)
    if precision == "16" and choose_device(device).type == "cpu":
        raise ConfigError("precision 16 needs a GPU: use bf16 or 32 here.")
    return FabricTeam(device, precision)


def _backend(device: torch.device) -> str:
    return "nccl" if device.type == "cuda" else "gloo"


class _Gather(torch.autograd.Function):
    """Concatenate the shares of all processes; the gradient of the own share is summed over all of them."""

    @staticmethod
    def forward(context: Any, rows: Tensor, team: Team, count: int) -> Tensor:
        context.own, context.rows = team.share(count), count
        whole = torch.zeros(count, *rows.shape[1:], dtype=rows.dtype, device=rows.device)
        whole[context.own] = rows
        dist.all_reduce(whole)  # shares differ in length, which an all_gather would not allow
        return whole

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        total = gradients[0].contiguous().clone()
        dist.all_reduce(total)
        return total[context.own], None, None


class _Sum(torch.autograd.Function):
    """Sum over all processes, of values and of gradients."""

    @staticmethod
    def forward(context: Any, value: Tensor) -> Tensor:
        total = value.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].contiguous().clone()
        dist.all_reduce(total)
        return total


def _summed(value: Tensor) -> Tensor:
    total: Tensor = _Sum.apply(value)  # type: ignore[no-untyped-call]  # untyped in torch
    return total


class SharedNorm(nn.BatchNorm1d):
    """Batch norm over the batch of all processes, by plain sums: torch's own is for GPUs only."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalise rows (B, width) by mean and variance over all processes' rows."""
        if not self.training:
            return super().forward(input)
        count = _summed(input.new_tensor(float(len(input))))
        mean = _summed(input.sum(dim=0)) / count
        variance = _summed(((input - mean) ** 2).sum(dim=0)) / count
        if self.running_mean is not None and self.running_var is not None:
            rate = 0.1 if self.momentum is None else self.momentum
            with torch.no_grad():
                self.running_mean.lerp_(mean, rate)
                self.running_var.lerp_(variance * count / (count - 1).clamp_min(1), rate)
                if self.num_batches_tracked is not None:
                    self.num_batches_tracked.add_(1)
        output = (input - mean) / torch.sqrt(variance + self.eps)
        return output * self.weight + self.bias if self.affine else output


class SharedDropout(Dropout):
    """Dropout whose mask is drawn for the batch of all processes, of which each takes its rows."""

    team: Team
    alone: Dropout  # what one process with the whole batch would use

    def forward(self, units: Tensor) -> Tensor:
        """Drop the entries that one process with the whole batch would drop."""
        if not self.training or not self.p:
            return units
        count = torch.tensor(len(units), device=units.device)
        dist.all_reduce(count)
        mask = self.alone.mask((int(count), *units.shape[1:]), units)
        return units * mask[self.team.share(int(count))]


def share_layers(network: nn.Module, team: Team) -> None:
    """Let batch norms over rows and dropouts act on the batch of all processes, in place; names stay as they are.

    Every process must hold the same random state, which `torch.manual_seed` with the same seed gives. Parameters are
    new objects, so this comes before the optimizer.
    """
    if team.size == 1:
        return
    for name, layer in network.named_children():
        if type(layer) is nn.BatchNorm1d:
            shared = SharedNorm(
                layer.num_features, eps=layer.eps, momentum=layer.momentum, affine=layer.affine
            )
            shared.load_state_dict(layer.state_dict())
            network._modules[name] = shared.to(team.device)
        elif isinstance(layer, Dropout):
            dropout = SharedDropout(layer.p)
            dropout.team, dropout.alone = team, layer
            network._modules[name] = dropout
        else:
            share_layers(layer, team)
