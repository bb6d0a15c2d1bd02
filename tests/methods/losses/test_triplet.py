from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from centerhash.methods.losses.pairwise import pairs_of_two, shared_labels, squared_distance
from centerhash.methods.losses.triplet import (
    DNNH,
    piecewise_threshold,
    triplet_loss,
)

BITS, CLASSES = 8, 4


def sample(rows: int = 8, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits and labels, the last image without any."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, BITS, generator=generator, dtype=torch.float64)
    labels = torch.rand(rows, CLASSES, generator=generator) < 0.35
    labels[-1] = False
    return logits, labels


def naive_loss(codes: Tensor, labels: Tensor, margin: float) -> float:
    """Three loops over anchor, positive and negative."""
    losses = []
    for i in range(len(codes)):
        for p in range(len(codes)):
            for n in range(len(codes)):
                near, far = bool((labels[i] & labels[p]).any()), not bool((labels[i] & labels[n]).any())
                if i not in (p, n) and near and far:
                    gap = (codes[i] - codes[p]).square().sum() - (codes[i] - codes[n]).square().sum()
                    losses.append(max(0.0, float(gap) + margin))
    return sum(losses) / max(1, len(losses))


def test_threshold_by_hand() -> None:
    values = torch.tensor([0.0, 0.2, 0.3, 0.5, 0.7, 0.8, 1.0])
    expected = [0.0, 0.0, 0.3, 0.5, 0.7, 1.0, 1.0]
    np.testing.assert_allclose(piecewise_threshold(values, 0.25), expected, rtol=1e-6)
    assert torch.equal(piecewise_threshold(values, 0.5), values)


def test_a_pushed_bit_has_no_gradient() -> None:
    values = torch.tensor([0.1, 0.5, 0.9], requires_grad=True)
    (gradient,) = torch.autograd.grad(piecewise_threshold(values, 0.25).sum(), values)
    assert gradient.tolist() == [0, 1, 0]


def test_squared_distance_of_bits_is_the_hamming_distance() -> None:
    codes = torch.tensor([[0.0, 0, 1], [1, 0, 1], [1, 1, 0]])
    assert squared_distance(codes, codes).tolist() == [[0, 1, 3], [1, 0, 2], [3, 2, 0]]


def test_triplet_loss_by_hand() -> None:
    # anchor 0, positive 1, negative 2, and anchor 1, positive 0, negative 2
    distances = torch.tensor([[0.0, 3.0, 2.5], [3.0, 0.0, 9.0], [2.5, 9.0, 0.0]])
    similar = torch.tensor([[0, 1, 0], [1, 0, 0], [0, 0, 0]], dtype=torch.bool)
    other = ~similar & ~torch.eye(3, dtype=torch.bool)
    assert float(triplet_loss(distances, similar, other, 1.0)) == pytest.approx((3 - 2.5 + 1 + 0) / 2)


def test_dnnh_by_three_loops() -> None:
    for seed in range(4):
        for epsilon in (0.5, 0.1):
            logits, labels = sample(seed=seed)
            codes = piecewise_threshold(torch.sigmoid(logits), epsilon)
            found = DNNH(margin=1.3, epsilon=epsilon)(logits, labels)
            assert float(found) == pytest.approx(naive_loss(codes, labels, 1.3), abs=1e-12)
            assert float(found) > 0


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), min_size=1, max_size=7),
    st.sampled_from([0.5, 1.0, 2.0]),
)
def test_ties_are_counted_once_or_never(images: list[tuple[int, int]], margin: float) -> None:
    """Codes that are whole numbers have many distances that differ by exactly the margin."""
    codes = torch.tensor([[float(code >> bit & 1) for bit in range(3)] for code, _ in images])
    labels = torch.tensor([[bool(label >> c & 1) for c in range(3)] for _, label in images])
    shares, pairs = shared_labels(labels), pairs_of_two(len(images), labels.device)
    found = triplet_loss(squared_distance(codes, codes), pairs & shares, pairs & ~shares, margin)
    assert float(found) == pytest.approx(naive_loss(codes, labels, margin), rel=1e-5, abs=1e-6)


def test_batches_at_the_edge_have_finite_losses_and_gradients() -> None:
    objective = DNNH()
    everything = torch.ones(3, CLASSES, dtype=torch.bool)
    alone = torch.eye(CLASSES, dtype=torch.bool)
    mixed = torch.cat([alone, alone, ~everything])
    for labels in (everything, alone, everything[:1], ~everything, ~everything[:1], mixed):
        for scale in (0.0, 1.0, 1e4):
            logits = (scale * torch.randn(len(labels), BITS)).requires_grad_()
            loss = objective(logits, labels)
            loss.backward()
            assert torch.isfinite(loss)
            assert logits.grad is not None
            assert torch.isfinite(logits.grad).all()
            if len(labels) != len(mixed):  # no anchor has both a positive and a negative
                assert float(loss.detach()) == 0
                assert not logits.grad.any()


def test_a_whole_batch_needs_no_cube_of_memory() -> None:
    """256 images have up to 16 million triplets; all of them are counted within the time of a step."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(256, 64, generator=generator, requires_grad=True)
    labels = torch.rand(256, 80, generator=generator) < 0.04
    DNNH()(logits, labels).backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
