from __future__ import annotations

import gc
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
from centerhash.core.errors import ConfigError, DataError, ImageError
from centerhash.data import open_dataset
from centerhash.model.model import HashModel
from centerhash.networks.backbones import get_backbone
from centerhash.training import loop
from centerhash.training.config import TrainConfig, resolve
from centerhash.training.distributed import ProcessGroup
from centerhash.training.finetuning import (
    LEAST_SIDE,
    WholeNetwork,
    augmented,
    find_broken,
    fit_whole,
    image_inputs,
)
from centerhash.training.last_stages import fit_last
from centerhash.training.run import train
from centerhash.training.session import Session
from reproduction.scenes import write_scenes
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

SMALL = {
    "bits": 16,
    "epochs": 2,
    "batch_size": 16,
    "crop": 64,
    "head": {"hidden": [16]},
}  # a twentieth of the pixels
BACKBONE = get_backbone("efficientnet-lite0", crop=224)
WHOLE = get_backbone("efficientnet-lite0")


def gradient_image(width: int, height: int) -> Image.Image:
    """Red grows to the right and green downwards, so that a pixel tells where it came from."""
    across = np.tile(np.linspace(0, 255, width), (height, 1))
    down = np.tile(np.linspace(0, 255, height), (width, 1)).T
    return Image.fromarray(np.stack([across, down, np.zeros((height, width))], axis=2).astype(np.uint8))


def test_a_crop_is_a_part_of_the_frame_and_sometimes_flipped(tmp_path: Path) -> None:
    path = tmp_path / "gradient.png"
    gradient_image(400, 300).save(path)
    share = BACKBONE.crop / BACKBONE.resize  # of the frame, on each side
    lefts, flips = set(), set()
    for seed in range(24):
        pixels = augmented(path, BACKBONE, np.random.default_rng(seed)).astype(float)
        assert pixels.shape == (BACKBONE.crop, BACKBONE.crop, 3)
        red, green = pixels[0, :, 0], pixels[:, 0, 1]
        flips.add(bool(red[0] > red[-1]))
        lefts.add(round(min(red[0], red[-1])))
        assert abs(abs(red[-1] - red[0]) - 255 * share) < 3
        assert abs((green[-1] - green[0]) - 255 * share) < 3  # never upside down
    assert flips == {True, False}
    assert len(lefts) > 5


def test_a_backbone_of_the_whole_frame_learns_from_large_parts_of_it(tmp_path: Path) -> None:
    path = tmp_path / "gradient.png"
    gradient_image(400, 300).save(path)
    shares, lefts = [], set()
    for seed in range(40):
        pixels = augmented(path, WHOLE, np.random.default_rng(seed)).astype(float)
        assert pixels.shape == (WHOLE.resize, WHOLE.resize, 3)
        red, green = pixels[0, :, 0], pixels[:, 0, 1]
        shares.append((green[-1] - green[0]) / 255)
        assert abs(abs(red[-1] - red[0]) / 255 - shares[-1]) < 0.02  # squares of the squashed frame
        lefts.add(round(min(red[0], red[-1])))
    assert min(shares) > LEAST_SIDE - 0.02
    assert max(shares) - min(shares) > 0.05
    assert len(lefts) > 5


def test_a_crop_has_the_pixels_of_the_squashed_frame(tmp_path: Path) -> None:
    """But for its border, where the filter may not look beyond the crop."""
    path = tmp_path / "noise.png"
    noise_image(512, seed=3).save(path)
    generator = np.random.default_rng(5)
    left, top = generator.integers(0, BACKBONE.resize - BACKBONE.crop + 1, size=2).tolist()
    flipped = bool(generator.integers(2))
    square = np.asarray(
        Image.open(path).resize((BACKBONE.resize, BACKBONE.resize), Image.Resampling.BILINEAR)
    )
    expected = square[top : top + BACKBONE.crop, left : left + BACKBONE.crop].astype(int)
    expected = expected[:, ::-1] if flipped else expected
    found = augmented(path, BACKBONE, np.random.default_rng(5)).astype(int)
    assert np.abs(found - expected)[2:-2, 2:-2].max() <= 1


