"""The taught labels of an index: teaching them, suggesting further examples, listing, moving between indexes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from centerhash.codes import pack
from centerhash.core.errors import ConfigError, DataError, InputError, unknown_name
from centerhash.core.files import parse_json, write_json
from centerhash.search.rankings import ByProbability
from centerhash.search.results import Result, add_taught, as_result
from centerhash.search.teaching import (
    MAX_TAUGHT,
    OTHERS,
    Example,
    Taught,
    check_name,
    from_file,
    learn,
    to_file,
    with_examples,
)

if TYPE_CHECKING:
    from centerhash.search.index import Index

IdsOrPaths: TypeAlias = str | Path | Sequence[str | Path]

MAX_FILE_BYTES = 1 << 28
MAX_SUGGESTED = 1000
_UNCERTAIN = 0.5


@dataclass(frozen=True)
class TaughtLabel:
    """A taught label as users see it: ids of its examples, and the number of items that carry it."""

    name: str
    like: tuple[str, ...]
    unlike: tuple[str, ...]
    items: int

    def to_dict(self) -> dict[str, Any]:
        """Return its fields."""
        return {**vars(self), "like": list(self.like), "unlike": list(self.unlike)}


@dataclass(frozen=True)
class Suggestions:
    """Items to confirm or reject as examples of a taught label: the likeliest, and the most uncertain others."""

    name: str
    likely: list[Result]
    uncertain: list[Result]

    def to_dict(self) -> dict[str, Any]:
        """Return its fields."""
        rows = {"likely": self.likely, "uncertain": self.uncertain}
        return {"name": self.name, **{kind: [row.to_dict() for row in found] for kind, found in rows.items()}}


class TaughtLabels:
    """The taught labels of one index."""

    def __init__(self, index: Index) -> None:
        self.index, self.store = index, index.store

    def all(self) -> dict[str, TaughtLabel]:
        """Return all of them by name."""
        labels = self.store.taught()
        counts = self.store.labels() if labels else {}
        return {
            name: TaughtLabel(
                name, one.example_ids(like=True), one.example_ids(like=False), counts.get(name, 0)
            )
            for name, one in labels.items()
        }

    def teach(self, name: str, like: IdsOrPaths, unlike: IdsOrPaths) -> TaughtLabel:
        """Add examples to a new or known label, learn it and store it."""
        with self.index.writing() as store:
            labels = self.store.taught()
            name = self._known(name, labels) or self._new(name, labels)
            new = self._examples(like, unlike)
            examples = with_examples(labels[name].examples if name in labels else (), new)
            others = self.store.sample_codes(OTHERS, [one.id for one in examples])
            store.save_taught({name: learn(examples, others, self.store.bits, len(self.store))})
        return self.all()[name]

    def _examples(self, like: IdsOrPaths, unlike: IdsOrPaths) -> list[Example]:
        """Return the items that ids, paths or folders mean as examples."""
        sides: dict[str, bool] = {}
        for entries, side in ((like, True), (unlike, False)):
            for entry, ids in self.index.find(entries).items():
                if not ids:
                    raise InputError(f"'{entry}' is neither an id nor a path of this index: add it first.")
                for id in ids:
                    if sides.setdefault(id, side) != side:
                        raise InputError(f"the item '{id}' is in both `like=` and `unlike=`: name it once.")
        if not sides:
            raise InputError("no examples were given: name items in `like=` or `unlike=`.")
        return [
            Example(
                item.id,
                sides[item.id],
                item.code.tobytes(),
                None if item.visual is None else item.visual.tobytes(),
            )
            for item in self.store.get(list(sides))
        ]

    def _known(self, name: str, labels: Mapping[str, Taught]) -> str | None:
        """Return the taught label of this name, in any case."""
        check_name(name)
        folded = {known.casefold(): known for known in labels}
        return name if name in labels else folded.get(name.casefold())

    def _get(self, name: str) -> str:
        labels = self.store.taught()
        known = self._known(name, labels)
        if known is None:
            raise (
                unknown_name("taught label", name, labels)
                if labels
                else InputError(
                    f"unknown taught label '{name}': this index has none. Teach one by examples first."
                )
            )
        return known

    def _new(self, name: str, labels: Mapping[str, Taught]) -> str:
        """Return the name of a label that is not there yet, or raise ConfigError."""
        check_name(name)
        for known in (*self.index.model_info.classes, *self.store.labels()):
            if known.casefold() == name.casefold():
                raise ConfigError(f"there is a label '{known}' already: choose another name.")
        if len(labels) >= MAX_TAUGHT:
            raise ConfigError(f"an index has at most {MAX_TAUGHT:,} taught labels: forget one first.")
        return name

    def suggest(self, name: str, k: int) -> Suggestions:
        """Return k items that are no examples yet, half of them the likeliest, half the most uncertain."""
        if type(k) is not int or not 1 <= k <= MAX_SUGGESTED:
            raise InputError(f"k must be a whole number from 1 to {MAX_SUGGESTED:,}, got {k!r}.")
        name = self._get(name)
        label = self.store.taught()[name]
        code = pack(label.center[None])[0]
        taken = {one.id for one in label.examples}
        found: dict[float, list[Result]] = {}
        for target, count in ((1.0, k - k // 2), (_UNCERTAIN, k // 2)):
            hits = self.store.search(ByProbability(code, name, target), count + len(taken))
            fresh = [(item, distance) for item, distance in hits if item.id not in taken][:count]
            taken |= {item.id for item, _ in fresh}
            results = [
                as_result(item, distance, self.index.uploads, None, [name]) for item, distance in fresh
            ]
            found[target] = add_taught(results, [item for item, _ in fresh], {name: label}, [name])
        return Suggestions(name, found[1.0], found[_UNCERTAIN])

    def rename(self, name: str, new: str) -> None:
        """Rename a label."""
        with self.index.writing() as store:
            labels, name = self.store.taught(), self._get(name)
            if name.casefold() != check_name(new).casefold():
                self._new(new, labels)
            store.save_taught({name: None, new: labels[name]})

    def forget(self, name: str) -> None:
        """Remove a label."""
        with self.index.writing() as store:
            store.save_taught({self._get(name): None})

    def export(self, path: Path) -> int:
        """Write all labels into a json file, atomically."""
        labels = self.store.taught()
        if not labels:
            raise InputError("this index has no taught labels to export: teach one by examples first.")
        write_json(path, to_file(labels, self._digest, self.store.bits))
        return len(labels)

    @property
    def _digest(self) -> str:
        """Return what identifies the codes: the digest of the model, or "" for codes of other programs."""
        return self.index.model.digest if self.index.spec.model else ""

    def content(self) -> bytes:
        """Return all labels as `export` writes them."""
        return json.dumps(to_file(self.store.taught(), self._digest, self.store.bits)).encode()

    def adopt(self, content: bytes, path: Path) -> set[str]:
        """Add the labels that came with the codes in a file, and return those of their names that are taught labels now.

        A label that is known stays as it is. Labels of another model are not added.
        """
        try:
            if parse_json(content.decode()).get("model") != self._digest:
                return set()
            labels = from_file(content.decode(), self._digest, self.store.bits)
        except (ValueError, TypeError, AttributeError) as error:
            raise DataError(f"cannot import the taught labels in '{path}': {error!s:.200}.") from None
        with self.index.writing() as store:
            known = self.store.taught()
            plain = {name.casefold() for name in (*self.index.model_info.classes, *self._stored_labels())}
            new = {
                name: label
                for name, label in labels.items()
                if self._known(name, known) is None and name.casefold() not in plain
            }
            if new:
                store.save_taught(new)
        return {name for name in labels if name in new or name in known}

    def _stored_labels(self) -> set[str]:
        """Return the labels that items carry and that are not taught."""
        return self.store.labels().keys() - self.store.taught().keys()

    def import_(self, path: Path) -> list[str]:
        """Add the labels of a file; none of them if one of their names is taken."""
        try:
            with path.open("rb") as stream:
                content = stream.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            raise DataError(f"cannot read '{path}': {error.strerror or error}.") from None
        try:
            if len(content) > MAX_FILE_BYTES:
                raise ValueError(f"it is larger than {MAX_FILE_BYTES:,} bytes")
            labels = from_file(content.decode(), self._digest, self.store.bits)
        except (ValueError, TypeError) as error:
            raise DataError(f"cannot import the taught labels in '{path}': {error!s:.200}.") from None
        with self.index.writing() as store:
            known = self.store.taught()
            for name in labels:
                if self._known(name, known) is not None:
                    raise ConfigError(f"there is a taught label '{name}' already: rename or forget it first.")
                known = {**known, self._new(name, known): labels[name]}  # so that their number is limited too
            store.save_taught(dict(labels))
        return sorted(labels)
