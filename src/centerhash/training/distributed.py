"""One process or several: shares of a batch, gathered outputs, mixed precision.

`torchrun --nproc-per-node 2 -m centerhash train ...` starts the processes and Lightning Fabric joins them (gloo on
CPUs, nccl on GPUs). Every process computes its share of each batch, and the loss sees the gathered batch, so
that pairs and triplets cross the processes and the result is that of one process with the same batch, up to rounding.

Every process computes the loss of the whole batch, and the backward pass of `gather` sums over the processes, so the
gradient of a share is `size` times too large. The mean over the processes, which follows, corrects this.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from centerhash.core.errors import ConfigError
from centerhash.losses.base import HeadOutput
from centerhash.networks.backbones import choose_device
from centerhash.networks.heads import Dropout
from centerhash.training.config import Precision

# One process may compute features for hours while the others wait.
_TIMEOUT = timedelta(days=2)
_BACKENDS = {"cuda": "nccl", "cpu": "gloo", "mps": "gloo"}
_FABRIC_PRECISION: dict[Precision, Any] = {"32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}


class ProcessGroup:
    """This process alone, or all that torchrun started; several, and mixed precision, use Lightning Fabric."""

    def __init__(self, device: str = "auto", precision: Precision = "32", size: int = 1) -> None:
        self.device, self.size, self.rank = choose_device(device), size, 0
        self._fabric: Any = None
        if precision == "16" and self.device.type == "cpu":
            raise ConfigError("precision 16 needs a GPU: use bf16 or 32 here.")
        if size > 1 or precision != "32":
            self._fabric = _launched(self.device, precision, size)
            self.rank, self.device = self._fabric.global_rank, self._fabric.device

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and reports progress."""
        return self.rank == 0

    def share(self, count: int) -> slice:
        """Return which of `count` rows belong to this process: consecutive ones, in the order of the ranks."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def setup(
        self, network: nn.Module, optimizer: torch.optim.Optimizer
    ) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Wrap network and optimizer for the processes: the network in DDP if there are several."""
        wrapped: tuple[nn.Module, torch.optim.Optimizer] = network, optimizer
        return wrapped if self._fabric is None else self._fabric.setup(network, optimizer)

    def autocast(self) -> AbstractContextManager[Any]:
        """Compute in the precision of the group within the block."""
        return nullcontext() if self._fabric is None else self._fabric.autocast()

    def backward(self, loss: Tensor) -> None:
        """Back-propagate; Fabric scales the loss if the precision requires it."""
        (torch.autograd.backward if self._fabric is None else self._fabric.backward)(loss)

    def gather(self, output: HeadOutput, count: int) -> HeadOutput:
        """Return all `count` rows of a batch; their gradients are summed over the processes."""
        return output if self.size == 1 else output.each(lambda rows: self._gathered(rows, count))

    def _gathered(self, rows: Tensor, count: int) -> Tensor:
        batch = rows.new_zeros(count, *rows.shape[1:])
        batch[self.share(count)] = rows
        # An all_gather would not accept shares that differ in length.
        return _summed(batch)

    def barrier(self) -> None:
        """Wait for all processes."""
        if self._fabric is not None:
            self._fabric.barrier()

    def fill_cache(self, count: int, compute: Callable[[slice], object]) -> None:
        """Compute this process's share of `count` rows into a cache, and wait for the others; one process skips this."""
        if self.size > 1:
            compute(self.share(count))
            self.barrier()


def _launched(device: torch.device, precision: Precision, size: int) -> Any:
    from lightning_fabric import Fabric
    from lightning_fabric.strategies.ddp import DDPStrategy

    settings: dict[str, Any] = {"devices": 1 if device.index is None else [device.index]}
    if size > 1:
        local, backend = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), _BACKENDS[device.type]
        strategy = DDPStrategy(process_group_backend=backend, timeout=_TIMEOUT)
        settings = {"devices": local, "num_nodes": size // local, "strategy": strategy}
    fabric = Fabric(accelerator=device.type, precision=_FABRIC_PRECISION[precision], **settings)
    fabric.launch()
    return fabric


def join_processes(device: str = "auto", precision: Precision = "32") -> ProcessGroup:
    """Join the processes that torchrun started, or return this one alone."""
    return ProcessGroup(device, precision, int(os.environ.get("WORLD_SIZE", "1")))


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
    total: Tensor = _Sum.apply(value)  # type: ignore[no-untyped-call]
    return total


class SharedNorm(nn.BatchNorm1d):
    """Batch norm over the batch of all processes, by plain sums: torch's own is for GPUs only."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalize rows (B, width) by mean and variance over all processes' rows."""
        if not self.training:
            return super().forward(input)
        count = _summed(input.new_tensor(float(len(input))))
        mean = _summed(input.sum(dim=0)) / count
        variance = _summed(((input - mean) ** 2).sum(dim=0)) / count
        with torch.no_grad():
            statistics: Any = self
            statistics.running_mean.lerp_(mean, self.momentum)
            statistics.running_var.lerp_(variance * count / (count - 1).clamp_min(1), self.momentum)
            statistics.num_batches_tracked.add_(1)
        output = (input - mean) / torch.sqrt(variance + self.eps)
        return output * self.weight + self.bias if self.affine else output


class SharedDropout(Dropout):
    """Dropout whose mask is drawn for the batch of all processes, of which each uses its own rows.

    `single` is the layer of one process with the whole batch.
    """

    group: ProcessGroup
    single: Dropout

    def forward(self, units: Tensor) -> Tensor:
        """Drop the entries that one process with the whole batch would drop."""
        if not self.training or not self.p:
            return units
        count = torch.tensor(len(units), device=units.device)
        dist.all_reduce(count)
        mask = self.single.mask((int(count), *units.shape[1:]), units)
        return units * mask[self.group.share(int(count))]


def share_layers(network: nn.Module, group: ProcessGroup) -> None:
    """Make batch norms over rows and dropouts act on the batch of all processes, in place; names do not change.

    Every process must hold the same random state, which `torch.manual_seed` with the same seed gives. Parameters are
    new objects, so this comes before the optimizer.
    """
    if group.size == 1:
        return
    for name, layer in network.named_children():
        if type(layer) is nn.BatchNorm1d:
            shared = SharedNorm(layer.num_features, layer.eps, layer.momentum, layer.affine)
            shared.load_state_dict(layer.state_dict())
            network._modules[name] = shared.to(group.device)
        elif isinstance(layer, Dropout):
            dropout = SharedDropout(layer.p)
            dropout.group, dropout.single = group, layer
            network._modules[name] = dropout
        else:
            share_layers(layer, group)
