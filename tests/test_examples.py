"""The examples run, and the tutorial on a new method shows the file that is tested here."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import MappingProxyType, ModuleType

import pytest
import torch

from centerhash.data import Dataset
from centerhash.data.scenes.scenes import write_scenes
from centerhash.methods import table as methods
from centerhash.methods.table import METHODS, Method, get_method
from centerhash.training.config import TrainConfig
from centerhash.training.run import train
from centerhash.training.scoring import evaluate
from tests.toys import toy_config

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
TUTORIAL = (ROOT / "docs" / "tutorials" / "new-method.md").read_text()


def loaded(path: Path, name: str) -> ModuleType:
    """A file as the module `name`."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def blocks() -> list[str]:
    """The Python blocks of the tutorial."""
    return re.findall(r"```python\n(.*?)```", TUTORIAL, flags=re.DOTALL)


@pytest.fixture
def hinge(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example's file and the tutorial's row, where the tutorial puts them."""
    module = loaded(EXAMPLES / "hinge.py", "centerhash.methods.losses.hinge")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    row = eval(blocks()[1], {"Method": Method})
    monkeypatch.setattr(methods, "METHODS", MappingProxyType({**METHODS, row.name: row}))
    return module


def test_the_tutorial_shows_the_example_as_it_is() -> None:
    assert blocks()[0] == (EXAMPLES / "hinge.py").read_text()


def test_examples_are_as_short_as_they_are_said_to_be() -> None:
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text().splitlines()) <= 50, path.name


def test_the_hinge_counts_bits_by_the_agreement_of_centers(hinge: ModuleType) -> None:
    centers = torch.tensor([[1.0, 1, -1, -1], [1, -1, 1, -1]])
    labels = torch.tensor([[True, True], [True, False]])
    targets = hinge.agreement(labels, centers)
    assert targets.tolist() == [[1, 0, 0, -1], [1, 1, -1, -1]]
    logits = torch.tensor([[0.5, 9, -9, -3], [2, -1, -2, 0]])
    # 1 - 0.5 | free | free | right by more than 1; right | 1 + 1 | right | 1 - 0
    assert hinge.bit_hinge(logits, targets, 1.0).tolist() == [0.5 / 4, 3 / 4]


def test_the_new_method_trains_by_its_name_and_finds(hinge: ModuleType, toy_dataset: Dataset) -> None:
    model = train(toy_dataset, config=toy_config(method="hinge", options={"margin": 0.5}))
    assert isinstance(model.objective, hinge.Hinge)
    result = evaluate(model, toy_dataset)
    assert result.map_textbook > 0.95 > result.chance_textbook


def test_the_new_method_has_its_options_checked(hinge: ModuleType) -> None:
    with pytest.raises(
        ValueError, match=r"unknown option 'margn' of method 'hinge'. Did you mean 'margin'\?"
    ):
        get_method("hinge").options({"margn": 1}, 16)
    assert TrainConfig(method="hinge").method == "hinge"


@pytest.mark.slow
def test_the_pipeline_leads_from_images_to_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline = loaded(EXAMPLES / "pipeline.py", "pipeline")
    photos = write_scenes(tmp_path / "photos", 40, size=64)
    by_image, by_labels = pipeline.main(photos, tmp_path / "work", epochs=4)
    assert by_image[0].distance == 0  # the query itself is in the index
    assert len(by_image) == len(by_labels) == 5
    assert sorted(label.weight for label in by_labels.labels) == pytest.approx([0.3, 0.7])
    assert "by chance" in capsys.readouterr().out
