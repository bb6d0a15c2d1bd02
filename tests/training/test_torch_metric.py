from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from centerhash.core.errors import ConfigError, InputError
from centerhash.evaluation import Evaluation, evaluate
from centerhash.training.torch_metric import RetrievalHashMAP
from tests.toys import started

# half of the items in each of two processes
PROGRAM = """
import sys
from pathlib import Path
import torch
from centerhash.training.torch_metric import RetrievalHashMAP
from tests.training.test_torch_metric import sample

rank = int(sys.argv[1])
store = torch.distributed.TCPStore("127.0.0.1", int(sys.argv[2]), 2, is_master=False)
torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
codes, labels, is_query = (part[150 * rank : 150 * (rank + 1)] for part in sample())
metric = RetrievalHashMAP(k=20)
metric.update(codes[:70], labels[:70], is_query[:70])
metric.update(codes[70:], labels[70:], is_query[70:])
Path(sys.argv[3]).write_text(repr(float(metric.compute())))
torch.distributed.destroy_process_group()
"""


def sample() -> tuple[Tensor, Tensor, Tensor]:
    """Logits, labels and queries of 300 items; short codes have many ties."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(300, 6, generator=generator)
    return (
        logits,
        torch.rand(300, 5, generator=generator) < 0.3,
        torch.rand(300, generator=generator) < 0.2,
    )


def direct(**settings: Any) -> Evaluation:
    codes, labels, is_query = (part.numpy() for part in sample())
    signs = np.where(codes >= 0, 1, -1)
    return evaluate(signs[is_query], signs[~is_query], labels[is_query], labels[~is_query], **settings)


@pytest.mark.parametrize(("relevant", "field"), [("retrieved", "map_peers"), ("all", "map_textbook")])
def test_batches_give_the_digits_of_evaluate(relevant: str, field: str) -> None:
    metric = RetrievalHashMAP(k=20, relevant=relevant, seed=4)
    parts = [part.split(64) for part in sample()]
    for codes, labels, is_query in zip(*parts, strict=True):
        metric.update(codes, labels, is_query)
    assert float(metric.compute()) == getattr(direct(k=20, seed=4), field)
    assert metric.evaluation().ndcg == direct(k=20, seed=4).ndcg
    metric.reset()
    with pytest.raises(InputError, match="update"):
        metric.evaluation()


def test_codes_of_any_kind_and_one_flag_for_a_batch() -> None:
    logits, labels, is_query = sample()
    signs = torch.where(logits >= 0, 1, -1)
    for codes in (signs, signs.float(), logits.double(), (signs + 1) // 2, signs > 0):
        metric = RetrievalHashMAP(k=20)
        metric.update(codes[is_query], labels[is_query].int(), True)
        metric.update(codes[~is_query], labels[~is_query].float(), False)
        assert float(metric.compute()) == direct(k=20).map_peers


def test_states_of_two_metrics_merge() -> None:
    first, second = RetrievalHashMAP(k=20), RetrievalHashMAP(k=20)
    parts = [part.split(150) for part in sample()]
    for metric, batch in zip((first, second), zip(*parts, strict=True), strict=True):
        metric.update(*batch)
    second.merge_state(first)  # puts the items of `first` in front
    assert float(second.compute()) == direct(k=20).map_peers


@pytest.mark.slow
def test_two_processes_compute_the_same_as_one(tmp_path: Path) -> None:
    store = torch.distributed.TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
    with (
        started("-c", PROGRAM, "0", str(store.port), tmp_path / "0") as first,
        started("-c", PROGRAM, "1", str(store.port), tmp_path / "1") as second,
    ):
        assert (first.wait(), second.wait()) == (0, 0), first.err + second.err
    found = [float((tmp_path / rank).read_text()) for rank in "01"]
    assert found == [direct(k=20).map_peers] * 2


def test_what_does_not_fit_is_refused() -> None:
    logits, labels, is_query = sample()
    metric = RetrievalHashMAP()
    for wrong in (
        (logits[0], labels, is_query),
        (logits, labels[:9], is_query),
        (logits, labels, is_query[:9]),
        (logits, labels * 2, is_query),
        (logits * float("nan"), labels, is_query),
    ):
        with pytest.raises(InputError):
            metric.update(*wrong)
    metric.update(logits, labels, False)
    with pytest.raises(InputError, match="no queries"):
        metric.compute()
    with pytest.raises(ConfigError, match="'some'"):
        RetrievalHashMAP(relevant="some")
    with pytest.raises(InputError, match="k must"):
        RetrievalHashMAP(k=0)
