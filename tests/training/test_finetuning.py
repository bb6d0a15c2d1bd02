"""Fine-tuning of whole backbones and of their last stages: augmentation, batch norms, resuming, stored backbones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

import centerhash as ch
from centerhash.codes import unpack
from centerhash.core.errors import ConfigError, DataError
from centerhash.data import open_dataset
from centerhash.model.model import HashModel
from centerhash.networks.backbones import Backbone, get_backbone
from centerhash.networks.encoder import pixels_of
from centerhash.training import loop
from centerhash.training.augmentation import (
    LEAST_SIDE,
    augmented,
    image_inputs,
    plain_inputs,
    readable_splits,
)
from centerhash.training.context import RunContext
from centerhash.training.distributed import ProcessGroup
from centerhash.training.finetuning import TunedNetwork, fit_finetuned
from centerhash.training.run import train
from tests.networks.toys import write_labeled_images
from tests.toys import (
    Killed,
    cli,
    feature_dataset,
    names,
    noise_image,
    refused,
    run_contents,
    toy_config,
    write_images,
)

# a twentieth of the pixels
SMALL = {"bits": 16, "epochs": 2, "batch_size": 16, "crop": 64, "head": {"hidden": [16]}}
CROPPED = get_backbone("efficientnet-lite0", crop=224)
WHOLE = get_backbone("efficientnet-lite0")


@pytest.fixture(scope="module")
def gradient(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A picture whose red grows to the right and green downwards, so that a pixel shows its origin."""
    across = np.tile(np.linspace(0, 255, 400), (300, 1))
    down = np.tile(np.linspace(0, 255, 300), (400, 1)).T
    path = tmp_path_factory.mktemp("images") / "gradient.png"
    Image.fromarray(np.stack([across, down, np.zeros((300, 400))], axis=2).astype(np.uint8)).save(path)
    return path


@pytest.mark.parametrize(
    ("backbone", "least", "most"),
    [(CROPPED, CROPPED.crop / CROPPED.resize, CROPPED.crop / CROPPED.resize), (WHOLE, LEAST_SIDE, 1.0)],
    ids=["crop", "whole frame"],
)
def test_augmented_crops(gradient: Path, backbone: Backbone, least: float, most: float) -> None:
    sides, lefts, flips = [], set(), set()
    for seed in range(40):
        pixels = augmented(gradient, backbone, np.random.default_rng(seed)).astype(float)
        assert pixels.shape == (backbone.crop, backbone.crop, 3)
        red, green = pixels[0, :, 0], pixels[:, 0, 1]
        flips.add(bool(red[0] > red[-1]))
        lefts.add(round(min(red[0], red[-1])))
        sides.append((green[-1] - green[0]) / 255)  # positive: never upside down
        assert abs(abs(red[-1] - red[0]) / 255 - sides[-1]) < 0.02  # squares of the squashed frame
    assert flips == {True, False}
    assert len(lefts) > 5
    assert least - 0.02 < min(sides) <= max(sides) < most + 0.02
    assert (max(sides) - min(sides) > 0.05) == (most > least)


def test_augmented_pixels_of_frame(tmp_path: Path) -> None:
    """But for its border, where the filter may not look beyond the crop."""
    path = tmp_path / "noise.png"
    noise_image(512, seed=3).save(path)
    generator = np.random.default_rng(5)
    left, top = generator.integers(0, CROPPED.resize - CROPPED.crop + 1, size=2).tolist()
    flipped = bool(generator.integers(2))
    frame = Image.open(path).resize((CROPPED.resize, CROPPED.resize), Image.Resampling.BILINEAR)
    expected = np.asarray(frame)[top : top + CROPPED.crop, left : left + CROPPED.crop].astype(int)
    expected = expected[:, ::-1] if flipped else expected
    pixels = augmented(path, CROPPED, np.random.default_rng(5)).astype(int)
    assert np.abs(pixels - expected)[2:-2, 2:-2].max() <= 1


