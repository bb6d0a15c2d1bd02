"""The training loop: features in, a fitted head out; resumable at any epoch with the same result.

Everything random in an epoch (the order of the images, dropout) is drawn from the seed and the epoch's number
alone, so a run that goes on from a checkpoint repeats what an unbroken run would have done.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from centerhash.backbones import DEFAULT_BACKBONE
from centerhash.errors import DataError
from centerhash.files import atomic
from centerhash.heads import HeadOptions, build_head
from centerhash.losses.base import Objective
from centerhash.losses.central import center_similarities
from centerhash.options import Options

EpochRow: TypeAlias = dict[str, float]  # one line of the log: epoch, loss, its parts, learning rate, seconds
Modules: TypeAlias = dict[str, nn.Module]
Report: TypeAlias = Callable[[list[EpochRow]], None]  # called with the whole log after every epoch


class TrainConfig(Options):
    """Everything that decides a run's result beside the data; stored in the run's config.json."""

    method: str = "ics-softmax"
    bits: int = Field(64, ge=8, le=1024)
    seed: int = Field(0, ge=0)
    epochs: int = Field(30, ge=1)
    batch_size: int = Field(256, ge=2)
    learning_rate: float = Field(4e-3, gt=0, le=10)
    weight_decay: float = Field(1e-4, ge=0, description="decoupled (AdamW); 0.9 is the printed value")
    schedule: str = Field("cosine", pattern="^(cosine|steps|constant)$")
    backbone: str = DEFAULT_BACKBONE
    centers: str = Field("auto", pattern="^(auto|hadamard|random|spread)$")
    assignment: str = Field(
        "cooccurrence", pattern="^(cooccurrence|random)$", description="of centers to classes"
    )
    head: HeadOptions = HeadOptions()
    options: dict[str, Any] = Field(default_factory=dict, description="options of the method")


def learning_rate(config: TrainConfig, progress: float) -> float:
    """Learning rate after the share `progress` in [0, 1) of all steps: cosine to 0, or a tenth every third."""
    if config.schedule == "cosine":
        return config.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))
    if config.schedule == "steps":
        return config.learning_rate * 0.1 ** int(3 * progress)
    return config.learning_rate


def epoch_batches(count: int, batch_size: int, generator: torch.Generator) -> list[Tensor]:
    """Shuffled batches of row numbers; a last batch of one joins its neighbour, since batch norm needs two."""
    batches = list(torch.split(torch.randperm(count, generator=generator), batch_size))
    if len(batches) > 1 and len(batches[-1]) == 1:
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches


def epoch_seed(seed: int, epoch: int) -> int:
    """A seed of its own for every epoch of every run."""
    return int(np.random.SeedSequence((seed, epoch)).generate_state(1, np.uint64)[0] >> np.uint64(1))


def fit_head(
    features: NDArray[Any],
    rows: NDArray[np.int64],
    labels: NDArray[np.bool_],
    objective: Objective,
    config: TrainConfig,
    *,
    device: torch.device | str = "cpu",
    checkpoint: Path | None = None,
    checkpoint_seconds: float = 20.0,
    report: Report | None = None,
) -> tuple[nn.Sequential, list[EpochRow]]:
    """Train a head on `features[rows]` (n, D) with labels (n, C); return it in eval mode with the log.

    Images without a label have no center to be pulled to and are left out. With a `checkpoint` file, training
    goes on from it, and is written to it after an epoch when `checkpoint_seconds` have passed, and at the end.
    """
    labelled = labels.any(axis=1)
    rows, labels = rows[labelled], labels[labelled]
    if len(rows) < 2:
        raise DataError(f"training needs at least 2 images with labels, got {len(rows)}.")
    with torch.random.fork_rng(devices=_cuda_devices(device)):
        torch.manual_seed(config.seed)
        head = build_head(features.shape[1], config.bits, config.head).to(device)
        objective.prepare(features, rows, labels)
        objective = objective.to(device)
        optimizer = torch.optim.AdamW(
            [*head.parameters(), *objective.parameters()],
            lr=config.learning_rate,
            betas=(0.9, 0.99),
            weight_decay=config.weight_decay,
        )
        modules: Modules = {"head": head, "objective": objective}
        log = _restore(checkpoint, modules, optimizer) if checkpoint and checkpoint.exists() else []
        targets = torch.from_numpy(labels)
        last_written = time.monotonic()
        for epoch in range(len(log), config.epochs):
            torch.manual_seed(epoch_seed(config.seed, epoch))
            log.append(_run_epoch(epoch, features, rows, targets, head, objective, optimizer, config, device))
            due = time.monotonic() - last_written >= checkpoint_seconds or epoch + 1 == config.epochs
            if checkpoint is not None and due:
                _store(checkpoint, modules, optimizer, log)
                last_written = time.monotonic()
            if report is not None:
                report(log)
    return head.eval().cpu(), log


def _run_epoch(
    epoch: int,
    features: NDArray[Any],
    rows: NDArray[np.int64],
    targets: Tensor,
    head: nn.Sequential,
    objective: Objective,
    optimizer: torch.optim.Optimizer,
    config: TrainConfig,
    device: torch.device | str,
) -> EpochRow:
    """One pass over the training images: Algorithm 1, batch by batch."""
    started, head_mode = time.monotonic(), head.train()
    generator = torch.Generator().manual_seed(epoch_seed(config.seed, epoch))
    batches = epoch_batches(len(rows), config.batch_size, generator)
    sums: dict[str, float] = {}
    for number, batch in enumerate(batches):
        progress = (epoch + number / len(batches)) / config.epochs
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config, progress)
        inputs = torch.from_numpy(features[rows[batch.numpy()]].astype(np.float32)).to(device)
        terms = objective(head_mode(inputs), targets[batch].to(device), batch.to(device), progress)
        optimizer.zero_grad(set_to_none=True)
        terms.total.backward()
        optimizer.step()
        for name, value in {"loss": terms.total.detach(), **terms.parts}.items():
            sums[name] = sums.get(name, 0.0) + float(value) * len(batch)
    if not math.isfinite(sums["loss"]):
        raise DataError(
            f"the loss became {sums['loss']} in epoch {epoch + 1}: lower --learning-rate (now "
            f"{config.learning_rate}), or check the features for extreme values."
        )
    means = {name: value / len(rows) for name, value in sums.items()}
    rate = learning_rate(config, (epoch + 1) / config.epochs)
    return {"epoch": epoch + 1, **means, "learning_rate": rate, "seconds": time.monotonic() - started}


def _cuda_devices(device: torch.device | str) -> list[int]:
    return list(range(torch.cuda.device_count())) if torch.device(device).type == "cuda" else []


def _optimizer_tensors(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    for number, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            yield f"optimizer.{number}.{name}", torch.as_tensor(value).cpu()


def _store(path: Path, modules: Modules, optimizer: torch.optim.Optimizer, log: list[EpochRow]) -> None:
    """Write head, objective, optimizer and log as one safetensors file, whole or not at all."""
    tensors = {
        f"{kind}.{name}": value.cpu().contiguous()
        for kind, module in modules.items()
        for name, value in module.state_dict().items()
    }
    tensors.update(_optimizer_tensors(optimizer))
    with atomic(path) as stream:
        stream.write(save(tensors, {"log": json.dumps(log)}))


def _restore(path: Path, modules: Modules, optimizer: torch.optim.Optimizer) -> list[EpochRow]:
    """Read what `_store` wrote into modules and optimizer; return the log so far."""
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


def label_threshold(
    logits: NDArray[np.float32], labels: NDArray[np.bool_], centers: Tensor, entries: int = 20_000_000
) -> float:
    """Cosine to a center from which its label is predicted: the cut with the best F1 on these images.

    At most `entries` similarities are looked at, so that many classes do not take much memory.
    """
    rows = min(len(logits), max(1, entries // max(1, labels.shape[1])))
    similarities = center_similarities(torch.from_numpy(logits[:rows]), centers).numpy().ravel()
    order = np.argsort(-similarities, kind="stable")
    hits = np.cumsum(labels[:rows].ravel()[order])
    predicted = np.arange(1, len(order) + 1)
    scores = 2 * hits / (predicted + max(1, int(hits[-1])))
    return float(similarities[order[int(scores.argmax())]])
