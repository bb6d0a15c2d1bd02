"""Queries: by an image, by an item of the index, or by labels with weights; and the filters that restrict them."""

from __future__ import annotations

import datetime
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Codes, Packed, as_codes, check_codes, check_packed, pack, packed_width, unpack
from centerhash.core.errors import ConfigError, DataError, InputError, unknown_name
from centerhash.core.files import refuse_links
from centerhash.model.base import PRESENT, Explained
from centerhash.model.portable import read_spec
from centerhash.model.spec import PORTABLE
from centerhash.search.items import LEVELS, VISUAL_BITS, Filter, Item, ItemStore, LabelScores, check_labels
from centerhash.search.names import label_named, match
from centerhash.search.rankings import SHARPNESS, ByBoth, ByLabels, BySemantic, ByVisual, Ranking
from centerhash.search.typed import check_known, read_typed

if TYPE_CHECKING:
    from centerhash.model.base import Model
    from centerhash.search.teaching import Taught

# {"dog": 0.7}, ["dog"], "dog:0.7, bicycle" or "a dog on a couch without person"
LabelQuery: TypeAlias = Mapping[str, float] | Sequence[str] | str

Date: TypeAlias = str | int | datetime.date  # 2024, "2024-06", "2024-06-01", or an object of `datetime`

BY = ("both", "visual", "semantic")
KEPT = 8  # classes of an item whose scores are stored, besides those of its labels
LEAST = 0.02  # the smallest probability that is stored; the largest one always is
_DATE = re.compile(r"([0-9]{4})(?:-([0-9]{1,2})(?:-([0-9]{1,2}))?)?")
_TIE = 1e-9  # a sum this near to 0 is 0: 0.1 + 0.2 - 0.3 must be


# --- the model of an index, without torch


@dataclass(frozen=True, eq=False)
class ModelInfo:
    """What a query by labels or by an item needs of a stored model: its classes and centers."""

    method: str | None  # None for an index without a model
    backbone: str | None
    bits: int
    classes: tuple[str, ...]
    label_threshold: float  # cosine to a center from which its label is predicted
    known_centers: Codes | None  # (C, K); None for a method without centers
    directions: NDArray[np.float32] | None = None  # (C, K), what logits are compared with; None: the centers

    @property
    def centers(self) -> Codes:
        """Return the hash centers (C, K), or raise ConfigError for a method without."""
        if self.method is None and self.known_centers is None:
            raise no_model("search by an id or by a code")
        if self.known_centers is None:
            raise ConfigError(
                f"a model of method '{self.method}' has no hash centers, so it does not support label queries and "
                "weights. Train a model of a central method, such as ics-softmax."
            )
        return self.known_centers


def without_model(bits: int) -> ModelInfo:
    """Return the information of an index that holds codes of other programs."""
    return ModelInfo(None, None, bits, (), 0.0, None)


def no_model(instead: str) -> ConfigError:
    """Return the error of an index without a model."""
    return ConfigError(f"this index has no model, only codes of other programs: {instead}.")


def read_model_info(folder: Path) -> ModelInfo:
    """Read the information from the folder of an index's model, or raise DataError; the network is not read."""
    refuse_links(folder, (PORTABLE,))
    spec = read_spec(folder / PORTABLE)
    if spec.visual_bits not in (None, VISUAL_BITS):
        raise DataError(
            f"'{folder / PORTABLE}' makes visual codes of {spec.visual_bits} bits, an index holds {VISUAL_BITS}: "
            "create the index with another model."
        )
    return ModelInfo(
        spec.method,
        spec.backbone,
        spec.bits,
        spec.classes,
        spec.label_threshold or 0.0,
        spec.center_codes(),
        spec.center_directions(),
    )


def with_taught(info: ModelInfo, taught: Mapping[str, Taught]) -> ModelInfo:
    """Return the information with taught labels as further classes; their centers are the codes that fit them best."""
    if not taught:
        return info
    added = np.stack([label.center for label in taught.values()])
    if info.known_centers is None:
        return replace(info, classes=tuple(taught), known_centers=added, directions=None)
    centers = np.concatenate([info.known_centers, added])
    return replace(info, classes=(*info.classes, *taught), known_centers=centers)


