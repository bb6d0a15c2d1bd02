from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from centerhash.core.errors import ConfigError
from centerhash.methods.losses.base import Objective
from centerhash.methods.losses.pairwise import (
    DCH,
    DHN,
    DNNH,
    DPSH,
    IDHN,
    DCHOptions,
    HashNet,
    HashNetOptions,
    balanced_mean,
    bimodal_loss,
    cauchy_loss,
    cauchy_quantisation,
    continuation,
    continuous_similarity,
    cosine_distance,
    jaccard,
    label_cosine,
    logistic_loss,
    masked_mean,
    pairs_of_two,
    piecewise_threshold,
    shared_labels,
    sign_gap,
    soft_pair_loss,
    squared_distance,
    triplet_loss,
    upweighted_mean,
    weighted_mean,
)
from centerhash.methods.losses.proxy import HyP2

BITS, CLASSES = 8, 5


def sample(rows: int = 7, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits and labels, the last image without any."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, BITS, generator=generator, dtype=torch.float64)
    labels = torch.rand(rows, CLASSES, generator=generator) < 0.3
    labels[0, 0] = labels[1, 0] = True
    labels[-1] = False
    return logits, labels


def loops(
    logits: Tensor, labels: Tensor, activation: Callable[[float], float]
) -> tuple[list[list[float]], Tensor]:
    """Relaxed codes as lists, and which pairs share a label, found label by label."""
    codes = [[activation(float(z)) for z in row] for row in logits]
    count = len(labels)
    similar = torch.zeros(count, count, dtype=torch.bool)
    for i in range(count):
        for j in range(count):
            similar[i, j] = any(bool(labels[i, c]) and bool(labels[j, c]) for c in range(labels.shape[1]))
    return codes, similar


def dot(left: list[float], right: list[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


def cosine(left: list[float], right: list[float]) -> float:
    return dot(left, right) / math.sqrt(dot(left, left) * dot(right, right))


def test_shared_labels_by_hand() -> None:
    labels = torch.tensor([[1, 1, 0], [0, 1, 1], [0, 0, 1], [0, 0, 0]], dtype=torch.bool)
    expected = [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]]
    assert shared_labels(labels).int().tolist() == expected
    assert pairs_of_two(2, labels.device).tolist() == [[False, True], [True, False]]


def test_masked_mean_of_nothing_is_zero_and_hides_what_is_not_finite() -> None:
    values = torch.tensor([2.0, torch.inf, 4.0])
    assert float(masked_mean(values, torch.tensor([True, False, True]))) == 3
    assert float(masked_mean(values, torch.zeros(3, dtype=torch.bool))) == 0


def test_balanced_mean_has_the_weights_of_the_paper() -> None:
    generator = torch.Generator().manual_seed(3)
    values, similar = torch.rand(6, 6, generator=generator), torch.rand(6, 6, generator=generator) < 0.3
    pairs = pairs_of_two(6, values.device)
    ones = int((similar & pairs).sum())
    total = 0.0
    for i in range(6):
        for j in range(6):
            if i != j:
                total += float(values[i, j]) * (30 / ones if similar[i, j] else 30 / (30 - ones))
    assert float(balanced_mean(values, similar, pairs)) == pytest.approx(total / 30, rel=1e-5)


def test_logistic_loss_by_hand() -> None:
    # sigmoid(1/2 * 2 log 3) = 3/4: a similar pair costs -log 3/4, a dissimilar one -log 1/4
    products = torch.full((2,), 2 * math.log(3))
    found = logistic_loss(products, torch.tensor([True, False]), slope=0.5)
    np.testing.assert_allclose(found, [-math.log(0.75), -math.log(0.25)], rtol=1e-6)


def test_jaccard_by_hand() -> None:
    labels = torch.tensor([[1, 1, 0], [0, 1, 1], [0, 0, 0]], dtype=torch.bool)
    np.testing.assert_allclose(
        jaccard(labels), [[1.0, 1 / 3, 0.0], [1 / 3, 1.0, 0.0], [0.0, 0.0, 0.0]], rtol=1e-6
    )


def test_continuous_similarity_by_hand() -> None:
    labels = torch.tensor([[1, 1, 0, 0], [0, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]], dtype=torch.bool)
    found = continuous_similarity(labels)
    np.testing.assert_allclose(found[0], [4.0, 4 / 6, 4.0, 0.0], rtol=1e-6)
    np.testing.assert_allclose(found[3], [0.0, 0.0, 0.0, 0.0])


def test_weighted_mean_by_hand() -> None:
    values, similar = torch.tensor([[9.0, 1.0], [3.0, 9.0]]), torch.tensor([[True, True], [False, True]])
    pairs = pairs_of_two(2, values.device)
    assert float(weighted_mean(values, similar, pairs, 1.0)) == 2  # the plain mean of 1 and 3
    assert float(weighted_mean(values, similar, pairs, 3.0)) == pytest.approx((3 * 1 + 3) / 4)
    assert float(weighted_mean(values, similar, pairs & False, 3.0)) == 0
    only = pairs & similar
    assert float(weighted_mean(values, similar, only, 0.5)) == 1


def test_hashnet_as_its_authors_configure_coco() -> None:
    # two images share one of two labels each, so their pairs have the factor 4 / 4; the third shares none
    labels = torch.tensor([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]], dtype=torch.bool)
    logits = torch.tensor([[0.5, 0.1], [0.2, 0.4], [-0.3, 0.6]], dtype=torch.float64)
    options = {"alpha": 5.0, "continuous": True, "class_num": 1.0, "last_beta": 7.1414}
    codes = [[math.tanh(float(z)) for z in row] for row in logits]
    total = 0.0
    for i, j in ((0, 1), (0, 2), (1, 2)):
        scaled = 5.0 * dot(codes[i], codes[j])
        total += 2 * (math.log1p(math.exp(scaled)) - (scaled if (i, j) == (0, 1) else 0))
    assert float(HashNet(**options)(logits, labels)) == pytest.approx(total / 6)
    same = torch.tensor([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 0, 1]], dtype=torch.bool)
    scaled = 5.0 * dot(codes[0], codes[1])
    total += 3 * 2 * (math.log1p(math.exp(scaled)) - scaled)  # now the factor is 4
    assert float(HashNet(**options)(logits, same)) == pytest.approx(total / 6)