def test_image_inputs_by_seed(tmp_path: Path) -> None:
    paths = write_images(tmp_path, 7)
    inputs = image_inputs(paths, CROPPED, seed=4)
    batches = [torch.tensor(rows, dtype=torch.int64) for rows in ([2, 0], [5], [], [6, 1, 3])]
    first = list(inputs(batches, 1))
    assert [tuple(batch.shape) for batch in first] == [(len(rows), 224, 224, 3) for rows in batches]
    assert all(batch.dtype == torch.uint8 for batch in first)
    again = list(inputs(batches[::-1], 1))
    assert all(torch.equal(one, two) for one, two in zip(first, reversed(again), strict=True))
    assert not torch.equal(first[0], next(inputs(batches, 2)))
    assert np.array_equal(first[1][0], augmented(paths[5], CROPPED, np.random.default_rng((4, 1, 5))))


def test_plain_inputs_equal_encoder_pixels(tmp_path: Path) -> None:
    paths = write_images(tmp_path, 3)
    batches = list(plain_inputs(paths, WHOLE, size=2))
    assert [len(batch) for batch in batches] == [2, 1]
    for path, pixels in zip(paths, torch.cat(batches), strict=True):
        assert np.array_equal(pixels.numpy(), pixels_of(path, WHOLE))


def test_readable_splits(tmp_path: Path) -> None:
    dataset = open_dataset(write_labeled_images(tmp_path, 12))
    (tmp_path / "002.png").write_bytes(b"no picture")
    calls: list[tuple[Any, ...]] = []
    context = RunContext(skip_broken=True, progress=lambda *call: calls.append(call))
    splits = readable_splits(dataset, context)
    assert sorted({row for _, rows in splits.items() for row in rows.tolist()} ^ set(range(12))) == [2]
    assert calls[-1][:3] == ("checking", 12, 12)
    with pytest.raises(DataError, match=r"1 of 12.*\n.*002\.png"):
        readable_splits(dataset, RunContext())


