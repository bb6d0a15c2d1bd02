"""The lines of all methods in one plot must be told apart, with every common kind of color vision."""

from __future__ import annotations

import re
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from centerhash.experiments.figures import LOOKS, Series, line_plot, look, swatch
from centerhash.methods.registry import METHODS

# Machado, Oliveira and Fernandes 2009, full severity, for linear RGB
VISION = {
    "all cones": np.eye(3),
    "no red": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "no green": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "no blue": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)


def linear(color: str) -> NDArray[np.float64]:
    values = np.array([int(color[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(color: NDArray[np.float64]) -> NDArray[np.float64]:
    """CIELAB of linear RGB: distances there are differences that people see."""
    ratio = XYZ @ np.clip(color, 0, 1) / XYZ.sum(axis=1)
    bent = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * bent[1] - 16, 500 * (bent[0] - bent[1]), 200 * (bent[1] - bent[2])])


def test_every_method_has_a_color_and_a_style() -> None:
    assert set(METHODS) <= set(LOOKS)


def test_no_two_methods_look_the_same_without_color() -> None:
    assert len({(found.line, found.mark) for found in LOOKS.values()}) == len(LOOKS)


def test_colors_of_one_line_style_are_told_apart() -> None:
    for vision in VISION:
        seen = {name: lab(VISION[vision] @ linear(color)) for name, (color, _, _) in LOOKS.items()}
        pairs = [pair for pair in combinations(LOOKS, 2) if LOOKS[pair[0]].line == LOOKS[pair[1]].line]
        close = [pair for pair in pairs if np.linalg.norm(seen[pair[0]] - seen[pair[1]]) < 15]
        assert close == [], vision


def test_colors_stand_out_from_white() -> None:
    for name in LOOKS:
        luminance = (XYZ @ linear(LOOKS[name].color))[1]
        assert 1.05 / (luminance + 0.05) >= 2, name


def test_a_plot_names_its_lines_and_is_reproducible() -> None:
    series = [
        Series("s0", "csq", [16, 32], [0.1, 0.2], [0.01, 0.0]),
        Series("s1", "ics", [16, 32], [0.3, 0.4]),
    ]

    def draw() -> str:
        return line_plot(
            series, title="a < b", xlabel="bits", ylabel="mAP", ticks=(16, 32, 64), reference=("chance", 0.05)
        )

    svg = draw()
    assert svg == draw()
    assert set(re.findall(r'data-series="(\w+)"', svg)) == {"s0", "s1"}
    assert LOOKS["csq"].color.lower() in svg
    assert ">chance<" in svg
    assert ">32<" in svg
    assert ">64<" not in svg  # beyond the data
    assert "a &lt; b" in svg


def test_names_inside_a_plot_are_unique_or_referred_to() -> None:
    """Many plots stand in one page: an id that nothing refers to would only be there twice."""
    svg = line_plot([Series("s0", "csq", [1, 2], [0.1, 0.2])], title="", xlabel="", ylabel="")
    for name in re.findall(r'id="([^"]+)"', svg):
        assert f"#{name}" in svg


def test_every_method_has_a_swatch() -> None:
    for name in [*LOOKS, "newer"]:
        assert swatch(name).startswith("<svg"), name
        assert look(name).color in swatch(name), name
    assert "fill='#fff'" in swatch("ics", hollow=True)
    assert "fill='#fff'" not in swatch("ics")
