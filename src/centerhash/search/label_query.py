"""Search by labels: a query code made from the hash centers of labels, without any image."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Codes, check_codes
from centerhash.core.errors import ConfigError, InputError, unknown_name

if TYPE_CHECKING:
    from centerhash.model import Explained, HashModel

LabelQuestion: TypeAlias = (
    Mapping[str, float] | Sequence[str] | str
)  # {"dog": 0.7}, ["dog"] or "dog:0.7, bicycle"

_TIE = 1e-9  # a sum this near to 0 is 0: 0.1 + 0.2 - 0.3 must be


def read_labels(question: LabelQuestion, classes: Sequence[str]) -> dict[str, float]:
    """Read a mapping, a list of names, or a text such as "dog:0.7, bicycle:0.3" into weights that sum to 1.

    A label without a number weighs 1 before all are divided by their sum. In a text, a label that itself holds a
    colon is found as it stands.
    """
    if isinstance(question, Mapping):
        return _normalised(question, classes)
    if isinstance(question, str):
        parts = (part.strip() for part in question.split(","))
        pairs = [_parse_part(part, classes) for part in parts if part]
    elif isinstance(question, Sequence) and all(isinstance(name, str) for name in question):
        pairs = [(name, 1.0) for name in question]
    else:
        raise InputError(f"labels are names with weights, names, or one text, got {question!r:.80}.")
    weights: dict[str, float] = {}
    for label, weight in pairs:
        if label in weights:
            raise ConfigError(f"the label '{label}' is named twice: name it once, with its weight.")
        weights[label] = weight
    return _normalised(weights, classes)


def _parse_part(part: str, classes: Sequence[str]) -> tuple[str, float]:
    name, colon, number = (piece.strip() for piece in part.rpartition(":"))
    if part in classes or not colon:
        return part, 1.0
    try:
        return name, float(number)
    except ValueError:
        if name not in classes:
            raise unknown_name("label", part, classes) from None
        raise ConfigError(
            f"the weight of '{name}' must be a positive number such as 0.7, got '{number}'."
        ) from None


def _normalised(weights: Mapping[str, float], classes: Sequence[str]) -> dict[str, float]:
    """Divide weights by their sum; refuse labels that are no class, and weights that are not above 0."""
    if not weights:
        raise ConfigError('no label was named: write for example "dog, bicycle" or "dog:0.7, bicycle:0.3".')
    for label, weight in weights.items():
        if label not in classes:
            raise unknown_name("label", str(label), classes)
        if not isinstance(weight, Real) or not 0 < weight < math.inf:
            raise ConfigError(f"the weight of '{label}' must be a positive number, got {weight!r}.")
    largest = max(weights.values())  # first, so that no sum overflows
    total = math.fsum(weight / largest for weight in weights.values())
    return {label: weight / largest / total for label, weight in weights.items()}


def label_code(centers: NDArray[Any], weights: NDArray[Any]) -> Codes:
    """The code (K,) that lies between centers (C, K) as their weights (C,) say: least sum_j w_j d_j^2.

    d_j is the Hamming distance to center j; of two centers D apart, weighted 0.7 and 0.3, the code is 0.3 D from the
    first. Without the square this would be the code nearest to the weighted centroid, the sign of the weighted sum,
    which is the first center itself whatever the second one weighs. That sign (a sum of 0 is +1, as in
    `codes.binarise`) is the start; then single bits are flipped, the best one first and the first of equally good
    ones, until no flip lowers the sum.
    """
    centers = check_codes(centers, "centers")
    weights = np.asarray(weights, dtype=np.float64)
    if weights.shape != (len(centers),):
        raise InputError(f"weights must be of shape ({len(centers)},), one per center, got {weights.shape}.")
    if not np.isfinite(weights).all() or (weights < 0).any() or not (weights > 0).any():
        raise InputError("weights must be finite, not negative and not all 0.")
    used, shares = centers[weights > 0], weights[weights > 0] / weights.max()
    shares = shares / shares.sum()
    code = np.where(shares @ used >= -_TIE, np.int8(1), np.int8(-1))
    distances = (used != code).sum(axis=1)
    while True:
        # (c, K): a flip takes the code away from the centers that agree, +1, to the others
        changes = used * code
        # sum_j w_j ((d_j + change)^2 - d_j^2) with change^2 = 1
        gains = (shares[:, None] * (2 * distances[:, None] * changes + 1)).sum(axis=0)
        best = int(np.round(gains, 9).argmin())
        if gains[best] >= -_TIE:
            return code
        code[best] = -code[best]
        distances = distances + changes[:, best]


def query_of_labels(model: HashModel, question: LabelQuestion) -> tuple[Codes, list[Explained]]:
    """The code (K,) that a question by labels means, and how near it is to their centers, the heaviest first."""
    centers = model.centers.numpy()  # a clear error for methods without centers
    shares = read_labels(question, model.classes)
    code = label_code(centers, np.array([shares.get(name, 0.0) for name in model.classes]))
    return code, explain_code(model, code, shares)


def explain_code(model: HashModel, code: Codes, weights: Mapping[str, float]) -> list[Explained]:
    """Say how near a code (K,) is to the centers of these labels, the heaviest first, then by name."""
    from centerhash.model import Explained

    centers = model.centers.numpy()
    rows = []
    for label, weight in sorted(weights.items(), key=lambda pair: (-pair[1], pair[0])):
        product = int(centers[model.classes.index(label)] @ code)
        rows.append(Explained(label, float(weight), product / model.bits, (model.bits - product) // 2))
    return rows


def labels_of_code(model: HashModel, code: Codes, labels: Sequence[str]) -> list[Explained]:
    """Explain a stored code (K,) by the labels it carries, or by its nearest centers where they are no classes.

    The weights are those that the method gives an image whose logits are its code.
    """
    import torch

    logits = torch.from_numpy(code.astype(np.float32))[None]
    similarities = model.directions.numpy() @ code / model.bits
    mask = np.array([name in set(labels) for name in model.classes])
    if not mask.any():
        mask = similarities >= (model.spec.label_threshold or 0.0)
        mask[similarities.argmax()] = True
    weights = model.objective.weights(logits, torch.from_numpy(mask)[None])[0].numpy()
    chosen = {model.classes[row]: float(weights[row]) for row in np.flatnonzero(mask).tolist()}
    return explain_code(model, code, chosen)