class Tiny(nn.Module):
    """A backbone of one convolution and one batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))

    def forward(self, images: Tensor) -> Tensor:
        return self.network(images.permute(0, 3, 1, 2).float()).mean(dim=(2, 3))


@pytest.mark.parametrize("trained", [False, True])
def test_batch_norms_of_the_backbone(trained: bool) -> None:
    backbone, head = Tiny(), nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 8))
    network = TunedNetwork(backbone, head, trained_norms=trained).train()
    norm: Any = backbone.network[1]
    before = norm.running_mean.clone()
    network(torch.randint(0, 255, (5, 8, 8, 3), dtype=torch.uint8)).sum().backward()
    assert torch.equal(norm.running_mean, before) != trained
    assert norm.weight.grad is not None
    assert float(head[0].running_mean.abs().sum()) > 0  # type: ignore[operator, union-attr]
    moved = norm.running_mean.clone()
    network.eval()(torch.randint(0, 255, (5, 8, 8, 3), dtype=torch.uint8))
    assert torch.equal(norm.running_mean, moved)


def test_parameter_groups() -> None:
    network = TunedNetwork(Tiny(), nn.Linear(4, 8))
    head, backbone = network.groups(0.1)
    assert (head["factor"], backbone["factor"]) == (1.0, 0.1)
    assert len(head["params"]) + len(backbone["params"]) == len(list(network.parameters()))


@pytest.mark.parametrize("finetune", ["last", "all"])
def test_rejected_finetuning(tmp_path: Path, finetune: str) -> None:
    with pytest.raises(ConfigError, match="features"):
        train(feature_dataset(), config=toy_config(), finetune=finetune, cache=tmp_path)
    group = ProcessGroup("cpu")
    group.size = 2
    config = toy_config(finetune=finetune, backbone_norms="trained")
    with pytest.raises(ConfigError, match="2 processes"):
        fit_finetuned(feature_dataset(), config, RunContext(group, folder=tmp_path))


@pytest.mark.parametrize(("finetune", "missing"), [("last", "cache"), ("all", "out")])
def test_finetuning_needs_folders(tmp_path: Path, finetune: str, missing: str) -> None:
    data = write_labeled_images(tmp_path / "images", 12)
    folders: dict[str, Any] = {"cache": tmp_path / "cache", "out": tmp_path / "run", missing: None}
    with pytest.raises(ConfigError, match=f"{missing}="):
        train(data, **SMALL, finetune=finetune, **folders)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "lowest"),
    [({"finetune": "all"}, "blocks.0."), ({"finetune": "last", "stages": 1}, "blocks.6.")],
    ids=["all", "last"],
)
def test_finetuned_run_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], lowest: str
) -> None:
    dataset = open_dataset(write_labeled_images(tmp_path / "images", 24))
    options: dict[str, Any] = {**SMALL, **settings, "cache": tmp_path / "cache", "device": "cpu"}
    uninterrupted, interrupted = tmp_path / "whole", tmp_path / "cut"
    train(dataset, out=uninterrupted, **options)

    run_epoch, epochs = loop._run_epoch, []

    def dies(epoch: int, *arguments: Any) -> dict[str, float]:
        epochs.append(epoch)
        if len(epochs) == 32:  # after 30 epochs of the head and one of the network
            raise Killed
        return run_epoch(epoch, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(loop, "_run_epoch", dies)
        with pytest.raises(Killed):
            train(dataset, out=interrupted, checkpoint_seconds=0, **options)
    train(dataset, out=interrupted, **options)
    assert run_contents(interrupted) == run_contents(uninterrupted)
    one, two = (load_file(run / "backbone.safetensors") for run in (interrupted, uninterrupted))
    assert all(torch.equal(one[name], two[name]) for name in two)

    start: Any = get_backbone("efficientnet-lite0").trainable().network
    moved = {name for name, tensor in start.state_dict().items() if not torch.equal(two[name], tensor)}
    assert min(name for name in moved if name.startswith("blocks.")).startswith(lowest)
    assert ("conv_stem.weight" in moved) == (settings["finetune"] == "all")
    assert not any("running_" in name for name in moved)
    assert json.loads((uninterrupted / "model.json").read_text())["tuned"] is True
    check_stored_backbone(uninterrupted, dataset, tmp_path / "moved")


def check_stored_backbone(run: Path, dataset: ch.Dataset, moved: Path) -> None:
    """A model encodes with its backbone wherever it is saved, and not without it."""
    assert dataset.image_paths is not None
    images = [dataset.image_paths[row] for row in dataset.splits.query.tolist()]
    stored = HashModel.load(run)
    codes = stored.encode(images, device="cpu")
    with np.load(run / "query.npz") as query:  # those of "last" come from maps of 16 bits
        assert (unpack(query["packed"], 16) != codes).mean() < 0.02
    stored.save(moved)
    assert names(moved) == ["backbone.safetensors", "model.json", "model.safetensors"]
    assert (HashModel.load(moved).encode(images, device="cpu") == codes).all()
    (moved / "backbone.safetensors").unlink()
    with pytest.raises((ConfigError, DataError), match=r"backbone\.safetensors"):
        HashModel.load(moved).encode(images, device="cpu")


@pytest.mark.slow
@pytest.mark.parametrize("finetune", [("all",), ("last", "--stages", "1")], ids=["all", "last"])
def test_command_line_finetuning(tmp_path: Path, finetune: tuple[str, ...]) -> None:
    data = write_labeled_images(tmp_path / "images", 30)
    dataset = open_dataset(data)
    assert dataset.image_paths is not None
    Path(dataset.image_paths[int(dataset.splits.train[0])]).write_bytes(b"no picture")
    words = ["train", data, "--finetune", *finetune, "--bits", "16", "--epochs", "1", "--crop", "64"]
    words += ["--hidden", "16", "--eval-interval", "1", "--out", tmp_path / "run"]
    words += ["--cache", tmp_path / "cache"]
    assert "1 of 30" in refused(cli(*words))
    done = cli(*words, "--skip-broken")
    assert done.code == 0, done.err
    assert "backbone.safetensors" in names(tmp_path / "run")
    assert "validation_map" in (tmp_path / "run" / "log.jsonl").read_text()
    with np.load(tmp_path / "run" / "splits.npz") as splits:
        assert len(splits["validation"]) == 2
