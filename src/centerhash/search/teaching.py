"""Taught labels: linear classifiers over the bits of stored codes, learned from a few examples.

Nothing is encoded again. An item is its bits x, -1 and +1: the semantic code, then the visual code (0 if it has none).
The probability of a taught label is sigmoid(w . x + b). Examples are compared with random items of the index, the others:

1. `minimize`: logistic regression of examples against others. Its penalty is the covariance of the others, because bits
   that vary together in the whole collection carry little information about one label.
2. `calibrated`: w and b are scaled so that the result is a probability. The scores of others and of left-out examples
   are modeled as normal distributions of equal variance, so that the logarithm of their ratio is linear in the score.
   The share of the items that have the label is estimated from the scores of the others (Saerens et al. 2002).

The examples themselves have probability 1 or 0, as they were taught.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Packed, check_packed, packed_width, unpack
from centerhash.core.errors import InputError
from centerhash.core.files import parse_json, verify_checksum, with_checksum
from centerhash.search.items import VISUAL_BITS, check_ids

Floats: TypeAlias = NDArray[np.float64]
Parameters: TypeAlias = NDArray[np.float32]  # (K + V + 1,): w, then b

PRESENT = 0.5  # probability from which an item carries a taught label
OTHERS = 4000  # random items that examples are compared with
COMPARED = 500  # of them in the regression, where more take longer and change nothing
MAX_EXAMPLES = 10_000
MAX_TAUGHT = 1000  # labels of an index
MAX_NAME_BYTES = 256
STRENGTH, RIDGE = 100.0, 3.0  # of the penalty, chosen on other classes than benchmarks/teach.py measures
DISTANCE = 2.0  # of a label's examples from the others, in standard deviations, before any was left out
LEAST, MOST = 1 / OTHERS, 0.5  # limits of the estimated share of items with a label
STEPS, TOLERANCE = 30, 1e-7  # of Newton's method
_BLOCK = 1 << 16  # rows scored at a time
_FORMAT = 1


# --- labels and their examples


@dataclass(frozen=True)
class Example:
    """An item that shows a label, or does not, with its packed codes: it may be removed from the index later."""

    id: str
    like: bool
    semantic: bytes
    visual: bytes | None

    def to_json(self) -> dict[str, Any]:
        """Return it as a json object, codes in hexadecimal."""
        visual = None if self.visual is None else self.visual.hex()
        return {"id": self.id, "like": self.like, "semantic": self.semantic.hex(), "visual": visual}

    @classmethod
    def from_json(cls, value: Any, bits: int) -> Self:
        """Read what `to_json` returned, or raise ValueError."""
        if not isinstance(value, dict) or set(value) != {"id", "like", "semantic", "visual"}:
            raise ValueError("an example has other fields than id, like, semantic and visual")
        (id,) = check_ids([value["id"]])
        if type(value["like"]) is not bool:
            raise ValueError(f"the example {id!r:.80} is neither like nor unlike")
        semantic = bytes.fromhex(value["semantic"])
        check_packed(np.frombuffer(semantic, np.uint8)[None], bits)
        visual = None if value["visual"] is None else bytes.fromhex(value["visual"])
        if visual is not None:
            check_packed(np.frombuffer(visual, np.uint8)[None], VISUAL_BITS)
        return cls(id, value["like"], semantic, visual)


@dataclass(frozen=True, eq=False)
class Taught:
    """A taught label: parameters w and b, and the examples that it was learned from."""

    parameters: Parameters
    examples: tuple[Example, ...]

    def example_ids(self, *, like: bool) -> tuple[str, ...]:
        """Return the ids of the examples of one kind."""
        return tuple(one.id for one in self.examples if one.like == like)

    @property
    def center(self) -> NDArray[np.int8]:
        """Return the semantic code (K,) that fits the label best: the signs of its weights."""
        return np.where(self.parameters[: -VISUAL_BITS - 1] >= 0, np.int8(1), np.int8(-1))

    def probabilities(self, codes: PackedCodes) -> NDArray[np.float32]:
        """Return the probability (n,) of the label for items by their codes alone."""
        found: NDArray[np.float32] = sigmoid(scores(self.parameters, codes)).astype(np.float32)
        return found

    def row(self, name: str) -> tuple[str, bytes, str]:
        """Return the values of a database row."""
        examples = json.dumps([one.to_json() for one in self.examples])
        return name, self.parameters.astype("<f4").tobytes(), examples

    @classmethod
    def from_row(cls, values: Sequence[Any], bits: int) -> Self:
        """Read the values of a database row, or raise ValueError."""
        name, parameters, examples = values
        check_name(name)
        return cls._checked(np.frombuffer(parameters, "<f4"), parse_json(examples), bits)

    @classmethod
    def _checked(cls, parameters: NDArray[Any], examples: Any, bits: int) -> Self:
        if parameters.shape != (bits + VISUAL_BITS + 1,) or not np.isfinite(parameters).all():
            raise ValueError(f"a taught label needs {bits + VISUAL_BITS + 1} finite weights")
        if not isinstance(examples, list) or not 0 < len(examples) <= MAX_EXAMPLES:
            raise ValueError(f"a taught label needs 1 to {MAX_EXAMPLES:,} examples")
        found = tuple(Example.from_json(one, bits) for one in examples)
        if len({one.id for one in found}) != len(found):
            raise ValueError("an example of a taught label comes twice")
        return cls(parameters.astype(np.float32), found)


def check_name(name: object) -> str:
    """Return the name of a taught label, or raise InputError for what cannot be one."""
    try:
        if not isinstance(name, str) or not 0 < len(name.encode()) <= MAX_NAME_BYTES:
            raise ValueError
        if name != name.strip() or not name.isprintable():
            raise ValueError
    except ValueError:  # also what is no valid Unicode
        raise InputError(
            f"the name of a label is 1 to {MAX_NAME_BYTES} bytes of printable text without spaces at its ends, got "
            f"{name!r:.80}."
        ) from None
    return name


def with_examples(known: Sequence[Example], new: Sequence[Example]) -> tuple[Example, ...]:
    """Return known and new examples; a new one replaces a known one of the same id."""
    found = {one.id: one for one in (*known, *new)}
    if len(found) > MAX_EXAMPLES:
        raise InputError(f"a label is taught by at most {MAX_EXAMPLES:,} examples, got {len(found):,}.")
    if not any(one.like for one in found.values()):
        raise InputError("a label needs at least one example that shows it: name some in `like=`.")
    return tuple(found.values())


# --- files of taught labels


def to_file(labels: Mapping[str, Taught], digest: str, bits: int) -> dict[str, Any]:
    """Return labels as one json object with a checksum; `digest` is that of the model."""
    rows = [
        {
            "name": name,
            "parameters": [float(value) for value in one.parameters],
            "examples": [example.to_json() for example in one.examples],
        }
        for name, one in labels.items()
    ]
    return with_checksum({"format": _FORMAT, "model": digest, "bits": bits, "labels": rows})


def from_file(text: str, digest: str, bits: int) -> dict[str, Taught]:
    """Read what `to_file` returned; ValueError if it is damaged, or made with another model."""
    value = verify_checksum(parse_json(text), "the file of taught labels")
    if value.get("format") != _FORMAT:
        raise ValueError(f"its format is {value.get('format')!r:.20}, this version reads {_FORMAT}")
    if (value.get("model"), value.get("bits")) != (digest, bits):
        raise ValueError("its labels were taught with another model, whose codes have other bits")
    rows = value.get("labels")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("its labels are no list of objects")
    found = {}
    for row in rows:
        parameters = np.array(row.get("parameters"), np.float64)
        found[check_name(row.get("name"))] = Taught._checked(parameters, row.get("examples"), bits)
    return found


# --- codes as inputs


@dataclass(frozen=True, eq=False)
class PackedCodes:
    """Packed codes of n items."""

    semantic: Packed  # (n, ceil(K/8))
    visual: Packed  # (n, 16), or (0, 16) if no item has a visual code
    has_visual: NDArray[np.uint8]  # (n,)

    def __len__(self) -> int:
        return len(self.semantic)

    @classmethod
    def of_examples(cls, examples: Sequence[Example]) -> Self:
        """Return the codes of examples, at least one."""
        return cls.of_codes(
            [np.frombuffer(one.semantic, np.uint8) for one in examples],
            [None if one.visual is None else np.frombuffer(one.visual, np.uint8) for one in examples],
        )

    @classmethod
    def of_codes(cls, semantic: Sequence[Packed], visual: Sequence[Packed | None]) -> Self:
        """Return the codes of items, at least one."""
        blank = np.zeros(VISUAL_BITS // 8, np.uint8)
        shown = np.array([code is not None for code in visual], np.uint8)
        return cls(np.stack(semantic), np.stack([blank if code is None else code for code in visual]), shown)

    def inputs(self, bits: int) -> Floats:
        """Return (n, K + V + 1): bits of -1 and +1, 0 for a missing visual code, then a 1 for b."""
        found = np.ones((len(self), bits + VISUAL_BITS + 1))
        found[:, :bits] = unpack(self.semantic, bits)
        found[:, bits:-1] = unpack(self.visual, VISUAL_BITS) if len(self.visual) else 0
        found[self.has_visual == 0, bits:-1] = 0
        return found


def byte_tables(weights: NDArray[Any]) -> NDArray[np.float32]:
    """Return tables (ceil(K/8), 256): the weighted sum of 8 bits of -1 and +1, by the byte that holds them."""
    padded = np.zeros(8 * packed_width(len(weights)))
    padded[: len(weights)] = weights
    every = unpack(np.arange(256, dtype=np.uint8)[:, None], 8).astype(np.float64)  # (256, 8)
    return (padded.reshape(-1, 8) @ every.T).astype(np.float32)


def scores(parameters: Parameters, codes: PackedCodes) -> NDArray[np.float32]:
    """Return w . x + b (n,) of packed codes, byte by byte; a score does not depend on the other items."""
    bits = len(parameters) - VISUAL_BITS - 1
    semantic, visual = byte_tables(parameters[:bits]), byte_tables(parameters[bits:-1])
    found = np.empty(len(codes), np.float32)
    for start in range(0, len(codes), _BLOCK):
        own = slice(start, start + _BLOCK)
        total = _looked_up(semantic, codes.semantic[own])
        if len(codes.visual):
            total += np.where(codes.has_visual[own] > 0, _looked_up(visual, codes.visual[own]), np.float32(0))
        found[own] = total + parameters[-1]
    return found


def _looked_up(tables: NDArray[np.float32], packed: Packed) -> NDArray[np.float32]:
    """Return the sums (n,) of the table entries (W, 256) of packed codes (n, W)."""
    total = np.zeros(len(packed), np.float32)
    for table, column in zip(tables, packed.T, strict=True):
        total += table[column]
    return total


# --- regularized logistic regression


def sigmoid(values: NDArray[Any]) -> NDArray[Any]:
    """Return 1 / (1 + exp(-z)), without overflow."""
    found: NDArray[Any] = np.exp(-np.logaddexp(0, -values))
    return found


def loss(parameters: Floats, inputs: Floats, targets: Floats, weights: Floats, penalty: Floats) -> float:
    """Return sum_i c_i log(1 + exp(-t_i z_i)) + 1/2 v^T penalty v with z = inputs @ v and v the parameters (d,).

    Targets t (n,) are -1 and +1, weights c (n,) are positive, the penalty (d, d) is positive definite.
    """
    errors = weights @ np.logaddexp(0, -targets * (inputs @ parameters))
    return float(errors + parameters @ penalty @ parameters / 2)


def gradient(parameters: Floats, inputs: Floats, targets: Floats, weights: Floats, penalty: Floats) -> Floats:
    """Return the gradient (d,) of `loss`: penalty v - sum_i c_i t_i sigmoid(-t_i z_i) x_i."""
    pull = weights * targets * sigmoid(-targets * (inputs @ parameters))
    found: Floats = penalty @ parameters - pull @ inputs
    return found


def hessian(parameters: Floats, inputs: Floats, weights: Floats, penalty: Floats) -> Floats:
    """Return the second derivatives (d, d) of `loss`: penalty + sum_i c_i p_i (1 - p_i) x_i x_i^T."""
    likely = sigmoid(inputs @ parameters)
    curvature = weights * likely * (1 - likely)
    found: Floats = penalty + (inputs * curvature[:, None]).T @ inputs
    return found


def minimize(inputs: Floats, targets: Floats, weights: Floats, penalty: Floats) -> Floats:
    """Return the parameters (d,) with the smallest `loss`, by Newton's method with halved steps."""
    parameters = np.zeros(inputs.shape[1])
    value = loss(parameters, inputs, targets, weights, penalty)
    for _ in range(STEPS):
        slope = gradient(parameters, inputs, targets, weights, penalty)
        step = np.linalg.solve(hessian(parameters, inputs, weights, penalty), slope)
        decrease, size = float(slope @ step), 1.0
        if decrease <= TOLERANCE * value:
            break
        while True:  # a full step may overshoot; a short enough one never does, because the loss is convex
            moved = parameters - size * step
            reached = loss(moved, inputs, targets, weights, penalty)
            if reached <= value - size * decrease / 4:
                break
            size /= 2
        parameters, value = moved, reached
    return parameters


