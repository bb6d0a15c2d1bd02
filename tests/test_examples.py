"""The examples run, and the tutorial on a new method contains the file that is tested here."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch

import centerhash as ch
from centerhash.methods.registry import get_method
from tests.toys import toy_config

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
HINGE = f"{EXAMPLES / 'hinge.py'}:Hinge"


def loaded(path: Path, name: str) -> ModuleType:
    """A file as the module `name`."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def hinge() -> type:
    """The example's class, as the command line finds it."""
    return get_method(HINGE).cls


def test_tutorial_has_the_example() -> None:
    tutorial = (ROOT / "docs" / "tutorials" / "new-method.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", tutorial, flags=re.DOTALL)
    assert blocks == [(EXAMPLES / "hinge.py").read_text()]


def test_examples_are_short() -> None:
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text().splitlines()) <= 60, path.name


def test_hinge_by_hand(hinge: type) -> None:
    centers = torch.tensor([[1.0, 1, -1, -1], [1, -1, 1, -1]])
    labels = torch.tensor([[True, True], [True, False]])
    logits = torch.tensor([[0.5, 9, -9, -3], [2, -1, -2, 0]])
    # Image 1: 1 - 0.5, two bits on which the centers disagree, 0 beyond the margin. Image 2: 0, 1 + 1, 0, 1 - 0.
    assert float(hinge(centers)(logits, labels)) == (0.5 / 4 + 3 / 4) / 2
    assert float(hinge(centers, margin=0.5)(logits, labels)) == (0 + 2 / 4) / 2


@pytest.mark.parametrize("name", ["hinge", HINGE])
def test_hinge_trains(hinge: type, name: str, toy_dataset: ch.Dataset) -> None:
    model = ch.train(toy_dataset, config=toy_config(method=name, options={"margin": 0.5}))
    # A file that is loaded again makes another class.
    assert type(model.objective).__name__ == hinge.__name__
    result = ch.evaluate(model, toy_dataset)
    assert result.map_all > 0.95 > result.random_all


@pytest.mark.parametrize("name", ["custom_loop", "torch_dataset"])
def test_custom_loops(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    score = loaded(EXAMPLES / f"{name}.py", name).main(epochs=4)
    assert score > 0.6
    assert f"mAP {score:.3f}" in capsys.readouterr().out


@pytest.mark.slow
def test_pipeline(scene_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline = loaded(EXAMPLES / "pipeline.py", "pipeline")
    by_image, by_labels = pipeline.main(scene_folder, tmp_path, epochs=4)
    assert by_image[0].distance == 0  # the query itself is in the index
    assert len(by_image) == len(by_labels) == 5
    assert sorted(label.weight for label in by_labels.labels) == pytest.approx([0.3, 0.7])
    assert "random ranking" in capsys.readouterr().out
