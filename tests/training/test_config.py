from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from centerhash.core.errors import ConfigError
from centerhash.training.config import TrainConfig, resolve
from centerhash.training.presets import preset_names, read_preset
from tests.toys import cli, refused


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("bits", 7),
        ("bits", 4000),
        ("bits", [16, 20]),
        ("bits", [16, "x"]),
        ("bits", []),
        ("epochs", 0),
        ("batch_size", 1),
        ("learning_rate", 0),
        ("weight_decay", -1),
        ("seed", -1),
        ("schedule", "cosinus"),
        ("centers", "hadamart"),
        ("pool", "maximum"),
        ("eval_interval", -1),
        ("gradient_accumulation_steps", 0),
    ],
)
def test_impossible_settings(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match="bits" if key == "bits" else key):
        TrainConfig(**{key: value})


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"method": "itq", "finetune": "all"}, "finetune="),
        ({"method": "itq", "eval_interval": 2}, "eval_interval="),
        ({"method": "itq", "bits": [16, 32]}, "nested"),
        ({"method": "itq", "head": {"presence": True}}, "presence"),
        ({"method": "dnnh", "bits": [16, 32]}, "nested"),
        ({"method": "csq", "head": {"evidence": True}}, "ics-softmax"),
        ({"finetune": "all", "stages": 1}, "stages="),
        ({"finetune": "off", "stages": 1}, "stages="),
        ({"method": "icss"}, "'ics'"),
        ({"backbone": "resnet"}, "'resnet'"),
        ({"options": {"lamda": 1}}, "'lambda'"),
    ],
)
def test_impossible_combinations(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        resolve(TrainConfig(**settings))


def test_weights_as_path() -> None:
    assert TrainConfig(weights=Path("folder") / "net.pth").weights == str(Path("folder") / "net.pth")


def test_finetuning_defaults() -> None:
    frozen, tuned = resolve(TrainConfig()), resolve(TrainConfig(finetune="all"))
    assert (frozen.epochs, frozen.batch_size, frozen.learning_rate) == (30, 256, 1e-3)
    assert (tuned.epochs, tuned.batch_size, tuned.learning_rate) == (6, 64, 1e-3)
    assert resolve(TrainConfig(finetune="last", stages=2, epochs=9)).epochs == 9


def test_resolve_twice() -> None:
    config = resolve(TrainConfig(method="ics", bits=[16, 32]))
    assert resolve(config) == config


def test_presets_of_printed_recipe() -> None:
    assert preset_names() == ["paper-alexnet", "paper-resnet50"]
    for name in preset_names():
        config = TrainConfig(**read_preset(name))
        assert (config.optimizer, config.weight_decay) == ("adam", 0.9)
        assert (config.centers, config.assignment) == ("printed", "random")
        assert (config.head.hidden, config.backbone_rate, config.crop) == ((), 1, 224)
    config = TrainConfig(**read_preset("paper-resnet50"))
    assert (config.epochs, config.batch_size, config.learning_rate) == (90, 64, 1e-4)
    assert (config.method, config.backbone, config.schedule) == ("ics-printed", "resnet50", "steps")
    by_bits = [resolve(config.model_copy(update={"bits": bits})).options["beta"] for bits in (16, 32, 64)]
    assert by_bits == [0.001, 0.01, 0.1]
    assert (resolve(config).options["lambda"], resolve(config).options["gamma"]) == (0.01, 0.05)


def test_read_custom_preset(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text("bits = 24\nepochz = 3\n")
    assert "'epochz'" in refused(cli("train", tmp_path, "--preset", own, "--out", tmp_path / "run"))
    own.write_text("bits =")
    for name in (str(own), "gone.toml", "paper-alexnt"):
        with pytest.raises(ConfigError):
            read_preset(name)
