from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from centerhash.core.errors import ConfigError
from centerhash.networks.head_options import HeadOptions
from centerhash.networks.heads import build_head
from centerhash.training.distributed import (
    ProcessGroup,
    SharedDropout,
    SharedNorm,
    join_processes,
    share_layers,
)
from tests.toys import QUICK, Started, cli, names, run_log, started, wait_for_process, write_feature_folder

# what torchrun sets for every process, besides where the store is
ENVIRONMENT = {
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "0",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}


@contextmanager
def as_two(*arguments: str | Path) -> Iterator[tuple[Started, Started]]:
    """What torchrun starts, with processes that need not import torch first: a store, and two that find it."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    shared = {**ENVIRONMENT, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    shared["TORCHELASTIC_RUN_ID"] = "tests"
    with (
        started(*arguments, RANK="0", LOCAL_RANK="0", **shared) as first,
        started(*arguments, RANK="1", LOCAL_RANK="1", **shared) as second,
    ):
        yield first, second


def run_as_two(*arguments: str | Path) -> None:
    with as_two(*arguments) as (first, second):
        assert (first.wait(), second.wait()) == (0, 0), first.err + second.err


@pytest.mark.slow
def test_environment_of_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import json, os, pathlib, sys\n"
        "pathlib.Path(sys.argv[1], os.environ['RANK']).write_text(json.dumps(dict(os.environ)))\n"
    )
    program = "import sys; from torch.distributed.run import main; main(sys.argv[1:])"
    with started("-c", program, "--nproc-per-node", "2", "--standalone", script, tmp_path) as process:
        assert process.wait() == 0, process.err
    for rank in ("0", "1"):
        environment = json.loads((tmp_path / rank).read_text())
        assert environment.items() >= {**ENVIRONMENT, "RANK": rank, "LOCAL_RANK": rank}.items()
        assert environment.keys() >= {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"}


def test_share_covers_batch() -> None:
    group = ProcessGroup("cpu")
    for size in (1, 2, 3, 7):
        for count in (0, 1, 2, 6, 7, 64):
            rows: list[int] = []
            for rank in range(size):
                group.rank, group.size = rank, size
                rows += range(count)[group.share(count)]
            assert rows == list(range(count))


def test_mixed_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    group = join_processes("cpu", "bf16")
    network = nn.Linear(4, 3)
    wrapped, _ = group.setup(network, torch.optim.SGD(network.parameters(), lr=0.1))
    with group.autocast():
        assert torch.mm(torch.ones(2, 4), torch.ones(4, 2)).dtype == torch.bfloat16
        out = wrapped(torch.ones(2, 4))
    group.backward(out.float().sum())
    assert network.weight.grad is not None
    assert network.weight.grad.dtype == torch.float32
    group.barrier()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_half_precision_needs_a_gpu() -> None:
    with pytest.raises(ConfigError, match="precision 16"):
        join_processes("cpu", "16")


def test_shared_layers_keep_values() -> None:
    group = ProcessGroup("cpu")
    head = build_head(6, 8, HeadOptions(hidden=(5,), hidden_norm=True))
    before = {name: value.clone() for name, value in head.state_dict().items()}
    share_layers(head, group)
    assert not any(isinstance(layer, SharedNorm | SharedDropout) for layer in head.modules())
    group.size = 2
    share_layers(head, group)
    kinds = [type(layer) for layer in head]
    assert kinds.count(SharedNorm) == 2
    assert kinds.count(SharedDropout) == 2
    after = head.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], value) for name, value in before.items())


# HyP2 compares all pairs of a batch and has parameters; ICS-softmax has layers next to those of the code.
@pytest.mark.slow
@pytest.mark.parametrize("method", ["hyp2", "ics-softmax"])
def test_two_processes_train_as_one(tmp_path: Path, method: str) -> None:
    """Same batches, gathered for the loss: equal up to rounding, which a few steps let grow a little."""
    data = write_feature_folder(tmp_path / "data")
    # a rotation would let the rounding grow
    words = ["train", data, "--method", method, "--no-rotate", *QUICK]
    assert cli(*words, "--out", tmp_path / "one").code == 0
    run_as_two(*words, "--out", tmp_path / "two")
    assert names(tmp_path / "two") == names(tmp_path / "one")
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-3, atol=1e-3, msg=name)
    for row_of_one, row_of_two in zip(run_log(tmp_path / "one"), run_log(tmp_path / "two"), strict=True):
        assert row_of_two == pytest.approx(row_of_one, rel=1e-3, abs=1e-4)
    config_one, config_two = (
        json.loads((tmp_path / name / "config.json").read_text())["config"] for name in ("one", "two")
    )
    assert config_one == config_two


@pytest.mark.slow
def test_killed_process_ends_all(tmp_path: Path) -> None:
    data = write_feature_folder(tmp_path / "data", count=200)
    words = ["train", data, "--method", "csq", "--bits", "16", "--epochs", "16", "--batch-size", "16"]
    words += ["--hidden", "16", "--device", "cpu", "--checkpoint-seconds", "0", "--out", tmp_path / "run"]
    with as_two(*words) as (first, second):
        wait_for_process(
            first, (tmp_path / "run" / "checkpoint.safetensors").exists, "a checkpoint is stored"
        )
        second.signal(signal.SIGKILL)
        assert first.wait() != 0
    assert "database.npz" not in names(tmp_path / "run")
    before = len(run_log(tmp_path / "run"))
    assert 0 < before < 16
    run_as_two(*words)
    assert len(run_log(tmp_path / "run")) == 16
    scored = cli("evaluate", tmp_path / "run", "--json")
    assert scored.json["map_all"] > 0.8
    assert "checkpoint.safetensors" not in names(tmp_path / "run")
