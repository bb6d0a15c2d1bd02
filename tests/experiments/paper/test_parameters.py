from __future__ import annotations

import pytest

from centerhash.experiments.paper.parameters import printed_path


@pytest.mark.parametrize(("entropy", "slope"), [(1.0, 0.8), (9.0, -0.8), (11.0, -1.2)])
def test_the_printed_step_multiplies_a_deviation(entropy: float, slope: float) -> None:
    """1 - eta lambda c with eta = .1 and c = 2, far from the centers."""
    start, after = printed_path(entropy, 0.1, steps=1, start=0.5001, distance=200.0)
    assert (after - 0.5) / (start - 0.5) == pytest.approx(slope, abs=1e-3)


def test_the_printed_step_settles_below_two_and_leaves_above() -> None:
    assert printed_path(9.0, 0.1, steps=60)[-1] == pytest.approx(0.5, abs=1e-3)
    assert abs(printed_path(11.0, 0.1, steps=60)[-1] - 0.5) > 0.3
