"""Queries by an embedding, a code, an item of the index or labels with weights; their filters, and label scores."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Codes, Packed, as_codes, check_packed, pack, packed_width, unpack
from centerhash.core.checks import whole_number
from centerhash.core.errors import ConfigError, InputError, unknown_name
from centerhash.index.items import (
    LEVELS,
    Condition,
    Facts,
    Filter,
    Item,
    Keys,
    LabelScores,
    Result,
    check_labels,
    check_text,
)
from centerhash.index.like import ExampleRanking
from centerhash.index.ranking import (
    LIKELIHOOD_SHARPNESS,
    GeneralRanking,
    LabelRanking,
    SemanticRanking,
    near_bits,
)
from centerhash.model.base import PREDICT_FROM, LabelMatch

if TYPE_CHECKING:
    from centerhash.model.base import Model

# Examples are {"dog": 0.7}, ["dog"] and "dog:0.7, bicycle".
LabelQuery: TypeAlias = Mapping[str, float] | Sequence[str] | str
Ranking: TypeAlias = SemanticRanking | GeneralRanking | LabelRanking | ExampleRanking

BY = ("both", "general", "semantic")
# An item stores the scores of its labels, of its most probable class, and of the next classes from this probability on.
MAX_SCORED_CLASSES, MIN_SCORED_PROBABILITY = 8, 0.02
# A sum below this is 0, such as 0.1 + 0.2 - 0.3.
_ZERO = 1e-9


def label_scores(
    model: Model, features: NDArray[np.float32], labels: Sequence[Sequence[str]]
) -> list[LabelScores] | None:
    """Return the label scores to store of items with features (n, D) and labels; None if the model predicts none."""
    if not model.has_probabilities or not len(features):
        return None
    probability = model.label_probabilities(features)
    rank = np.argsort(np.argsort(-probability, axis=1, kind="stable"), axis=1)
    scored = (rank == 0) | ((rank < MAX_SCORED_CLASSES) & (probability >= MIN_SCORED_PROBABILITY))
    column = {name: number for number, name in enumerate(model.classes)}
    for row, names in enumerate(labels):
        scored[row, [column[name] for name in names if name in column]] = True
    scores = np.stack([probability, model.weights(features, scored)], axis=2)
    return named_scores(model.classes, np.rint(LEVELS * scores).astype(int), scored)


def named_scores(
    classes: Sequence[str], levels: NDArray[np.integer[Any]], scored: NDArray[np.bool_]
) -> list[LabelScores]:
    """Return the label scores of items by class, from levels (n, C, 2) and a mask (n, C)."""
    return [
        {classes[column]: (row[column][0], row[column][1]) for column in np.flatnonzero(mask).tolist()}
        for row, mask in zip(levels.tolist(), scored, strict=True)
    ]


@dataclass(frozen=True, eq=False)
class Query:
    """A semantic code, the labels that explain it, and the other values by which it ranks items.

    `general` has M views, the query itself first. Items with `ids` are no results.
    """

    code: Codes  # (K,)
    explained: Sequence[LabelMatch] = ()
    general: Packed | None = None  # (M, W)
    weights: Mapping[str, float] | None = None  # by label
    bit_weights: NDArray[np.float64] | None = None  # (K + V,)
    ids: tuple[str, ...] = ()

    def ranking(self, facts: Facts, by: str | None, within: int | None, copies: bool) -> Ranking:
        """Return the ranking by one kind of code, by both, by labels, or by examples."""
        if by not in (None, *BY):
            raise unknown_name("way to search", str(by), BY)
        if self.bit_weights is not None:
            if by is not None or within is not None:
                raise InputError("a query by examples compares all codes: leave out `by` and `within`.")
            return ExampleRanking(self.bit_weights, facts.bits)
        if by == "general" and self.weights is not None:
            raise InputError("labels have no general code: search by an item or a code, or by='semantic'.")
        if by in ("both", "general") and self.general is None and self.weights is None:
            whose = "this index" if facts.general_bits is None else "the query"
            raise InputError(f"{whose} has no general code: search by='semantic'.")
        if within is not None:
            whole_number(within, "within", 0, facts.general_bits if by == "general" else facts.bits)
        packed: Packed = pack(self.code[None])[0]
        if self.weights is not None and by != "semantic":
            weights = {facts.classes.index(name): weight for name, weight in self.weights.items()}
            return LabelRanking(packed, weights, facts.centers, within)
        if by == "general" and self.general is not None:
            return GeneralRanking(self.general, within, copies)
        return SemanticRanking(packed, None if by == "semantic" else self.general, within, copies)


def query_by_labels(facts: Facts, labels: LabelQuery) -> Query:
    """Return a query by labels; its code lies between their centers."""
    # It raises an error for a method without centers, whose classes are no labels.
    centers = facts.centers
    weights = read_labels(labels, facts.classes)
    code = label_code(centers, np.array([weights.get(name, 0.0) for name in facts.classes]))
    return Query(code, explain_code(facts, code, weights), weights=weights)


def query_by_embedding(model: Model, embedding: NDArray[Any]) -> Query:
    """Return a query by an embedding (D,)."""
    features = np.atleast_2d(np.asarray(embedding))
    if len(features) != 1:
        raise InputError(f"a search expects one embedding (D,), got {len(features):,}: search by each one.")
    explained = model.explain_features(features)[0] if model.has_centers else ()
    general = None if model.general_bits is None else pack(model.general_codes(features))
    return Query(model.encode_features(features)[0], [row for row in explained if row.weight > 0], general)


def query_by_code(facts: Facts, code: Any) -> Query:
    """Return a query by a semantic code, or by {"semantic": code, "general": packed general codes (M, W) of M views}.

    A semantic code is K values of -1 and +1 or of 0 and 1, or ceil(K/8) packed bytes, also as hex digits.
    """
    general = None
    if isinstance(code, Mapping):
        if "semantic" not in code or code.keys() - {"semantic", "general"}:
            raise InputError(f"codes are named 'semantic' and 'general', got {', '.join(map(str, code))}.")
        general, code = code.get("general"), code["semantic"]
    if general is not None:
        if facts.general_bits is None:
            raise InputError("this index has no general codes: search by a semantic code.")
        general = check_packed(np.atleast_2d(np.asarray(general)), facts.general_bits, "general codes")
        if not len(general):
            raise InputError("a general code of the query is needed, got none.")
    bits, width = facts.bits, packed_width(facts.bits)
    try:
        values = np.frombuffer(bytes.fromhex(code), np.uint8) if isinstance(code, str) else np.asarray(code)
        if values.dtype == np.uint8 and values.shape == (width,) and bits > 1:
            values = unpack(values[None], bits)[0]
        if values.shape != (bits,):
            raise ValueError(f"got {values.dtype} of shape {values.shape}")
        signs: Codes = as_codes(values[None])[0]
    # InputError is a ValueError too.
    except ValueError as error:
        expected = f"a code is {bits} values of -1 and +1, or {width} bytes, or {2 * width} hex digits"
        raise InputError(f"{expected}; {error}") from None
    return Query(signs, () if facts.hash_centers is None else labels_of_code(facts, signs, (), {}), general)


def query_by_item(facts: Facts, item: Item) -> Query:
    """Return a query by an item of the index."""
    code = unpack(item.code[None], facts.bits)[0]
    explained = () if facts.hash_centers is None else labels_of_code(facts, code, item.labels, item.scores)
    return Query(code, explained, None if item.general is None else item.general[None], ids=(item.id,))


def parse_filter(
    attributes: Mapping[str, type],
    having: str | Sequence[str] = (),
    without: str | Sequence[str] = (),
    where: Mapping[str, Any] | None = None,
    among: Keys | None = None,
) -> Filter:
    """Return the filter of values that a caller passed; `among` are keys."""
    conditions: dict[str, Condition] = {}
    for name, value in (where or {}).items():
        if name not in attributes:
            raise unknown_name("attribute", str(name), attributes)
        conditions[name] = _condition(name, attributes[name], value)
    labels = [
        check_labels([names] if isinstance(names, str) else names) if names else ()
        for names in (having, without)
    ]
    return Filter(labels[0], labels[1], conditions, among)


def _condition(name: str, kind: type, value: Any) -> Condition:
    """Return the bounds of a number, or the texts that match."""
    if kind is str:
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, Sequence):
            raise InputError(
                f"the text '{name}' is filtered by a text or a list of texts, got {value!r:.80}."
            )
        return tuple(check_text(text, f"the text '{name}'") for text in texts)
    try:
        low, high = value
        low, high = -math.inf if low is None else float(low), math.inf if high is None else float(high)
        if math.isnan(low) or math.isnan(high):
            raise ValueError
    except (TypeError, ValueError):
        raise InputError(
            f"the number '{name}' is filtered by (low, high), inclusive, None if open, got {value!r:.80}."
        ) from None
    return low, high


def as_result(item: Item, code: Packed, general: Packed | None, labels: Iterable[str] | None) -> Result:
    """Return an item compared with the code (W,), the general codes (M, W) and the labels of a query."""
    general_distance = None
    if general is not None and item.general is not None:
        distances = [_differing_bits(item.general, view) for view in general]
        # Only copies are compared with every view.
        general_distance = min(distances) if min(distances) <= near_bits(general) else distances[0]
    probability = share = None
    if item.scores:
        stored = [name for name in (item.labels if labels is None else labels) if name in item.scores]
        probability, share = ({name: item.scores[name][kind] / LEVELS for name in stored} for kind in (0, 1))
    scores = item.labels, probability, share
    return Result(
        item.id, item.key, _differing_bits(item.code, code), general_distance, *scores, item.attributes
    )


def _differing_bits(first: Packed, second: Packed) -> int:
    # numpy takes five times as long for one pair.
    return (int.from_bytes(first.tobytes()) ^ int.from_bytes(second.tobytes())).bit_count()


def read_labels(query: LabelQuery, classes: Sequence[str]) -> dict[str, float]:
    """Read a mapping, a list of names, or a text such as "dog:0.7, bicycle:0.3" into weights that sum to 1.

    A label without a number has weight 1 before all weights are divided by their sum. In a text, a label may contain
    colons, and one that contains a comma is put in double quotes.
    """
    if isinstance(query, str):
        pairs = _parse_labels(query, classes)
    elif isinstance(query, Mapping):
        pairs = list(query.items())
    elif isinstance(query, Sequence) and all(isinstance(name, str) for name in query):
        pairs = [(name, 1.0) for name in query]
    else:
        raise InputError(f"labels are names with weights, names, or one text, got {query!r:.80}.")
    if not pairs:
        raise ConfigError('no label was given: write for example "dog, bicycle" or "dog:0.7, bicycle:0.3".')
    weights: dict[str, float] = {}
    for name, weight in pairs:
        if name not in classes:
            raise unknown_name("label", str(name), classes)
        if name in weights:
            raise ConfigError(f"the label '{name}' is named twice: name it once, with its weight.")
        if not isinstance(weight, Real) or not 0 < weight < math.inf:
            raise ConfigError(f"the weight of '{name}' must be a positive number, got {weight!r}.")
        weights[name] = weight
    # The sum of the weights themselves could overflow.
    largest = max(weights.values())
    total = math.fsum(weight / largest for weight in weights.values())
    return {label: weight / largest / total for label, weight in weights.items()}


def _parse_labels(text: str, classes: Sequence[str]) -> list[tuple[str, float]]:
    pairs = []
    for part in next(csv.reader([text], skipinitialspace=True), []):
        name, _, weight = part.strip().rpartition(":")
        try:
            is_label = part.strip() in classes or not name
            pairs.append((part.strip(), 1.0) if is_label else (name.strip(), float(weight)))
        except ValueError:
            raise unknown_name("label", part.strip(), classes) from None
    return [(name, weight) for name, weight in pairs if name]


def label_code(centers: Codes, weights: NDArray[np.float64]) -> Codes:
    """Return the code (K,) between centers (C, K) by their weights (C,): the one with the least sum_j w_j d_j^2.

    d_j is the Hamming distance to center j. Between two centers at distance d with weights 0.7 and 0.3, the code is at
    distance 0.3 d from the first. Without the square, it would be the sign of the weighted sum, which is the first center
    itself for any smaller weight of the second. That sign (a sum of 0 is +1, as in `codes.binarize`) is the start. Then
    single bits are flipped, the best one first and the first of equally good ones, until no flip lowers the sum.
    """
    used, shares = centers[weights > 0], weights[weights > 0] / weights.max()
    shares = shares / shares.sum()
    code = np.where(shares @ used >= -_ZERO, np.int8(1), np.int8(-1))
    distances = (used != code).sum(axis=1)
    while True:
        # (c, K): a flip moves the code away from the centers that agree, +1, and closer to the others.
        changes = used * code
        # This is sum_j w_j ((d_j + change)^2 - d_j^2) with change^2 = 1.
        gains = (shares[:, None] * (2 * distances[:, None] * changes + 1)).sum(axis=0)
        best = int(np.round(gains, 9).argmin())
        if gains[best] >= -_ZERO:
            return code
        code[best] = -code[best]
        distances = distances + changes[:, best]


def explain_code(facts: Facts, code: Codes, weights: Mapping[str, float]) -> list[LabelMatch]:
    """Compare a code (K,) with the centers of labels; return the matches by descending weight, then by name."""
    matches = []
    for label, weight in sorted(weights.items(), key=lambda pair: (-pair[1], pair[0])):
        product = int(facts.centers[facts.classes.index(label)].astype(int) @ code)
        matches.append(LabelMatch(label, float(weight), product / facts.bits, (facts.bits - product) // 2))
    return matches


def labels_of_code(facts: Facts, code: Codes, labels: Sequence[str], scores: LabelScores) -> list[LabelMatch]:
    """Explain a stored code (K,) by the labels of its item; if none is a class, by the probable classes.

    Without stored scores, the nearest centers explain it. The weights are the stored shares, or without stored shares
    the likelihoods of the labels given the code.
    """
    names = [label for label in facts.classes if label in labels]
    if not names and scores:
        names = [label for label in facts.classes if scores.get(label, (0, 0))[0] >= PREDICT_FROM * LEVELS]
    elif not names:
        cosines = np.asarray(facts.directions) @ code / facts.bits
        is_near = cosines >= min(facts.label_threshold, cosines.max())
        names = [facts.classes[row] for row in np.flatnonzero(is_near).tolist()]
    shares = np.array([scores.get(label, (0, 0))[1] for label in names], np.float64)
    if not shares.any():
        # These are proportional to `ranking.likelihoods`.
        columns = [facts.classes.index(label) for label in names]
        shares = np.exp(
            LIKELIHOOD_SHARPNESS * (facts.centers[columns].astype(np.float64) @ code) / facts.bits
        )
    return explain_code(facts, code, dict(zip(names, (shares / shares.sum()).tolist(), strict=True)))