def test_two_weights_of_the_same_pairs_are_refused() -> None:
    with pytest.raises(ConfigError):
        HashNet(jaccard=True, continuous=True)
    assert HashNetOptions().for_bits(16).continuous is True
    assert HashNetOptions(jaccard=True).for_bits(16).continuous is False


def test_continuation_grows_from_one_to_the_last_beta_in_stages() -> None:
    found = [continuation(step / 100, stages=4, last=7.0) for step in range(100)]
    assert found == sorted(found)
    assert sorted(set(found)) == pytest.approx([1.0, math.sqrt(17), math.sqrt(33), 7.0])
    assert [found.count(value) for value in sorted(set(found))] == [25, 25, 25, 25]
    assert continuation(0.0, stages=1, last=3.0) == 3.0


def test_cosine_distance_of_codes_is_their_hamming_distance() -> None:
    codes = torch.tensor([[1.0, 1, 1, 1], [1, -1, 1, 1], [-1, -1, -1, -1]])
    np.testing.assert_allclose(cosine_distance(codes, codes), [[0, 1, 4], [1, 0, 3], [4, 3, 0]], atol=1e-6)


def test_squared_distance_by_hand() -> None:
    left, right = torch.tensor([[1.0, -1.0], [0.5, 0.0]]), torch.tensor([[1.0, 1.0]])
    assert squared_distance(left, right).tolist() == [[4.0], [1.25]]


def test_upweighted_mean_by_hand() -> None:
    # of six pairs two are similar: weights 3, 3 and four times 1
    similar = torch.tensor([[0, 1, 0], [1, 0, 0], [0, 0, 0]], dtype=torch.bool)
    values = torch.tensor([[9.0, 1.0, 2.0], [3.0, 9.0, 4.0], [5.0, 6.0, 9.0]])
    pairs = pairs_of_two(3, values.device)
    expected = (3 * (1 + 3) + 2 + 4 + 5 + 6) / 6
    assert float(upweighted_mean(values, similar, pairs)) == pytest.approx(expected)
    assert float(upweighted_mean(values, similar, pairs & False)) == 0


def test_dch_as_released_by_hand() -> None:
    labels = torch.tensor([[1, 0], [1, 0], [0, 1]], dtype=torch.bool)
    logits = torch.tensor([[0.5, 0.1], [0.2, 0.4], [-0.3, 0.6]], dtype=torch.float64)
    codes = [[math.tanh(float(z)) for z in row] for row in logits]
    total = 0.0
    for i, j in ((0, 1), (0, 2), (1, 2)):
        distance = sum((a - b) ** 2 for a, b in zip(codes[i], codes[j], strict=True)) + 0.01
        chance = 20 / (20 + distance)
        total += 2 * (-3 * math.log(chance) if (i, j) == (0, 1) else -math.log(1 - chance))
    released = DCH(distance="squared", weights="similar", gamma=20, quantisation=0)
    assert float(released(logits, labels)) == pytest.approx(total / 6)