def test_batches_come_in_order_and_only_seed_epoch_and_image_decide_them(tmp_path: Path) -> None:
    paths = write_images(tmp_path, 7)
    inputs = image_inputs(paths, BACKBONE, seed=4)
    batches = [
        torch.tensor([2, 0]),
        torch.tensor([5]),
        torch.tensor([], dtype=torch.int64),
        torch.tensor([6, 1, 3]),
    ]
    first = list(inputs(batches, 1))
    assert [batch.shape[0] for batch in first] == [2, 1, 0, 3]
    assert all(
        batch.dtype == torch.uint8 and batch.shape[1:] == (BACKBONE.crop, BACKBONE.crop, 3) for batch in first
    )
    again = list(inputs(list(reversed(batches)), 1))
    assert all(torch.equal(one, two) for one, two in zip(first, reversed(again), strict=True))
    other = list(inputs(batches, 2))
    assert not torch.equal(first[0], other[0])
    expected = augmented(paths[5], BACKBONE, np.random.default_rng((4, 1, 5)))
    assert np.array_equal(first[1][0].numpy(), expected)


def test_a_broken_image_is_found_before_the_training(tmp_path: Path) -> None:
    paths = write_images(tmp_path, 4)
    paths[2].write_bytes(b"no picture")
    seen: list[tuple[Any, ...]] = []
    broken = find_broken(paths, lambda *call: seen.append(call))
    assert list(broken) == [2]
    assert isinstance(broken[2], ImageError)
    assert seen[-1] == ("checking", 4, 4)
    with pytest.raises(ImageError):
        list(image_inputs(paths, BACKBONE, 0)([torch.tensor([1, 2])], 0))


