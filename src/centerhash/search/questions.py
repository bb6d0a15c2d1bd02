"""Questions to an index: what is asked, in which order items answer it, and which may."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from centerhash.codes import Codes, Packed, pack, unpack
from centerhash.core.errors import InputError, unknown_name
from centerhash.model.explanation import Explained
from centerhash.search.engines.base import VISUAL_BITS, Filter, HammingIndex, Id, Item, check_labels
from centerhash.search.engines.rankings import ByBoth, ByLabels, ByLook, Ranking
from centerhash.search.facts import ModelFacts
from centerhash.search.label_query import (
    LabelQuestion,
    explain_code,
    label_code,
    labels_of_code,
    read_labels,
)
from centerhash.search.names import match
from centerhash.search.parts import visual_of
from centerhash.search.uploads import IMAGES

if TYPE_CHECKING:
    from centerhash.data.images import ImageSource
    from centerhash.search.index import Index

BY = ("both", "look", "meaning")


@dataclass(frozen=True, eq=False)
class Question:
    """What is asked: a semantic code, how it is explained, and a visual code or labels with weights."""

    code: Codes  # (K,)
    explained: Sequence[Explained] = ()
    visual: Packed | None = None  # (16,)
    weights: Mapping[str, float] | None = None
    item: str | None = None  # that is searched by, and does not find itself

    @property
    def packed(self) -> Packed:
        """The packed semantic code (ceil(K/8),)."""
        packed: Packed = pack(self.code[None])[0]
        return packed


def question_of(
    index: Index, image: ImageSource | None, id: str | None, labels: LabelQuestion | None
) -> Question:
    """The question by the one of the three that is given."""
    asked = {"image": image, "id": id, "labels": labels}
    given = [name for name, value in asked.items() if value is not None]
    if len(given) != 1:
        raise InputError(
            f"search by exactly one of an image, an id or labels, got {' and '.join(given) or 'none'}."
        )
    if id is not None:
        return question_of_item(index.facts, index.store.get([id])[0])
    if labels is not None:
        return question_of_labels(index.facts, labels)
    return question_of_image(index, image)


def question_of_labels(facts: ModelFacts, labels: LabelQuestion) -> Question:
    """A question by labels; its code lies between their centers."""
    centers = facts.centers  # a clear error for methods without
    weights = read_labels(labels, facts.classes)
    code = label_code(centers, np.array([weights.get(name, 0.0) for name in facts.classes]))
    return Question(code, explain_code(facts, code, weights), weights=weights)


def question_of_image(index: Index, image: ImageSource | None) -> Question:
    """A question by an image, which the index's model reads."""
    from PIL import Image

    if not isinstance(image, str | Path | bytes | Image.Image | np.ndarray):
        raise InputError(
            f"an image is a path, bytes, a PIL image or a uint8 array, got {type(image).__name__}."
        )
    features, model = index.encoder().features([image]), index.model
    explained = model.explain_features(features)[0] if model.has_centers else ()
    looks = visual_of(model, features)
    shown = [row for row in explained if row.weight > 0]
    return Question(model.encode_features(features)[0], shown, None if looks is None else looks[0])


def question_of_item(facts: ModelFacts, item: Item) -> Question:
    """A question by an item of the index."""
    code = unpack(item.code[None], facts.bits)[0]
    known = facts.known_centers is not None
    explained = labels_of_code(facts, code, item.labels, item.seen) if known else ()
    return Question(code, explained, item.visual, item=str(item.id))


def ranking_of(question: Question, facts: ModelFacts, by: str, within: int | None) -> Ranking | None:
    """The order of the answers; None for that of the semantic code alone."""
    if by not in BY:
        raise unknown_name("way to search", str(by), BY)
    if question.weights is not None:
        if by == "look":
            raise InputError("labels have no look: search by an image or by an id, or leave out by='look'.")
        if by == "both":
            columns = {name: facts.classes.index(name) for name in question.weights}
            return ByLabels(question.packed, question.weights, facts.centers, columns, within)
    elif by != "meaning" and question.visual is not None:
        if by == "both":
            return ByBoth(question.packed, question.visual, within=within)
        return ByLook(question.packed, question.visual, within)
    elif by == "look":
        whose = "the model of this index" if question.item is None else f"the item '{question.item}'"
        raise InputError(f"{whose} has no visual code, so it cannot be searched by its look.")
    return None


def ask(
    store: HammingIndex,
    facts: ModelFacts,
    question: Question,
    k: int,
    by: str,
    only: Filter,
    within: int | None,
) -> list[tuple[Item, int]]:
    """The `k` first answers to a question, with the distances of their semantic codes."""
    if type(k) is not int or k < 1:
        raise InputError(f"k must be a whole number of at least 1, got {k!r}.")
    most = VISUAL_BITS if by == "look" else store.bits
    if within is not None and not (type(within) is int and 0 <= within <= most):
        raise InputError(f"within must be 0 to {most}, the number of bits, got {within!r}.")
    ranking = ranking_of(question, facts, by, within)
    wanted = k if question.item is None else k + 1
    if ranking is None:
        found = [
            hit
            for hit in store.search(question.packed[None], wanted, only=only)[0]
            if within is None or hit[1] <= within
        ]
    else:
        found = list(store.rank(ranking, wanted, only))
    return _looked_up(store, [hit for hit in found if hit[0] != question.item][:k])


def _looked_up(store: HammingIndex, near: Sequence[tuple[Id, int]]) -> list[tuple[Item, int]]:
    """The items of hits, without those that another thread has removed since the search."""
    while True:
        try:
            items = store.get([id for id, _ in near])
        except InputError:
            left = [hit for hit in near if hit[0] in store]
            if len(left) == len(near):
                raise
            near = left
            continue
        return list(zip(items, (distance for _, distance in near), strict=True))


def filter_of(
    store: HammingIndex,
    facts: ModelFacts,
    folder: Path,
    having: str | Sequence[str],
    without: str | Sequence[str],
    under: str | Path | None,
) -> Filter:
    """Which items may be found, from what a user wrote; `folder` is that of the index."""
    wanted, unwanted = (
        tuple(
            _carried(store, facts, name)
            for name in check_labels([names] if isinstance(names, str) else names)
        )
        for names in (having, without)
    )
    if under is None:
        return Filter(wanted, unwanted)
    if not isinstance(under, str | Path) or not str(under):
        raise InputError(f"a folder of images is needed, got {under!r:.80}.")
    place = os.path.realpath(under).rstrip(os.sep) + os.sep
    # uploads are stored by paths from the index's own folder
    uploads = os.path.realpath(folder / IMAGES) + os.sep
    return Filter(wanted, unwanted, (place, f"{IMAGES}/") if uploads.startswith(place) else (place,))


def _carried(store: HammingIndex, facts: ModelFacts, name: str) -> str:
    """The label that a name means; the name itself where no item carries such a label."""
    if name in facts.classes:
        return name
    known = store.labels()
    return name if name in known else match(name, [*facts.classes, *known]) or name