def test_cauchy_loss_by_hand() -> None:
    # gamma 3 and d = 1 bit: p = 3 / 4
    similar = torch.tensor([True, False])
    found = cauchy_loss(torch.full((2,), 0.99), similar, gamma=3.0)
    np.testing.assert_allclose(found, [-math.log(0.75), -math.log(0.25)], rtol=1e-5)
    assert torch.isfinite(cauchy_loss(torch.zeros(2), similar, gamma=3.0)).all()


def test_quantisation_losses_vanish_at_bits() -> None:
    bits, soft = torch.tensor([[1.0, -1.0]]), torch.tensor([[0.5, -1.0]])
    assert float(bimodal_loss(bits)) == pytest.approx(0, abs=1e-7)
    assert float(bimodal_loss(soft)) == pytest.approx(math.log(math.cosh(0.5)) / 2, rel=1e-5)
    assert float(cauchy_quantisation(bits, 2.0)) == pytest.approx(0, abs=1e-6)
    distance = 1 - 1.5 / math.sqrt(2 * 1.25)
    assert float(cauchy_quantisation(soft, 2.0)) == pytest.approx(math.log1p(distance / 2), rel=1e-5)


@pytest.mark.parametrize(
    ("loss", "activation", "gap"),
    [
        (DPSH(quantisation=0.3), lambda z: z, lambda z: (z - math.copysign(1, z)) ** 2),
        (DHN(slope=0.5, quantisation=0.3), math.tanh, lambda u: math.log(math.cosh(abs(u) - 1))),
    ],
)
def test_dpsh_and_dhn_by_a_loop(
    loss: Objective, activation: Callable[[float], float], gap: Callable[[float], float]
) -> None:
    logits, labels = sample()
    codes, similar = loops(logits, labels, activation)
    losses = []
    for i in range(len(codes)):
        for j in range(len(codes)):
            if i != j:
                probability = 1 / (1 + math.exp(-0.5 * dot(codes[i], codes[j])))
                losses.append(-math.log(probability if similar[i, j] else 1 - probability))
    quantisation = [gap(u) for row in codes for u in row]
    expected = sum(losses) / len(losses) + 0.3 * sum(quantisation) / len(quantisation)
    assert float(loss(logits, labels)) == pytest.approx(expected)


def test_sign_gap_by_hand() -> None:
    assert sign_gap(torch.tensor([[3.0, -1.0], [0.0, 0.5]])).tolist() == [2.0, 0.625]


def test_label_cosine_by_hand() -> None:
    labels = torch.tensor([[1, 1, 0, 0], [0, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]], dtype=torch.bool)
    found = label_cosine(labels)
    np.testing.assert_allclose(found[0], [1, 1 / math.sqrt(6), 1, 0], rtol=1e-6)
    np.testing.assert_allclose(found[3], [0, 0, 0, 0])


def test_a_soft_pair_is_free_where_the_share_of_equal_bits_is_its_similarity() -> None:
    products = torch.tensor([4.0, 2.0, -4.0])  # of 4 bits: all, three and none are equal
    assert soft_pair_loss(products, torch.tensor([1.0, 0.75, 0.0]), bits=4).tolist() == [0, 0, 0]
    assert float(soft_pair_loss(products[:1], torch.tensor([0.5]), bits=4)) == 1  # 4 * (1/2)^2


def test_idhn_by_a_loop() -> None:
    logits, labels = sample()
    labels[1] = labels[0]  # a pair with all labels in common
    codes, _ = loops(logits, labels, lambda z: z / (1 + abs(z)))
    kinds, losses = set(), []
    for i in range(len(codes)):
        for j in range(len(codes)):
            if i == j:
                continue
            first, second = (set(labels[k].nonzero().flatten().tolist()) for k in (i, j))
            agreement = len(first & second) / math.sqrt(max(1, len(first) * len(second)))
            product = dot(codes[i], codes[j])
            kinds.add("hard" if first == second else "soft" if agreement else "none")
            if first == second or not agreement:
                scaled = 5 / BITS * product
                losses.append(math.log1p(math.exp(scaled)) - agreement * scaled)
            else:
                losses.append(0.1 * BITS * ((product + BITS) / 2 / BITS - agreement) ** 2)
    assert kinds == {"hard", "soft", "none"}
    quantisation = [1 - abs(u) for row in codes for u in row]
    expected = sum(losses) / len(losses) + 0.1 * sum(quantisation) / len(quantisation)
    assert float(IDHN(alpha=5.0, gamma=0.1)(logits, labels)) == pytest.approx(expected)