class Tiny(nn.Module):
    """A backbone of one convolution and one batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))

    def forward(self, images: Tensor) -> Tensor:
        return self.network(images.permute(0, 3, 1, 2).float()).mean(dim=(2, 3))


def test_the_backbones_statistics_stay_while_its_weights_may_learn() -> None:
    whole = WholeNetwork(Tiny(), nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 8)))
    assert whole.train() is whole
    norm = whole.backbone.network[1]
    before = norm.running_mean.clone()
    whole(torch.randint(0, 255, (5, 8, 8, 3), dtype=torch.uint8)).sum().backward()
    assert torch.equal(norm.running_mean, before)
    assert norm.weight.grad is not None
    assert whole.head[0].training
    assert float(whole.head[0].running_mean.abs().sum()) > 0
    head, backbone = whole.groups(0.1)
    assert (head["factor"], backbone["factor"]) == (1.0, 0.1)
    assert len(head["params"]) + len(backbone["params"]) == len(list(whole.parameters()))


def test_the_backbones_statistics_follow_the_batches_where_asked() -> None:
    whole = WholeNetwork(Tiny(), nn.Linear(4, 8), trained_norms=True).train()
    norm = whole.backbone.network[1]
    before = norm.running_mean.clone()
    whole(torch.randint(0, 255, (5, 8, 8, 3), dtype=torch.uint8))
    assert not torch.equal(norm.running_mean, before)
    moved = norm.running_mean.clone()
    whole.eval()(torch.randint(0, 255, (5, 8, 8, 3), dtype=torch.uint8))
    assert torch.equal(norm.running_mean, moved)


def test_several_processes_cannot_train_the_backbones_norms(tmp_path: Path) -> None:
    group = ProcessGroup("cpu")
    group.size = 2
    config = toy_config(finetune="all", backbone_norms="trained")
    for fit in (fit_whole, fit_last):
        with pytest.raises(ConfigError, match="2 processes"):
            fit(feature_dataset(), config, Session(group, folder=tmp_path))


def test_images_are_needed_and_a_cache_of_maps(tmp_path: Path) -> None:
    for finetune in ("last", "all"):
        with pytest.raises(ConfigError, match="features"):
            train(feature_dataset(), config=toy_config(), finetune=finetune, cache=tmp_path)
    data = write_scenes(tmp_path / "scenes", 12, size=64)
    with pytest.raises(ConfigError, match="cache="):
        train(data, **SMALL, finetune="last", cache=None, out=tmp_path / "run")


def test_stages_belong_to_the_last_stages() -> None:
    assert resolve(TrainConfig(finetune="last", stages=2)).epochs == 6
    for other in ("off", "all"):
        with pytest.raises(ConfigError, match="stages"):
            resolve(TrainConfig(finetune=other, stages=1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "learned"),
    [({"finetune": "all"}, "blocks.0."), ({"finetune": "last", "stages": 1}, "blocks.6.")],
    ids=["all", "last"],
)
def test_a_killed_run_resumes_to_the_same_model_and_its_backbone_travels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], learned: str
) -> None:
    dataset = open_dataset(write_scenes(tmp_path / "scenes", 24, size=64))
    given = {**SMALL, **settings, "cache": tmp_path / "cache", "device": "cpu"}
    train(dataset, out=tmp_path / "whole", **given)

    real, calls = loop._run_epoch, []

    def dies(epoch: int, *rest: object) -> dict[str, float]:
        calls.append(epoch)
        if len(calls) == 32:  # 30 epochs of the head, one of the network, then the kill
            raise Killed
        return real(epoch, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "_run_epoch", dies)
    with pytest.raises(Killed):
        train(dataset, out=tmp_path / "cut", checkpoint_seconds=0, **given)
    monkeypatch.setattr(loop, "_run_epoch", real)
    train(dataset, out=tmp_path / "cut", **given)
    assert run_contents(tmp_path / "cut") == run_contents(tmp_path / "whole")
    one, two = (load_file(tmp_path / name / "backbone.safetensors") for name in ("cut", "whole"))
    assert all(torch.equal(one[name], two[name]) for name in two)

    network = get_backbone("efficientnet-lite0").trainable()
    start = {name.removeprefix("network."): tensor for name, tensor in network.state_dict().items()}
    moved = {name for name in two if not torch.equal(two[name], start[name])}
    assert min(name for name in moved if name.startswith("blocks.")).startswith(learned)
    assert {name.split(".")[0] for name in moved} >= {"blocks", "conv_head", "bn2"}
    assert ("conv_stem.weight" in moved) == (settings["finetune"] == "all")
    assert not any("running_" in name for name in moved)

    assert (
        json.loads((tmp_path / "whole" / "config.json").read_text())["config"]["finetune"]
        == settings["finetune"]
    )
    assert json.loads((tmp_path / "whole" / "model.json").read_text())["tuned"] is True
    assert dataset.image_paths is not None
    images = [dataset.image_paths[row] for row in dataset.splits.query.tolist()]
    stored = HashModel.load(tmp_path / "whole")
    codes = stored.encode(images, device="cpu")
    with np.load(tmp_path / "whole" / "query.npz") as found:  # those of "last" come from maps of 16 bits
        assert (unpack(found["packed"], 16) != codes).mean() < 0.02
    stored.save(tmp_path / "moved")
    files = ["backbone.safetensors", "model.json", "model.onnx", "model.safetensors"]
    assert names(tmp_path / "moved") == files
    assert (HashModel.load(tmp_path / "moved").encode(images, device="cpu") == codes).all()
    (tmp_path / "moved" / "backbone.safetensors").unlink()
    with pytest.raises((ConfigError, DataError), match=r"backbone\.safetensors"):
        HashModel.load(tmp_path / "moved").encode(images, device="cpu")
    (tmp_path / "moved" / "model.json").unlink()
    assert (ch.load(tmp_path / "moved").encode(images) != codes).mean() < 0.02  # model.onnx alone


@pytest.mark.slow
def test_fine_tuning_without_a_folder_lives_as_long_as_its_model(tmp_path: Path) -> None:
    data, cache = write_scenes(tmp_path / "scenes", 12, size=64), tmp_path / "cache"
    settings = {**SMALL, "finetune": "all", "epochs": 1, "warm_start": False, "cache": cache, "device": "cpu"}
    model = train(data, **settings)
    home = model.folder
    assert home is not None
    assert names(home) == ["backbone.safetensors"]
    kept = train(data, **settings, out=tmp_path / "run")
    assert {name: tensor.tolist() for name, tensor in model.tensors().items()} == {
        name: tensor.tolist() for name, tensor in kept.tensors().items()
    }
    model.save(tmp_path / "saved")
    del model
    gc.collect()
    assert not home.exists()
    image = data / "images" / "000001.jpg"
    codes = [HashModel.load(tmp_path / name).encode([image], device="cpu") for name in ("saved", "run")]
    assert (codes[0] == codes[1]).all()


@pytest.mark.slow
@pytest.mark.parametrize("finetune", [("all",), ("last", "--stages", "1")], ids=["all", "last"])
def test_the_command_line_fine_tunes_watches_and_skips_broken_images(
    tmp_path: Path, finetune: tuple[str, ...]
) -> None:
    data = write_scenes(tmp_path / "scenes", 30, size=64)
    dataset = open_dataset(data)
    assert dataset.image_paths is not None
    Path(dataset.image_paths[int(dataset.splits.train[0])]).write_bytes(b"no picture")
    words = ["train", data, "--finetune", *finetune, "--bits", "16", "--epochs", "1", "--crop", "64"]
    words += ["--hidden", "16", "--watch", "1", "--out", tmp_path / "run", "--cache", tmp_path / "cache"]
    assert "1 of" in refused(cli(*words))
    done = cli(*words, "--skip-broken")
    assert done.code == 0, done.err
    assert "backbone.safetensors" in names(tmp_path / "run")
    assert "validation_map" in (tmp_path / "run" / "log.jsonl").read_text()
    with np.load(tmp_path / "run" / "splits.npz") as splits:
        assert len(splits["validation"]) == 2