# --- learning a label


def covariance_penalty(others: Floats) -> Floats:
    """Return STRENGTH (C + RIDGE I) with C the covariance of the bits (n, d - 1) of `others` (n, d); b is free.

    The last input is the 1 of b. A tiny penalty of b keeps the matrix positive definite.
    """
    bits = others[:, :-1] - others[:, :-1].mean(axis=0)
    penalty = np.full((others.shape[1],) * 2, 0.0)
    penalty[:-1, :-1] = STRENGTH * (bits.T @ bits / len(bits) + RIDGE * np.eye(bits.shape[1]))
    penalty[-1, -1] = 1e-6
    return penalty


def left_out_scores(
    parameters: Floats,
    inputs: Floats,
    targets: Floats,
    weights: Floats,
    penalty: Floats,
    chosen: int,
    center: Floats,
) -> Floats:
    """Return by how much each of the first `chosen` inputs scores more than `center` (d,), as if it were left out.

    One Newton step from the minimum leads to that without row i (Rad and Maleki 2020), v_i = v - c_i t_i
    sigmoid(-t_i z_i) H^-1 x_i / (1 - c_i p_i (1 - p_i) x_i^T H^-1 x_i), so that no other regression is needed. Without
    the difference to a center, the score would follow b, which depends on the number of examples.
    """
    own, c, t = inputs[:chosen], weights[:chosen], targets[:chosen]
    solved = np.linalg.solve(hessian(parameters, inputs, weights, penalty), own.T).T
    score = own @ parameters
    likely, leverage = sigmoid(score), (own * solved).sum(axis=1)
    step = c * t * sigmoid(-t * score) / (1 - c * likely * (1 - likely) * leverage)
    found: Floats = (own - center) @ parameters - step * ((own - center) * solved).sum(axis=1)
    return found