@pytest.mark.parametrize("weighted", [False, True])
def test_hashnet_by_a_loop(weighted: bool) -> None:
    logits, labels = sample()
    options = HashNetOptions(alpha=0.7, stages=5, last_beta=4.0, jaccard=weighted, continuous=False)
    beta = math.sqrt(1 + 15 * 2 / 4)  # the third of five stages
    codes, similar = loops(logits, labels, lambda z: math.tanh(beta * z))
    ones = int(similar.sum() - similar.diagonal().sum())
    count = len(codes) * (len(codes) - 1)
    total = 0.0
    for i in range(len(codes)):
        for j in range(len(codes)):
            if i == j:
                continue
            scaled = 0.7 * dot(codes[i], codes[j])
            loss = math.log1p(math.exp(scaled)) - float(similar[i, j]) * scaled
            weight = count / ones if similar[i, j] else count / (count - ones)
            if weighted and similar[i, j]:
                first, second = (set(labels[k].nonzero().flatten().tolist()) for k in (i, j))
                weight *= len(first & second) / len(first | second)
            total += weight * loss / count
    found = HashNet(options=options)(logits, labels, progress=0.5)
    assert float(found) == pytest.approx(total)


def test_dch_by_a_loop() -> None:
    logits, labels = sample()
    gamma = 1.5
    codes, similar = loops(logits, labels, math.tanh)
    by_kind: dict[bool, list[float]] = {True: [], False: []}
    for i in range(len(codes)):
        for j in range(len(codes)):
            if i != j:
                distance = BITS / 2 * (1 - cosine(codes[i], codes[j])) + 0.01
                chance = gamma / (gamma + distance)
                kind = bool(similar[i, j])
                by_kind[kind].append(-math.log(chance if kind else 1 - chance))
    ones = [1.0] * BITS
    quantisation = [math.log1p(BITS / 2 * (1 - cosine([abs(u) for u in row], ones)) / gamma) for row in codes]
    expected = sum(sum(values) / len(values) for values in by_kind.values())
    expected += 0.2 * sum(quantisation) / len(quantisation)
    found = DCH(gamma=gamma, quantisation=0.2)(logits, labels)
    assert float(found) == pytest.approx(expected)


def test_hyp2_by_a_loop() -> None:
    logits, labels = sample(rows=9, seed=1)
    objective = HyP2(CLASSES, BITS, threshold=0.1, pair=0.6, seed=4).double()
    codes, similar = loops(logits, labels, math.tanh)
    proxies = [[float(p) for p in row] for row in objective.proxies.detach()]
    near: list[float] = []
    far: list[float] = []
    apart: list[float] = []
    for i, code in enumerate(codes):
        for c, proxy in enumerate(proxies):
            value = cosine(code, proxy)
            (near if labels[i, c] else far).append(1 - value if labels[i, c] else max(0.0, value - 0.1))
        for j, other in enumerate(codes):
            if i != j and labels[i].sum() > 1 and labels[j].sum() > 1 and not similar[i, j]:
                apart.append(max(0.0, cosine(code, other) - 0.1))
    assert apart, "the sample must have irrelevant pairs"
    expected = sum(near) / len(near) + sum(far) / len(far) + 0.6 * sum(apart) / len(apart)
    assert float(objective(logits, labels).detach()) == pytest.approx(expected)


def test_options_that_follow_the_bits() -> None:
    assert HashNetOptions().for_bits(20).alpha == 0.5
    assert HashNetOptions(alpha=0.1).for_bits(20).alpha == 0.1
    assert DCHOptions(gamma=3).for_bits(64).gamma == 3
    assert (DCHOptions().for_bits(64).gamma or 0) == pytest.approx(4 * (DCHOptions().for_bits(16).gamma or 0))


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


def test_a_whole_batch_needs_no_cube_of_memory() -> None:
    """256 images have up to 16 million triplets; all of them are counted within the time of a step."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(256, 64, generator=generator, requires_grad=True)
    labels = torch.rand(256, 80, generator=generator) < 0.04
    DNNH()(logits, labels).backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
