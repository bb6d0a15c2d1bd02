from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from centerhash.core.errors import InputError
from centerhash.methods.losses.pairwise import pairs_of_two, shared_labels
from centerhash.methods.losses.triplet import (
    Dnnh,
    DnnhOptions,
    piecewise_threshold,
    squared_distances,
    triplet_loss,
)
from centerhash.networks.heads import DivideAndEncode
from tests.methods.losses.toys import learned
from tests.toys import CLASSES as ANIMALS
from tests.toys import feature_dataset, toy_config

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
    assert squared_distances(codes).tolist() == [[0, 1, 3], [1, 0, 2], [3, 2, 0]]


def test_triplet_loss_by_hand() -> None:
    # anchor 0, positive 1, negative 2, and anchor 1, positive 0, negative 2
    distances = torch.tensor([[0.0, 3.0, 2.5], [3.0, 0.0, 9.0], [2.5, 9.0, 0.0]])
    similar = torch.tensor([[0, 1, 0], [1, 0, 0], [0, 0, 0]], dtype=torch.bool)
    other = ~similar & ~torch.eye(3, dtype=torch.bool)
    assert float(triplet_loss(distances, similar, other, 1.0)) == pytest.approx((3 - 2.5 + 1 + 0) / 2)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("epsilon", [0.5, 0.1])
def test_dnnh_by_three_loops(seed: int, epsilon: float) -> None:
    logits, labels = sample(seed=seed)
    codes = piecewise_threshold(torch.sigmoid(logits), epsilon)
    found = Dnnh(CLASSES, BITS, DnnhOptions(margin=1.3, epsilon=epsilon))(logits, labels).total
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
    found = triplet_loss(squared_distances(codes), pairs & shares, pairs & ~shares, margin)
    assert float(found) == pytest.approx(naive_loss(codes, labels, margin), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("epsilon", [0.5, 0.2])
def test_gradient_is_right_in_float64(epsilon: float) -> None:
    logits, labels = sample()
    objective = Dnnh(CLASSES, BITS, DnnhOptions(epsilon=epsilon))
    assert torch.autograd.gradcheck(lambda z: objective(z, labels).total, (logits.requires_grad_(),))


def test_batches_at_the_edge_have_finite_losses_and_gradients() -> None:
    objective = Dnnh(CLASSES, BITS, DnnhOptions())
    everything = torch.ones(3, CLASSES, dtype=torch.bool)
    alone = torch.eye(CLASSES, dtype=torch.bool)
    mixed = torch.cat([alone, alone, ~everything])
    for labels in (everything, alone, everything[:1], ~everything, ~everything[:1], mixed):
        for scale in (0.0, 1.0, 1e4):
            logits = (scale * torch.randn(len(labels), BITS)).requires_grad_()
            loss = objective(logits, labels).total
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
    Dnnh(80, 64, DnnhOptions())(logits, labels).total.backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()


@pytest.mark.parametrize(("features", "bits"), [(12, 4), (14, 4), (5, 4), (4, 4), (33, 8)])
def test_every_bit_sees_its_own_slice_alone(features: int, bits: int) -> None:
    torch.manual_seed(0)
    layer = DivideAndEncode(features, bits)
    inputs = torch.randn(3, features, requires_grad=True)
    sizes = [len(part) for part in np.array_split(np.arange(features), bits)]
    start = 0
    for bit, size in enumerate(sizes):
        (gradient,) = torch.autograd.grad(layer(inputs)[:, bit].sum(), inputs)
        seen = gradient[0].nonzero().flatten().tolist()
        assert seen == list(range(start, start + size))
        expected = inputs[:, start : start + size] @ layer.weight[bit, :size] + layer.bias[bit]
        torch.testing.assert_close(layer(inputs)[:, bit], expected)
        start += size
    assert start == features


def test_padding_of_short_slices_is_never_trained() -> None:
    layer = DivideAndEncode(5, 2)
    layer(torch.randn(3, 5)).square().sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.tolist()[1][2] == layer.weight.grad.tolist()[1][2] == 0


def test_divide_and_encode_stores_its_weights_only_and_refuses_too_few_features() -> None:
    assert set(DivideAndEncode(9, 4).state_dict()) == {"weight", "bias"}
    with pytest.raises(InputError, match="3 features cannot be divided into 4 slices"):
        DivideAndEncode(3, 4)


@pytest.mark.parametrize("divided", [False, True])
def test_a_small_head_learns_separable_images(divided: bool) -> None:
    dataset = feature_dataset(most_labels=2)
    config = toy_config(epochs=25)
    config = config.model_copy(update={"head": config.head.model_copy(update={"divide": divided})})
    objective = Dnnh(len(ANIMALS), config.bits, DnnhOptions())
    head, log, score = learned(dataset, objective, config)
    assert isinstance(head[-1], DivideAndEncode) is divided
    assert log[-1]["loss"] < log[0]["loss"]
    assert score > 0.95