def center_and_spread(values: Floats, parameters: Floats) -> tuple[float, float]:
    """Return mean and standard deviation of the scores (n,) of others.

    The variance is shrunk by one item towards that of independent bits, |w|^2: few others may have equal scores.
    """
    independent = float(parameters[:-1] @ parameters[:-1])
    variance = (len(values) * float(values.var()) + independent) / (len(values) + 1)
    return float(values.mean()), max(variance, 1e-12) ** 0.5


def shrunk_distance(left_out: Floats) -> float:
    """Return the mean of standardized scores (n,) of left-out examples, shrunk by one example towards DISTANCE.

    A single example cannot be left out, and no label is so unclear that its opposite is more likely.
    """
    held = left_out if len(left_out) > 1 else left_out[:0]
    return max((float(held.sum()) + DISTANCE) / (len(held) + 1), DISTANCE / 4)


def estimated_share(ratios: Floats, least: float = LEAST) -> float:
    """Return the share of items with a label, by likelihood ratios (n,) of random items; expectation maximization.

    share <- mean of share r / (share r + 1 - share), as Saerens et al. (2002) adjust a classifier to a new prior.
    """
    share = 0.05
    for _ in range(100):
        share = float(np.mean(share * ratios / (share * ratios + 1 - share)))
        share = min(max(share, least), MOST)
    return share


