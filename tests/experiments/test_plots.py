"""Figures: the same bytes for the same input, every method looks different, curves are means over the seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from centerhash.experiments.plots import (
    Series,
    code_heat_map,
    line_plot,
    line_style,
    precision_points,
    recall_points,
    save,
    svg_text,
    t_sne,
)
from centerhash.methods.registry import METHODS
from tests.toys import cli, names

SERIES = [
    Series("CSQ", "csq", [16, 32], [0.1, 0.2], [0.01, 0.0]),
    Series("ICS", "ics", [16, 32], [0.3, 0.4]),
]


def test_line_styles_of_methods() -> None:
    assert len({line_style(method)[::2] for method in METHODS}) == len(METHODS)
    compared = ("csq", "ewcs", "ics", "orthohash", "ics-softmax", "ics-printed")
    assert len({line_style(method).color for method in compared}) == len(compared)


def plot() -> Any:
    panels = {"a < b": SERIES, "$5": SERIES[:1]}
    return line_plot(panels, xlabel="bits", ylabel="mAP", ticks=(16, 32), random=[0.05, 0.1])


def test_line_plot() -> None:
    text = svg_text(plot())
    for part in ("CSQ", "ICS", "random ranking", "a &lt; b", "$5", ">32<", line_style("csq").color.lower()):
        assert part in text
    assert text == svg_text(plot())


@pytest.mark.parametrize(("ending", "magic"), [("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_save_by_ending(tmp_path: Path, ending: str, magic: bytes) -> None:
    assert save(plot(), tmp_path / f"plot.{ending}").read_bytes().startswith(magic)


def curve(precision: list[float | None], recall: list[float]) -> dict[str, Any]:
    return {"curve": {"precision": precision, "recall": recall}}


def test_recall_points() -> None:
    seeds = [curve([None, None, 0.8, 0.5], [0, 0, 0.4, 1]), curve([None, 1.0, 0.6, 0.5], [0, 0.2, 0.6, 1])]
    recall, precision = recall_points(seeds)
    assert recall == pytest.approx([0.1, 0.5, 1])  # At radius 0 no ball holds an item.
    assert precision == pytest.approx([1, 0.7, 0.5])


def test_precision_points() -> None:
    seeds = [{"precision": {"1": 1.0, "10": 0.5}}, {"precision": {"1": 0.0, "10": 0.7}}]
    assert precision_points(seeds) == ([1, 10], pytest.approx([0.5, 0.6]))


def test_heat_map_values() -> None:
    codes = np.array([[1, 1], [1, -1], [-1, -1]])
    labels = np.array([[0, 1, 0], [0, 1, 0], [1, 0, 0]])
    (image,) = code_heat_map(codes, labels, ["a", "b", "c"]).axes[0].images
    assert image.get_array().tolist() == [[1, 0], [-1, -1]]  # b has two items, a one and c none.


@pytest.mark.parametrize(("count", "bits"), [(2, 8), (3, 1), (40, 16)])
def test_t_sne_of_any_codes(count: int, bits: int) -> None:
    generator = np.random.default_rng(0)
    codes = generator.choice([-1, 1], (count, bits))
    figure = t_sne(codes, generator.random((count, 12)) < 0.3)
    assert len(figure.axes[0].collections[0].get_offsets()) == count


@pytest.mark.slow
def test_evaluate_writes_plots(feature_run: Path, tmp_path: Path) -> None:
    plain, done = cli("evaluate", feature_run), cli("evaluate", feature_run, "--plots", tmp_path / "plots")
    assert (done.code, done.out) == (0, plain.out)
    written = ["heat-map.png", "precision-at-n.png", "precision-recall.png", "t-sne.png"]
    assert names(tmp_path / "plots") == written
    for name in written:
        with Image.open(tmp_path / "plots" / name) as image:
            assert len(np.unique(np.asarray(image.convert("L")))) > 20  # It is not empty.
