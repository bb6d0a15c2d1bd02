"""Queries: by an embedding, a code, an item of the index or labels with weights; and the filters that restrict them."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
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
    Facts,
    Filter,
    Item,
    Keys,
    LabelScores,
    Result,
    Where,
    check_labels,
    check_text,
)
from centerhash.index.like import ByExamples
from centerhash.index.ranking import LIKELIHOOD_SHARPNESS, ByBoth, ByGeneral, ByLabels, BySemantic, near_bits
from centerhash.model.base import PREDICT_FROM, LabelMatch

if TYPE_CHECKING:
    from centerhash.model.base import Model

# {"dog": 0.7}, ["dog"] or "dog:0.7, bicycle"
LabelQuery: TypeAlias = Mapping[str, float] | Sequence[str] | str
Ranking: TypeAlias = BySemantic | ByGeneral | ByBoth | ByLabels | ByExamples

BY = ("both", "general", "semantic")
# Classes of an item whose scores are stored, besides those of its labels.
KEPT = 8
# The smallest probability that is stored; the largest one always is.
LEAST = 0.02
# A sum this near to 0 is 0: 0.1 + 0.2 - 0.3 must be.
_TIE = 1e-9


# --- the scores of items


def label_scores(
    model: Model, features: NDArray[np.float32], labels: Sequence[Sequence[str]]
) -> list[LabelScores] | None:
    """Return probabilities and shares of the labels that matter in each of N items; None for a model without."""
    if not model.has_probabilities or not len(features):
        return None
    probability = model.label_probabilities(features)
    kept, column = kept_classes(probability), {name: place for place, name in enumerate(model.classes)}
    for row, names in enumerate(labels):
        kept[row, [column[name] for name in names if name in column]] = True
    both = np.stack([probability, model.weights(features, kept)], axis=2)
    return named_scores(model.classes, np.rint(LEVELS * both).astype(int), kept)


def named_scores(
    classes: Sequence[str], levels: NDArray[np.integer[Any]], kept: NDArray[np.bool_]
) -> list[LabelScores]:
    """Return probability and share of each item by the names of its classes, of levels (N, C, 2) and a mask (N, C)."""
    columns = [np.flatnonzero(row).tolist() for row in kept]
    return [
        {classes[j]: (row[j][0], row[j][1]) for j in places}
        for row, places in zip(levels.tolist(), columns, strict=True)
    ]


def kept_classes(probability: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return which probabilities (N, C) are stored: the largest ones, from LEAST on, and always the largest of all."""
    rank = np.argsort(np.argsort(-probability, axis=1, kind="stable"), axis=1)
    kept: NDArray[np.bool_] = (rank == 0) | ((rank < KEPT) & (probability >= LEAST))
    return kept


# --- queries


@dataclass(frozen=True, eq=False)
class Query:
    """A semantic code, the labels that explain it, and a general code or labels with weights."""

    code: Codes  # (K,)
    explained: Sequence[LabelMatch] = ()
    general: Packed | None = None  # (V, W): of the query, then of further views of it
    weights: Mapping[str, float] | None = None
    bit_weights: NDArray[np.float64] | None = None  # (K + V,), of a query by examples
    items: tuple[str, ...] = ()  # the ids of items that it was made of, which are no results

    def ranking(self, info: Facts, by: str | None, within: int | None, copies: bool) -> Ranking:
        """Return the order of the results: by one kind of code, by both, by labels, or by examples."""
        if by not in (None, *BY):
            raise unknown_name("way to search", str(by), BY)
        if self.bit_weights is not None:
            if by is not None or within is not None:
                raise InputError("a query by examples compares all codes: leave out `by` and `within`.")
            return ByExamples(self.bit_weights, info.bits)
        general = None if info.general_bits is None else self.general
        if by == "general" and self.weights is not None:
            raise InputError("labels have no general code: search by an item or a code, or by='semantic'.")
        if by in ("both", "general") and general is None and self.weights is None:
            whose = "this index" if info.general_bits is None else "the query"
            raise InputError(f"{whose} has no general code: search by='semantic'.")
        if within is not None:
            whole_number(within, "within", 0, info.general_bits if by == "general" else info.bits)
        packed: Packed = pack(self.code[None])[0]
        if self.weights is not None and by != "semantic":
            numbers = {info.classes.index(name): weight for name, weight in self.weights.items()}
            return ByLabels(packed, numbers, info.centers, within)
        if general is None or by == "semantic":
            return BySemantic(packed, within)
        return (
            ByGeneral(general, within, copies) if by == "general" else ByBoth(packed, general, within, copies)
        )


