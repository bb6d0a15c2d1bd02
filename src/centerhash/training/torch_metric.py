"""The metrics of a Hamming ranking as a metric of torchmetrics, for training loops that collect codes in batches.

    metric = RetrievalHashMAP(k=5000)
    metric.update(codes, labels, is_query)      # per batch, on any process
    metric.compute()                            # mAP@k as by `evaluate`

Needs the extra `torchmetrics`; nothing else in the package imports this module.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from centerhash.codes import as_codes, binarize
from centerhash.core.checks import whole_number
from centerhash.core.errors import ConfigError, InputError
from centerhash.core.extras import missing_library
from centerhash.evaluation import Evaluation, evaluate
from centerhash.networks.backbones import import_torchvision

try:
    import_torchvision()  # which torchmetrics imports, too
    from torchmetrics import Metric
    from torchmetrics.utilities import dim_zero_cat
except ImportError as error:
    raise (missing_library(error) or error) from None

AVERAGES = {"retrieved": "map_peers", "all": "map_textbook"}


class RetrievalHashMAP(Metric):
    """mAP@k of queries against a database by Hamming distance, equal to that of `evaluate` in all digits.

    Items are ranked in the order of their updates, process by process; only ties depend on that order.

    Args:
        k: depth of mAP; the whole database if it is smaller.
        relevant: what mAP is averaged over: "retrieved" relevant items (`map_peers`) or "all" (`map_textbook`).
        seed: of the random order that breaks ties.
        **settings: of torchmetrics.Metric, such as sync_on_compute.

    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    codes: list[Tensor]
    labels: list[Tensor]
    is_query: list[Tensor]

    def __init__(self, k: int = 5000, *, relevant: str = "retrieved", seed: int = 0, **settings: Any) -> None:
        super().__init__(**settings)
        if relevant not in AVERAGES:
            raise ConfigError(f"relevant must be one of {', '.join(AVERAGES)}, got '{relevant}'.")
        self.k, self.seed, self.relevant = whole_number(k, "k", 1), whole_number(seed, "seed", 0), relevant
        for name in ("codes", "labels", "is_query"):
            self.add_state(name, default=[], dist_reduce_fx="cat")

    def update(self, codes: Tensor, labels: Tensor, is_query: Tensor | bool) -> None:
        """Add a batch: codes (B, K), labels (B, C) of bool or 0 and 1, and which items are queries.

        Floats are logits, or -1 and +1: their signs are the codes, where 0 counts as +1. Other codes are as for
        `evaluate`. `is_query` is (B,) of bool, or one bool for the whole batch; all other items are the database.
        """
        if codes.ndim != 2 or labels.ndim != 2 or len(codes) != len(labels):
            raise InputError(
                "RetrievalHashMAP needs codes (B, K) and labels (B, C), got shapes "
                f"{tuple(codes.shape)} and {tuple(labels.shape)}."
            )
        queries = torch.as_tensor(is_query, dtype=torch.bool, device=codes.device)
        if queries.shape not in ((), (len(codes),)):
            raise InputError(
                f"is_query must be one bool, or one per code, got shape {tuple(queries.shape)} for {len(codes)} codes."
            )
        if not bool(((labels == 0) | (labels == 1)).all()):
            raise InputError("labels must be bool, or hold only 0 and 1.")
        values = codes.detach().cpu()
        signs = binarize(values.float().numpy()) if values.is_floating_point() else as_codes(values.numpy())
        self.codes.append(torch.from_numpy(signs).to(codes.device))
        self.labels.append(labels.detach().to(codes.device).bool())
        self.is_query.append(queries.expand(len(codes)).clone())

    def compute(self) -> Tensor:
        """Return mAP@k () as float64."""
        value = getattr(self.evaluation(), AVERAGES[self.relevant])
        return torch.tensor(value, dtype=torch.float64, device=self.device)

    def evaluation(self) -> Evaluation:
        """Return all metrics of the items that this process holds; within `compute`, of all processes."""
        if not len(self.codes):
            raise InputError("RetrievalHashMAP has no items: call `update` before `compute`.")
        codes, labels, is_query = (_array(part) for part in (self.codes, self.labels, self.is_query))
        if is_query.all() or not is_query.any():
            lacking = "database items" if is_query.all() else "queries"
            raise InputError(f"RetrievalHashMAP has no {lacking}: `is_query` decides between the two.")
        base = ~is_query
        return evaluate(
            codes[is_query],
            codes[base],
            labels[is_query],
            labels[base],
            k=self.k,
            precision_at=(),
            seed=self.seed,
        )


def _array(state: list[Tensor] | Tensor) -> NDArray[Any]:
    """A state as an array: a list before it is reduced over processes, one tensor afterwards."""
    joined: NDArray[Any] = np.asarray(dim_zero_cat(state).cpu().numpy())
    return joined