def calibrated(parameters: Floats, others: Floats, distance: float, least: float = LEAST) -> Floats:
    """Scale parameters (d,) so that their score is the logit of a probability, given the scores (n,) of others.

    With standardized scores u of the others as N(0, 1), of the label as N(distance, 1), the ratio of their densities is
    exp(distance u - distance^2 / 2); the logit adds that of the estimated share of items with the label.
    """
    center, spread = center_and_spread(others, parameters)
    ratios = distance * (others - center) / spread - distance**2 / 2
    share = estimated_share(np.exp(np.minimum(ratios, 50)), least)
    found = parameters * distance / spread
    found[-1] += np.log(share / (1 - share)) - distance * center / spread - distance**2 / 2
    return found


def learn(examples: Sequence[Example], others: PackedCodes, bits: int, total: int) -> Taught:
    """Learn a label from examples and random other items of an index with `total` items."""
    if not len(others):
        raise InputError(
            "the index holds only the examples: add other images that they can be compared with."
        )
    likes = sorted(examples, key=lambda one: not one.like)
    rest, count = others.inputs(bits), sum(one.like for one in examples)
    penalty = covariance_penalty(rest)
    inputs = np.concatenate([PackedCodes.of_examples(likes).inputs(bits), rest[:COMPARED]])
    compared = len(inputs) - len(likes)
    targets = np.repeat([1.0, -1.0], [count, len(inputs) - count])
    weights = np.repeat(
        [1.0, count / compared], [len(likes), compared]
    )  # all others weigh as much as all likes
    regression = (inputs, targets, weights, penalty)
    parameters = minimize(*regression)
    left_out = left_out_scores(parameters, *regression, count, rest.mean(axis=0))
    _, spread = center_and_spread(rest @ parameters, parameters)
    least = min(max(LEAST, count / max(total, 1)), MOST)  # the examples have it, at least
    found = calibrated(parameters, rest @ parameters, shrunk_distance(left_out / spread), least)
    return Taught(found.astype(np.float32), tuple(examples))