def query_by_labels(info: Facts, labels: LabelQuery) -> Query:
    """Return a query by labels; its code lies between their centers."""
    centers = info.centers  # a clear error for methods without
    weights = read_labels(labels, info.classes)
    code = label_code(centers, np.array([weights.get(name, 0.0) for name in info.classes]))
    return Query(code, explain_code(info, code, weights), weights=weights)


def query_by_features(model: Model, features: NDArray[np.float32]) -> Query:
    """Return a query by an embedding (1, D)."""
    explained = model.explain_features(features)[0] if model.has_centers else ()
    general = None if model.general_bits is None else pack(model.general_codes(features))
    return Query(model.encode_features(features)[0], [row for row in explained if row.weight > 0], general)


def query_by_code(info: Facts, code: Any) -> Query:
    """Return a query by a semantic code, or by {"semantic": code, "general": packed (V, W)} with views of a general one.

    A semantic code is K values of -1 and +1 or of 0 and 1, or ceil(K/8) packed bytes, also as hex digits.
    """
    general = None
    if isinstance(code, Mapping):
        if "semantic" not in code or code.keys() - {"semantic", "general"}:
            raise InputError(f"codes are named 'semantic' and 'general', got {', '.join(map(str, code))}.")
        general, code = code.get("general"), code["semantic"]
    if general is not None:
        if info.general_bits is None:
            raise InputError("this index has no general codes: search by a semantic code.")
        general = check_packed(np.atleast_2d(np.asarray(general)), info.general_bits, "general codes")
        if not len(general):
            raise InputError("a general code of the query is needed, got none.")
    read = _read_code(code, info.bits)
    return Query(read, () if info.hash_centers is None else labels_of_code(info, read, (), {}), general)


def _read_code(code: Any, bits: int) -> Codes:
    width = packed_width(bits)
    try:
        values = np.frombuffer(bytes.fromhex(code), np.uint8) if isinstance(code, str) else np.asarray(code)
        if values.dtype == np.uint8 and values.shape == (width,) and bits > 1:
            values = unpack(values[None], bits)[0]
        if values.shape != (bits,):
            raise ValueError(f"got {values.dtype} of shape {values.shape}")
        read: Codes = as_codes(values[None])[0]
    except ValueError as error:  # InputError is one
        expected = f"a code is {bits} values of -1 and +1, or {width} bytes, or {2 * width} hex digits"
        raise InputError(f"{expected}; {error}") from None
    return read


def query_by_item(info: Facts, item: Item) -> Query:
    """Return a query by an item of the index."""
    code = unpack(item.code[None], info.bits)[0]
    explained = () if info.hash_centers is None else labels_of_code(info, code, item.labels, item.scores)
    return Query(code, explained, None if item.general is None else item.general[None], items=(item.id,))


# --- filters


def filter_of(
    attributes: Mapping[str, type],
    having: str | Sequence[str] = (),
    without: str | Sequence[str] = (),
    where: Mapping[str, Any] | None = None,
    among: Keys | None = None,
) -> Filter:
    """Return the filter for what a caller passed; `among` are keys."""
    both = (having, without)
    labels = [check_labels([names] if isinstance(names, str) else names) if names else () for names in both]
    ranges: dict[str, Where] = {}
    for name, wanted in (where or {}).items():
        if name not in attributes:
            raise unknown_name("attribute", str(name), attributes)
        ranges[name] = _bounds(name, wanted) if attributes[name] is float else _texts(name, wanted)
    return Filter(labels[0], labels[1], ranges, among)


def _bounds(name: str, wanted: Any) -> tuple[float, float]:
    try:
        low, high = wanted
        low, high = -math.inf if low is None else float(low), math.inf if high is None else float(high)
        if math.isnan(low) or math.isnan(high):
            raise ValueError
    except (TypeError, ValueError):
        raise InputError(
            f"the number '{name}' is filtered by (low, high), inclusive, None if open, got {wanted!r:.80}."
        ) from None
    return low, high


def _texts(name: str, wanted: Any) -> tuple[str, ...]:
    texts = [wanted] if isinstance(wanted, str) else wanted
    if not isinstance(texts, Sequence):
        raise InputError(f"the text '{name}' is filtered by a text or a list of texts, got {wanted!r:.80}.")
    return tuple(check_text(text, f"the text '{name}'") for text in texts)


# --- results


