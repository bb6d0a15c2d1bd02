"""Search by labels: what a question names, and a code made from the hash centers of labels, without any image."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Codes, check_codes
from centerhash.core.errors import ConfigError, InputError
from centerhash.model.explanation import Explained
from centerhash.search.engines.base import Seen
from centerhash.search.engines.rankings import SHARPNESS
from centerhash.search.facts import ModelFacts
from centerhash.search.names import label_named, match

# {"dog": 0.7}, ["dog"] or "dog:0.7, bicycle"
LabelQuestion: TypeAlias = Mapping[str, float] | Sequence[str] | str

_QUOTED = re.compile(r'\s*"((?:[^"]|"")*)"\s*(?::([^,]*))?(?:,|$)')
_UNQUOTED = re.compile(r"([^,]*)(?:,|$)")
_TIE = 1e-9  # a sum this near to 0 is 0: 0.1 + 0.2 - 0.3 must be


def read_labels(question: LabelQuestion, classes: Sequence[str]) -> dict[str, float]:
    """Read a mapping, a list of names, or a text such as "dog:0.7, bicycle:0.3" into weights that sum to 1.

    A label without a number weighs 1 before all are divided by their sum. In a text, a label that itself holds a
    colon is found as it stands, and one that holds a comma is put in double quotes. Names may be written as people do:
    see `names.match`.
    """
    if isinstance(question, Mapping):
        pairs = list(question.items())
    elif isinstance(question, str):
        pairs = list(_parse(question, classes))
    elif isinstance(question, Sequence) and all(isinstance(name, str) for name in question):
        pairs = [(name, 1.0) for name in question]
    else:
        raise InputError(f"labels are names with weights, names, or one text, got {question!r:.80}.")
    weights: dict[str, float] = {}
    for name, weight in pairs:
        label = label_named(str(name), classes)
        if label in weights:
            raise ConfigError(f"the label '{label}' is named twice: name it once, with its weight.")
        weights[label] = weight
    return _normalised(weights)


def _parse(text: str, classes: Sequence[str]) -> Iterator[tuple[str, float]]:
    """The names and weights of a text; in double quotes a name may hold commas."""
    place = 0
    while place < len(text):
        found = _QUOTED.match(text, place) or _UNQUOTED.match(text, place)
        assert found is not None  # an unquoted part may be empty
        place = found.end()
        if found.re is _QUOTED:
            name, number = found[1].replace('""', '"'), found[2]
            yield (name, 1.0) if number is None else (name, _weight(name, number.strip()))
        elif found[1].strip():
            yield _parse_part(found[1].strip(), classes)


def _parse_part(part: str, classes: Sequence[str]) -> tuple[str, float]:
    name, colon, number = (piece.strip() for piece in part.rpartition(":"))
    if not colon or match(part, classes) is not None:
        return part, 1.0
    try:
        return name, _weight(name, number)
    except ConfigError:
        if match(name, classes) is None:
            return part, 1.0  # no label: the error names all of it
        raise


def _weight(name: str, number: str) -> float:
    try:
        return float(number)
    except ValueError:
        raise ConfigError(
            f"the weight of '{name}' must be a positive number such as 0.7, got '{number}'."
        ) from None


def _normalised(weights: Mapping[str, float]) -> dict[str, float]:
    """Divide weights by their sum; refuse weights that are not above 0."""
    if not weights:
        raise ConfigError('no label was named: write for example "dog, bicycle" or "dog:0.7, bicycle:0.3".')
    for label, weight in weights.items():
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
    `codes.binarize`) is the start; then single bits are flipped, the best one first and the first of equally good
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


def explain_code(facts: ModelFacts, code: Codes, weights: Mapping[str, float]) -> list[Explained]:
    """Say how near a code (K,) is to the centers of these labels, the heaviest first, then by name."""
    rows = []
    for label, weight in sorted(weights.items(), key=lambda pair: (-pair[1], pair[0])):
        product = int(facts.centers[facts.classes.index(label)].astype(int) @ code)
        rows.append(Explained(label, float(weight), product / facts.bits, (facts.bits - product) // 2))
    return rows


def labels_of_code(facts: ModelFacts, code: Codes, labels: Sequence[str], seen: Seen) -> list[Explained]:
    """Explain a stored code (K,) by the labels it carries, or by its nearest centers where they are no classes.

    Weights are the stored shares, or where none are stored how likely each label is given the code.
    """
    chosen = [label for label in facts.classes if label in labels]
    if not chosen:
        directions = facts.centers if facts.directions is None else facts.directions
        cosines = directions.astype(np.float32) @ code / facts.bits
        near = cosines >= facts.label_threshold
        near[cosines.argmax()] = True
        chosen = [facts.classes[row] for row in np.flatnonzero(near).tolist()]
    shares = np.array([seen[label][1] if label in seen else 0 for label in chosen], np.float64)
    if not shares.any():
        # as `rankings.likelihoods`, for one code; their sum is divided out below
        columns = [facts.classes.index(label) for label in chosen]
        shares = np.exp(SHARPNESS * (facts.centers[columns].astype(np.float64) @ code) / facts.bits)
    return explain_code(facts, code, dict(zip(chosen, (shares / shares.sum()).tolist(), strict=True)))