# --- what is stored of an image besides its semantic code


def visual_codes(model: Model, features: NDArray[np.float32]) -> Packed | None:
    """Return packed visual codes (N, 16) of features (N, D); None for a model without."""
    return None if model.visual_bits is None else pack(model.visual_codes(features))


def label_scores(
    model: Model, features: NDArray[np.float32], labels: Sequence[Sequence[str]]
) -> list[LabelScores] | None:
    """Return probabilities and shares of the labels that matter in each of N images; None for a model without."""
    if not model.has_probabilities or not len(features):
        return None
    probability = model.label_probabilities(features)
    kept = kept_classes(probability)
    column = {name: place for place, name in enumerate(model.classes)}
    for row, names in enumerate(labels):
        kept[row, [column[name] for name in names if name in column]] = True
    shares = model.weights(features, kept)
    levels, amounts = (np.rint(LEVELS * values).astype(int) for values in (probability, shares))
    return [
        {model.classes[j]: (int(levels[row, j]), int(amounts[row, j])) for j in np.flatnonzero(chosen)}
        for row, chosen in enumerate(kept)
    ]


def kept_classes(probability: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return which probabilities (N, C) are stored: the largest ones, from LEAST on, and always the largest of all."""
    order = np.argsort(-probability, axis=1, kind="stable")[:, :KEPT]
    kept = np.zeros(probability.shape, bool)
    np.put_along_axis(kept, order, np.take_along_axis(probability, order, axis=1) >= LEAST, axis=1)
    kept[np.arange(len(kept)), order[:, 0]] = True
    return kept


# --- queries


@dataclass(frozen=True, eq=False)
class Query:
    """A semantic code, the labels that explain it, and a visual code or labels with weights."""

    code: Codes  # (K,)
    explained: Sequence[Explained] = ()
    visual: Packed | None = None  # (V, 16): of the image, then of further views of it
    weights: Mapping[str, float] | None = None
    item: str | None = None  # the id of the item that is searched by; it is not among its own results

    def ranking(self, info: ModelInfo, by: str, within: int | None) -> Ranking:
        """Return the order of the results: by both codes or labels, or by one kind of code."""
        if by not in BY:
            raise unknown_name("way to search", str(by), BY)
        bits = VISUAL_BITS if by == "visual" else len(self.code)
        if within is not None and not (type(within) is int and 0 <= within <= bits):
            raise InputError(f"within must be 0 to {bits}, the number of bits, got {within!r}.")
        packed: Packed = pack(self.code[None])[0]
        if self.weights is not None and by != "semantic":
            if by == "visual":
                raise InputError("labels have no visual code: search by an image or by an id, or by='both'.")
            columns = {name: info.classes.index(name) for name in self.weights if name in info.classes}
            centers = info.centers if columns else np.empty((0, info.bits), np.int8)
            return ByLabels(packed, self.weights, centers, columns, within)
        if by == "visual" and self.visual is None:
            whose = "the model of this index" if self.item is None else f"the item '{self.item}'"
            raise InputError(f"{whose} has no visual code: search by='semantic' or by='both'.")
        if by == "semantic" or self.visual is None:
            return BySemantic(packed, within)
        return (ByBoth if by == "both" else ByVisual)(packed, self.visual, within)


def query_by_labels(info: ModelInfo, labels: LabelQuery) -> Query:
    """Return a query by labels; its code lies between their centers."""
    centers = info.centers  # a clear error for methods without
    weights = read_labels(labels, info.classes)
    code = label_code(centers, np.array([weights.get(name, 0.0) for name in info.classes]))
    return Query(code, explain_code(info, code, weights), weights=weights)


def query_by_features(model: Model, features: NDArray[np.float32]) -> Query:
    """Return a query by the features (V, D) of an image and of further views of it, which are compared visually."""
    explained = model.explain_features(features[:1])[0] if model.has_centers else ()
    shown = [row for row in explained if row.weight > 0]
    return Query(model.encode_features(features[:1])[0], shown, visual_codes(model, features))


def query_by_code(info: ModelInfo, code: Any) -> Query:
    """Return a query by a code: K values of -1 and +1, of 0 and 1, or ceil(K/8) packed bytes, also as hex digits."""
    width = packed_width(info.bits)
    expected = f"a code is {info.bits} values of -1 and +1, or {width} bytes, or {2 * width} hex digits"
    try:
        values = np.frombuffer(bytes.fromhex(code), np.uint8) if isinstance(code, str) else np.asarray(code)
    except ValueError:
        raise InputError(f"{expected}, got {code!r:.80}.") from None
    try:
        if values.dtype == np.uint8 and values.shape == (width,) and info.bits > 1:
            values = unpack(check_packed(values[None], info.bits), info.bits)[0]
        if values.shape != (info.bits,):
            raise InputError(f"got {values.dtype} of shape {values.shape}")
        read = as_codes(values[None])[0]
    except InputError as error:
        raise InputError(f"{expected}: {error}".rstrip(".") + ".") from None
    return Query(read, () if info.known_centers is None else labels_of_code(info, read, (), {}))


def query_by_item(info: ModelInfo, item: Item) -> Query:
    """Return a query by an item of the index."""
    code = unpack(item.code[None], info.bits)[0]
    explained = () if info.known_centers is None else labels_of_code(info, code, item.labels, item.scores)
    return Query(code, explained, None if item.visual is None else item.visual[None], item=item.id)


def filter_of(
    store: ItemStore,
    info: ModelInfo,
    uploads: Path,
    *,
    having: str | Sequence[str] = (),
    without: str | Sequence[str] = (),
    under: str | Path | None = None,
    after: Date | None = None,
    before: Date | None = None,
    camera: str | None = None,
    named: str | Sequence[str] = (),
) -> Filter:
    """Return the filter for what a user wrote; `uploads` is the folder of images without a file of their own."""
    wanted, unwanted = (
        tuple(
            _stored_label(store, info, name)
            for name in check_labels([names] if isinstance(names, str) else names)
        )
        for names in (having, without)
    )
    since, until = (None if date is None else read_date(date) for date in (after, before))
    cameras = None if camera is None else cameras_named(store, camera)
    words = check_labels([named] if isinstance(named, str) else named)
    return Filter(wanted, unwanted, _places(under, uploads), since, until, cameras, words)


def _places(under: str | Path | None, uploads: Path) -> tuple[str, ...] | None:
    """Return how the stored paths of images under a folder begin."""
    if under is None:
        return None
    if not isinstance(under, str | Path) or not str(under):
        raise InputError(f"a folder of images is needed, got {under!r:.80}.")
    place = os.path.realpath(under).rstrip(os.sep) + os.sep
    # uploads are stored by paths relative to the folder of the index
    own = (f"{uploads.name}/",) if (os.path.realpath(uploads) + os.sep).startswith(place) else ()
    return place, *own


def cameras_named(store: ItemStore, text: str) -> tuple[str, ...]:
    """Return the cameras whose name contains a text, in capitals or not: "iphone" is any iPhone."""
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"the name of a camera or a part of it is needed, got {text!r:.80}.")
    return tuple(name for name in store.cameras() if text.strip().lower() in name.lower())


def read_date(date: Date) -> float:
    """Return when a year, month or day begins, in seconds since 1970 as if the date were in UTC."""
    if isinstance(date, datetime.datetime):
        return date.replace(tzinfo=datetime.UTC).timestamp()
    found = _DATE.fullmatch(date.isoformat() if isinstance(date, datetime.date) else str(date).strip())
    try:
        if found is None:
            raise ValueError
        year, month, day = (int(part or 1) for part in found.groups())
        return datetime.datetime(year, month, day, tzinfo=datetime.UTC).timestamp()
    except ValueError:
        raise InputError(
            f"a date is a year, month or day, as 2024, 2024-06 or 2024-06-01, got {date!r:.80}."
        ) from None


def _stored_label(store: ItemStore, info: ModelInfo, name: str) -> str:
    """Return the label that a name means; the name itself if no item carries such a label."""
    if name in info.classes:
        return name
    known = store.labels()
    return name if name in known else match(name, [*info.classes, *known]) or name


# --- labels


def read_labels(query: LabelQuery, classes: Sequence[str]) -> dict[str, float]:
    """Read a mapping, a list of names, or a text such as "dog:0.7, bicycle:0.3" into weights that sum to 1.

    A label without a number has weight 1 before all are divided by their sum. In a text, a label that itself contains
    a colon is recognized as it stands, and one that contains a comma is put in double quotes.
    """
    if isinstance(query, str):
        return normalized(check_known(read_typed(query, classes), classes).weights)
    if isinstance(query, Mapping):
        pairs = list(query.items())
    elif isinstance(query, Sequence) and all(isinstance(name, str) for name in query):
        pairs = [(name, 1.0) for name in query]
    else:
        raise InputError(f"labels are names with weights, names, or one text, got {query!r:.80}.")
    weights: dict[str, float] = {}
    for name, weight in pairs:
        label = label_named(str(name), classes)
        if label in weights:
            raise ConfigError(f"the label '{label}' is named twice: name it once, with its weight.")
        weights[label] = weight
    return normalized(weights)


def normalized(weights: Mapping[str, float]) -> dict[str, float]:
    """Divide weights by their sum; raise ConfigError for weights that are not above 0."""
    if not weights:
        raise ConfigError('no label was given: write for example "dog, bicycle" or "dog:0.7, bicycle:0.3".')
    for label, weight in weights.items():
        if not isinstance(weight, Real) or not 0 < weight < math.inf:
            raise ConfigError(f"the weight of '{label}' must be a positive number, got {weight!r}.")
    largest = max(weights.values())  # first, so that no sum overflows
    total = math.fsum(weight / largest for weight in weights.values())
    return {label: weight / largest / total for label, weight in weights.items()}


def label_code(centers: NDArray[Any], weights: NDArray[Any]) -> Codes:
    """Return the code (K,) between centers (C, K) by their weights (C,): the one with the least sum_j w_j d_j^2.

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
        # (c, K): a flip takes the code away from the centers that agree, +1, and closer to the others
        changes = used * code
        # sum_j w_j ((d_j + change)^2 - d_j^2) with change^2 = 1
        gains = (shares[:, None] * (2 * distances[:, None] * changes + 1)).sum(axis=0)
        best = int(np.round(gains, 9).argmin())
        if gains[best] >= -_TIE:
            return code
        code[best] = -code[best]
        distances = distances + changes[:, best]


def explain_code(info: ModelInfo, code: Codes, weights: Mapping[str, float]) -> list[Explained]:
    """Return how near a code (K,) is to the centers of these labels, the heaviest first, then by name."""
    rows = []
    for label, weight in sorted(weights.items(), key=lambda pair: (-pair[1], pair[0])):
        product = int(info.centers[info.classes.index(label)].astype(int) @ code)
        rows.append(Explained(label, float(weight), product / info.bits, (info.bits - product) // 2))
    return rows


def labels_of_code(
    info: ModelInfo, code: Codes, labels: Sequence[str], scores: LabelScores
) -> list[Explained]:
    """Explain a stored code (K,) by the labels it carries; if they are no classes, by those that are probable.

    Without stored scores, the nearest centers explain it. Weights are the stored shares, or without stored shares how
    likely each label is given the code.
    """
    chosen = [label for label in info.classes if label in labels]
    if not chosen and scores:
        chosen = [label for label, (level, _) in scores.items() if level >= PRESENT * LEVELS]
        if not chosen:
            return []
    if not chosen:
        directions = info.centers if info.directions is None else info.directions
        cosines = directions.astype(np.float32) @ code / info.bits
        near = cosines >= info.label_threshold
        near[cosines.argmax()] = True
        chosen = [info.classes[row] for row in np.flatnonzero(near).tolist()]
    shares = np.array([scores[label][1] if label in scores else 0 for label in chosen], np.float64)
    if not shares.any():
        # as `rankings.likelihoods`, for one code; their sum is divided out below
        columns = [info.classes.index(label) for label in chosen]
        shares = np.exp(SHARPNESS * (info.centers[columns].astype(np.float64) @ code) / info.bits)
    return explain_code(info, code, dict(zip(chosen, (shares / shares.sum()).tolist(), strict=True)))
