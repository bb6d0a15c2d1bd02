from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from centerhash.core.errors import ConfigError
from centerhash.methods.centers import hash_centers
from centerhash.methods.losses import ICS, ICSOptions
from centerhash.methods.weights import project_to_simplex
from centerhash.training.config import TrainConfig, resolve
from centerhash.training.presets import preset_names, read_preset
from tests.toys import cli, refused


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("bits", 7),
        ("bits", 4000),
        ("epochs", 0),
        ("batch_size", 1),
        ("learning_rate", 0),
        ("weight_decay", -1),
        ("seed", -1),
        ("schedule", "cosinus"),
        ("centers", "hadamart"),
        ("pool", "maximum"),
    ],
)
def test_impossible_settings_are_named(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"option '{key}' of TrainConfig cannot be {value!r}: "):
        TrainConfig(**{key: value})


def test_weights_may_be_a_path() -> None:
    assert TrainConfig(weights=Path("folder") / "net.pth").weights == str(Path("folder") / "net.pth")


def test_short_fine_tuning_has_defaults_of_its_own() -> None:
    frozen, tuned = resolve(TrainConfig()), resolve(TrainConfig(finetune="all"))
    assert (frozen.epochs, frozen.batch_size, frozen.learning_rate) == (30, 256, 1e-3)
    assert (tuned.epochs, tuned.batch_size, tuned.learning_rate) == (6, 64, 1e-3)
    assert resolve(TrainConfig(finetune="all", epochs=9)).epochs == 9


def test_a_method_without_a_network_cannot_be_fine_tuned() -> None:
    with pytest.raises(ConfigError, match="method 'itq' has no network to fine-tune"):
        resolve(TrainConfig(finetune="all", method="itq"))


def test_the_recipe_of_lscsh_takes_its_step() -> None:
    """One step of 0.1 along the gradient of the batch's mean of BCE(code, weighted mean of centers) + 0.001 w log w."""
    config = resolve(TrainConfig(**read_preset("lscsh-recipe")))
    assert (config.epochs, config.batch_size, config.backbone_rate) == (90, 32, 0.01)
    assert (config.optimizer, config.weight_decay, config.schedule) == ("adam", 1e-5, "decay")
    assert config.options["keep"]
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(32, 64, generator=generator, dtype=torch.float64)
    labels = torch.rand(32, 6, generator=generator) < 0.5
    labels[:, 0] |= ~labels.any(dim=1)
    centers = torch.from_numpy(hash_centers(6, 64)).double()
    weights = (labels / labels.sum(1, keepdim=True)).double().requires_grad_()
    target, code = (weights @ centers + 1) / 2, torch.sigmoid(logits)
    loss = -(target * torch.log(code) + (1 - target) * torch.log(1 - code)).sum(1).mean()
    loss = loss + 0.001 * torch.special.xlogy(weights, weights).sum(1).mean()
    [gradient] = torch.autograd.grad(loss, weights)
    expected = project_to_simplex((weights - 0.1 * gradient.nan_to_num()).detach(), labels)
    found = ICS(centers, options=ICSOptions(**config.options)).double().weights(logits, labels)
    assert float((found - labels / labels.sum(1, keepdim=True)).abs().max()) > 1e-3
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


def test_presets_hold_the_printed_recipe(tmp_path: Path) -> None:
    recipe, *papers = preset_names()
    assert recipe == "lscsh-recipe"
    assert papers == ["paper-alexnet", "paper-alexnet-csq", "paper-resnet50", "paper-resnet50-csq"]
    for name in papers:
        printed = TrainConfig(**read_preset(name))
        assert (printed.optimizer, printed.weight_decay) == ("adam", 0.9)
        assert (printed.centers, printed.assignment) == ("printed", "random")
        assert len(printed.head.hidden) == (2 if name.endswith("-csq") else 0)
        assert printed.backbone_rate == (0.05 if name.endswith("-csq") else 1)
    config = TrainConfig(**read_preset("paper-resnet50"))
    assert (config.epochs, config.batch_size, config.learning_rate) == (90, 64, 1e-4)
    assert (config.method, config.backbone, config.schedule) == ("ics-printed", "resnet50", "steps")
    assert (config.crop, config.pool) == (224, "mean")
    assert TrainConfig(**read_preset("paper-alexnet")).crop == 224
    assert config.head.hidden == ()
    assert [resolve(config.model_copy(update={"bits": bits})).options["beta"] for bits in (16, 32, 64)] == [
        0.001,
        0.01,
        0.1,
    ]
    assert resolve(config).options["lambda"] == 0.01
    assert resolve(config).options["gamma"] == 0.05
    with pytest.raises(ConfigError):
        read_preset("paper-alexnt")
    own = tmp_path / "own.toml"
    own.write_text("bits = 24\nepochz = 3\n")
    words = refused(cli("train", tmp_path, "--preset", own, "--out", tmp_path / "run"))
    assert "unknown option 'epochz'" in words
    own.write_text("bits =")
    with pytest.raises(ConfigError):
        read_preset(str(own))
    with pytest.raises(ConfigError):
        read_preset("gone.toml")