def as_result(item: Item, code: Packed, general: Packed | None, labels: Sequence[str] | None) -> Result:
    """Return an item compared with the code (W,), the general codes (V, W) and the labels of a query."""
    apart = None
    if general is not None and item.general is not None:
        every = [_differing_bits(item.general, view) for view in general]
        # only copies are compared with every view
        apart = min(every) if min(every) <= near_bits(general) else every[0]
    probability = share = None
    if item.scores:
        stored = [name for name in (item.labels if labels is None else labels) if name in item.scores]
        probability, share = ({name: item.scores[name][kind] / LEVELS for name in stored} for kind in (0, 1))
    distance = _differing_bits(item.code, code)
    return Result(item.id, item.key, distance, apart, item.labels, probability, share, item.attributes)


def _differing_bits(first: Packed, second: Packed) -> int:
    # a fifth of the time that numpy takes for one pair
    return (int.from_bytes(first.tobytes()) ^ int.from_bytes(second.tobytes())).bit_count()


# --- labels


def read_labels(query: LabelQuery, classes: Sequence[str]) -> dict[str, float]:
    """Read a mapping, a list of names, or a text such as "dog:0.7, bicycle:0.3" into weights that sum to 1.

    A label without a number has weight 1 before all are divided by their sum. In a text, a label that itself contains
    a colon is recognized as it stands, and one that contains a comma is put in double quotes.
    """
    if isinstance(query, str):
        pairs = _typed_labels(query, classes)
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
    largest = max(weights.values())  # first, so that no sum overflows
    total = math.fsum(weight / largest for weight in weights.values())
    return {label: weight / largest / total for label, weight in weights.items()}


def _typed_labels(text: str, classes: Sequence[str]) -> list[tuple[str, float]]:
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

    d_j is the Hamming distance to center j; of two centers D apart, weighted 0.7 and 0.3, the code is 0.3 D from the
    first. Without the square this would be the code nearest to the weighted centroid, the sign of the weighted sum,
    which is the first center itself whatever the second one weighs. That sign (a sum of 0 is +1, as in
    `codes.binarize`) is the start; then single bits are flipped, the best one first and the first of equally good
    ones, until no flip lowers the sum.
    """
    used, shares = centers[weights > 0], weights[weights > 0] / weights.max()
    shares = shares / shares.sum()
    code = np.where(shares @ used >= -_TIE, np.int8(1), np.int8(-1))
    distances = (used != code).sum(axis=1)
    while True:
        # (c, K): a flip takes the code away from the centers that agree, +1, and closer to the others
        changes = used * code
        # sum_j w_j ((d_j + change)^2 - d_j^2) with change^2 = 1
        gains = (shares[:, None] * (2 * distances[:, None] * changes + 1)).sum(axis=0)
        best = int(np.round(gains, 9).argmin())
        if gains[best] >= -_TIE:
            return code
        code[best] = -code[best]
        distances = distances + changes[:, best]


def explain_code(info: Facts, code: Codes, weights: Mapping[str, float]) -> list[LabelMatch]:
    """Return how near a code (K,) is to the centers of these labels, the heaviest first, then by name."""
    rows = []
    for label, weight in sorted(weights.items(), key=lambda pair: (-pair[1], pair[0])):
        product = int(info.centers[info.classes.index(label)].astype(int) @ code)
        rows.append(LabelMatch(label, float(weight), product / info.bits, (info.bits - product) // 2))
    return rows


def labels_of_code(info: Facts, code: Codes, labels: Sequence[str], scores: LabelScores) -> list[LabelMatch]:
    """Explain a stored code (K,) by the labels it carries; if they are no classes, by those that are probable.

    Without stored scores, the nearest centers explain it. Weights are the stored shares, or without stored shares how
    likely each label is given the code.
    """
    names = [label for label in info.classes if label in labels]
    if not names and scores:
        names = [label for label in info.classes if scores.get(label, (0, 0))[0] >= PREDICT_FROM * LEVELS]
        if not names:
            return []
    if not names:
        cosines = np.asarray(info.directions) @ code / info.bits
        is_near = cosines >= min(info.label_threshold, cosines.max())
        names = [info.classes[row] for row in np.flatnonzero(is_near).tolist()]
    shares = np.array([scores.get(label, (0, 0))[1] for label in names], np.float64)
    if not shares.any():
        # as `ranking.likelihoods`, for one code; their sum is divided out below
        columns = [info.classes.index(label) for label in names]
        shares = np.exp(LIKELIHOOD_SHARPNESS * (info.centers[columns].astype(np.float64) @ code) / info.bits)
    return explain_code(info, code, dict(zip(names, (shares / shares.sum()).tolist(), strict=True)))
