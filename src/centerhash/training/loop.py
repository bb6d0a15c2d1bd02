"""The training loop: resumable at any epoch with the same result.

Everything random in an epoch (the order of the images, dropout) is drawn from the seed and the epoch's number
alone, so a run that resumes from a checkpoint repeats the steps of an uninterrupted one.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from centerhash.centers import assign_centers, hash_centers
from centerhash.core.errors import DataError, first_line
from centerhash.core.files import parse_json
from centerhash.losses.base import Batch, HashingLoss, HeadOutput
from centerhash.losses.nested import NestedLoss, nested_centers
from centerhash.methods.registry import get_method
from centerhash.model.model import load_tensors, save_tensors, with_prefix
from centerhash.model.spec import ShorterCode
from centerhash.networks.heads import build_head, float_rows
from centerhash.training.config import TrainConfig
from centerhash.training.context import EpochRow, Measure, RunContext
from centerhash.training.distributed import ProcessGroup, share_layers

# Yields the network's input for the positions (B,) of each batch among the training images, and the epoch.
Inputs: TypeAlias = Callable[[Sequence[Tensor], int], Iterator[Tensor]]
Network = TypeVar("Network", bound=nn.Module)
Modules: TypeAlias = Mapping[str, nn.Module]
# The parameters "params" learn at the share "factor" of the learning rate.
ParameterGroup: TypeAlias = dict[str, Any]


def learning_rate(config: TrainConfig, progress: float) -> float:
    """Return the learning rate after the share `progress` in [0, 1) of all steps.

    "cosine" falls to 0, "steps" to a tenth after every third.
    """
    if config.schedule == "cosine":
        return config.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))
    if config.schedule == "steps":
        return config.learning_rate * 0.1 ** int(3 * progress)
    return config.learning_rate


def epoch_batches(count: int, batch_size: int, generator: torch.Generator) -> list[Tensor]:
    """Shuffle row numbers into batches; a last batch of one joins its neighbor, since batch norm needs two."""
    batches = list(torch.split(torch.randperm(count, generator=generator), batch_size))
    if len(batches) > 1 and len(batches[-1]) == 1:
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches


def epoch_seed(seed: int, epoch: int) -> int:
    """Return a distinct seed for every epoch of every run."""
    return int(np.random.SeedSequence((seed, epoch)).generate_state(1, np.uint64)[0] >> np.uint64(1))


def make_objective(config: TrainConfig, labels: NDArray[np.bool_]) -> HashingLoss:
    """Create the loss of a resolved configuration for training labels (n, C), and the centers of a central method."""
    method, classes = get_method(config.method), labels.shape[1]
    centers = None
    if method.family == "central":
        assign = config.assignment == "cooccurrence"
        if config.shorter:
            codes = nested_centers(config.lengths, labels, config.seed, config.centers, assign=assign)
        else:
            codes = hash_centers(classes, config.bits, config.seed, config.centers)
            codes = assign_centers(codes, labels) if assign else codes
        centers = torch.from_numpy(codes)
    lengths: tuple[ShorterCode | TrainConfig, ...] = (*config.shorter, config)
    losses = {
        length.bits: method.create(
            length.options,
            centers=None if centers is None else centers[:, : length.bits],
            classes=classes,
            bits=length.bits,
            seed=config.seed,
        )
        for length in lengths
    }
    return NestedLoss(losses) if config.shorter else losses[config.bits]


def fit_head(
    features: NDArray[Any],
    rows: NDArray[np.int64],
    labels: NDArray[np.bool_],
    objective: HashingLoss,
    config: TrainConfig,
    context: RunContext,
    measure: Measure | None = None,
) -> tuple[nn.Module, list[EpochRow]]:
    """Train a head on `features[rows]` (n, D) with labels (n, C); return it in eval mode with the log.

    Images without a label have no center to be pulled to and are skipped.
    """
    labeled = labels.any(axis=1)
    rows, labels = rows[labeled], labels[labeled]

    def inputs(batches: Sequence[Tensor], epoch: int) -> Iterator[Tensor]:
        for positions in batches:
            yield float_rows(features, rows[positions.numpy()])

    def build() -> nn.Module:
        head = build_head(features.shape[1], config.bits, config.head, labels.shape[1])
        objective.prepare(labels)
        return head

    return fit_network(build, inputs, labels, objective, config, context, measure=measure)


def fit_network(
    build: Callable[[], Network],
    inputs: Inputs,
    labels: NDArray[np.bool_],
    objective: HashingLoss,
    config: TrainConfig,
    context: RunContext,
    *,
    groups: Callable[[Network], list[ParameterGroup]] | None = None,
    measure: Measure | None = None,
) -> tuple[Network, list[EpochRow]]:
    """Train a network on n images with labels (n, C); return it in eval mode with the log.

    `build` creates the network, then prepares the objective, both from the seed. Training resumes from the context's
    checkpoint, which is written after an epoch when `checkpoint_seconds` have passed, and at the end. `measure` is
    called every `config.eval_interval` epochs and after the last; the row of that epoch then has validation_map.
    """
    if len(labels) < 2:
        raise DataError(f"training needs at least 2 images with labels, got {len(labels)}.")
    group, checkpoint = context.group, context.checkpoint
    gpus = list(range(torch.cuda.device_count())) if group.device.type == "cuda" else []
    with torch.random.fork_rng(devices=gpus):
        torch.manual_seed(config.seed)
        network = build().to(group.device)
        share_layers(network, group)
        objective = objective.to(group.device)
        parameters = groups(network) if groups else [{"params": list(network.parameters()), "factor": 1.0}]
        parameters.append({"params": list(objective.parameters()), "factor": 1.0})
        optimizer_class = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam
        optimizer: torch.optim.Optimizer = optimizer_class(
            [entry for entry in parameters if entry["params"]],
            lr=config.learning_rate,
            betas=(0.9, 0.99),
            weight_decay=config.weight_decay,
            # A fused step passes over the parameters once, not ten times.
            fused=group.device.type in ("cpu", "cuda"),
        )
        modules: Modules = {"head": network, "objective": objective}
        log = restore_checkpoint(checkpoint, modules, optimizer) if checkpoint and checkpoint.exists() else []
        wrapped, optimizer = group.setup(network, optimizer)
        targets = torch.from_numpy(labels)

        def report() -> None:
            if log and group.is_main:
                context.on_epoch(log)
                context.progress("training", len(log), config.epochs, _note(log))

        # An earlier process may have stopped between its last checkpoint and its log.
        report()
        last_written = time.monotonic()
        for epoch in range(len(log), config.epochs):
            torch.manual_seed(epoch_seed(config.seed, epoch))
            log.append(_run_epoch(epoch, inputs, targets, wrapped, objective, optimizer, config, group))
            is_last = epoch + 1 == config.epochs
            in_interval = config.eval_interval and (epoch + 1) % config.eval_interval == 0
            if measure is not None and group.is_main and (in_interval or is_last):
                log[-1]["validation_map"] = measure(network)
            due = time.monotonic() - last_written >= context.checkpoint_seconds or is_last
            if checkpoint is not None and due and group.is_main:
                store_checkpoint(checkpoint, modules, optimizer, log)
                last_written = time.monotonic()
            report()
        group.barrier()
    return network.eval().cpu(), log


def _note(log: list[EpochRow]) -> str:
    """Summarize a log: the last loss, and the last mAP if measured."""
    measured = [row["validation_map"] for row in log if "validation_map" in row]
    return f"loss {log[-1]['loss']:.4f}" + (f", mAP {measured[-1]:.3f}" if measured else "")


def _run_epoch(
    epoch: int,
    inputs: Inputs,
    targets: Tensor,
    network: nn.Module,
    objective: HashingLoss,
    optimizer: torch.optim.Optimizer,
    config: TrainConfig,
    group: ProcessGroup,
) -> EpochRow:
    """Pass once over the training images: Algorithm 1, batch by batch."""
    started = time.monotonic()
    network.train()
    generator = torch.Generator().manual_seed(epoch_seed(config.seed, epoch))
    batches = epoch_batches(len(targets), config.batch_size, generator)
    steps = [micro_batches(batch, config.gradient_accumulation_steps) for batch in batches]
    shares = [indices[group.share(len(indices))] for step in steps for indices in step]
    stream, sums = inputs(shares, epoch), dict[str, float]()
    for number, (batch, step) in enumerate(zip(batches, steps, strict=True)):
        progress = (epoch + number / len(batches)) / config.epochs
        for parameters in optimizer.param_groups:
            parameters["lr"] = parameters["factor"] * learning_rate(config, progress)
        optimizer.zero_grad(set_to_none=True)
        for indices in step:
            with group.autocast():
                output: HeadOutput = network(next(stream).to(group.device, non_blocking=True))
            gathered = group.gather(output.each(Tensor.float), len(indices))
            labels = targets[indices].to(group.device)
            terms = objective.loss_terms(Batch(gathered, labels, indices.to(group.device), progress))
            group.backward(terms["loss"] * (len(indices) / len(batch)))
            for name, value in terms.items():
                sums[name] = sums.get(name, 0.0) + float(value.detach()) * len(indices)
        optimizer.step()
    if not math.isfinite(sums["loss"]):
        raise DataError(
            f"the loss became {sums['loss']} in epoch {epoch + 1}: lower the learning rate (now "
            f"{config.learning_rate}), or check the features for extreme values."
        )
    means = {name: value / len(targets) for name, value in sums.items()}
    rate = learning_rate(config, (epoch + 1) / config.epochs)
    return {"epoch": epoch + 1, **means, "learning_rate": rate, "seconds": time.monotonic() - started}


def micro_batches(batch: Tensor, count: int) -> list[Tensor]:
    """Cut a batch (B,) into `count` parts of at least two rows, since batch norm needs two."""
    return list(torch.tensor_split(batch, max(1, min(count, len(batch) // 2))))


def store_checkpoint(
    path: Path, modules: Modules, optimizer: torch.optim.Optimizer, log: list[EpochRow]
) -> None:
    """Write everything that a run needs to resume as one safetensors file, atomically."""
    tensors = {
        f"{kind}.{name}": value
        for kind, module in modules.items()
        for name, value in module.state_dict().items()
    }
    for number, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{name}": torch.as_tensor(value) for name, value in state.items()}
    save_tensors(path, tensors, {"log": json.dumps(log)})


def restore_checkpoint(path: Path, modules: Modules, optimizer: torch.optim.Optimizer) -> list[EpochRow]:
    """Read a file written by `store_checkpoint` into modules and optimizer; return the log so far."""
    try:
        tensors, metadata = load_tensors(path)
        log: list[EpochRow] = parse_json(metadata["log"])
        for kind, module in modules.items():
            module.load_state_dict(with_prefix(tensors, f"{kind}."))
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in with_prefix(tensors, "optimizer.").items():
            number, name = key.split(".", 1)
            state.setdefault(int(number), {})[name] = value
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
        if not isinstance(log, list) or [row["epoch"] for row in log] != list(range(1, len(log) + 1)):
            raise ValueError("its log does not list the first epochs")
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, IndexError) as error:
        raise DataError(
            f"the checkpoint '{path}' is damaged or of another run ({first_line(error)}): delete it to train from the "
            "start."
        ) from None
    for parameter, moments in optimizer.state.items():
        for name, value in moments.items():
            # A fused step relies on the memory layout of the parameter.
            if value.shape == parameter.shape and value.stride() != parameter.stride():
                moments[name] = torch.empty_like(parameter).copy_(value)
    return log
