"""The approximate index, for more than ten million codes on one machine: a flat index that faiss helps to search.

The folder is that of a flat index, which can open it too: what is stored, removed and how it survives a power cut
is the flat index's matter. Every large segment gets a structure of faiss over its rows (MultiHash or HNSW). Segments
do not change, so neither do structures: a removed item is left out of what faiss proposes, and faiss' own removal,
which mixes up ids, is never used. Distances are counted again here, so that an answer may miss a neighbour
but never holds a wrong one. Where faiss proposes too few items, for one query or because of a label, the segment is
scanned exactly, as small segments always are.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Packed, check_bits
from centerhash.core.checksums import read_sealed, sealed
from centerhash.core.errors import ConfigError, DataError, OutputError, unknown_name
from centerhash.core.extras import require
from centerhash.core.files import write_json
from centerhash.search.engines import answers
from centerhash.search.engines.base import Filter, Hits
from centerhash.search.engines.flat import FlatIndex
from centerhash.search.engines.mapped import damage, map_arrays, write_arrays
from centerhash.search.engines.snapshot import Part

SETTINGS = "faiss.json"
LARGE = 1 << 19  # rows of a segment from which a structure is quicker than the scan
SPARE = 8  # items that faiss is asked for beyond k
MOST = 1 << 12  # items that faiss is asked for: where a filter would need more, the scan is quicker


@dataclass(frozen=True)
class MultiHash:
    """Look up parts of a code in hash tables; a neighbour must agree in one part, up to some flipped bits."""

    hashes: int
    hash_bits: int
    flips: int = 1

    @classmethod
    def fitting(cls, bits: int) -> MultiHash:
        """A choice for codes of `bits` bits: three parts of 21 bits for 64."""
        hash_bits = min(21, max(1, bits // 3))
        return cls(min(bits // hash_bits, 8), hash_bits)

    def check(self, bits: int) -> None:
        """Refuse parts that do not fit into the code."""
        if min(self.hashes, self.hash_bits) < 1 or self.hashes * self.hash_bits > bits:
            raise ConfigError(
                f"{self.hashes} hashes of {self.hash_bits} bits do not fit codes of {bits} bits: both are at least 1, "
                f"and their product at most {bits}."
            )
        if self.hash_bits > 63 or not 0 <= self.flips <= self.hash_bits:
            raise ConfigError(
                f"hash_bits is at most 63 and flips 0 to hash_bits, got {self.hash_bits} and {self.flips}."
            )

    def empty(self, bits: int) -> Any:
        """An empty structure for codes of `bits` bits, which faiss counts by eights."""
        structure = _faiss().IndexBinaryMultiHash(bits, self.hashes, self.hash_bits)
        structure.nflip = self.flips
        return structure


@dataclass(frozen=True)
class Hnsw:
    """Walk a graph of near neighbours: `links` for each item, `effort` items kept in view when searching."""

    links: int = 32
    build_effort: int = 40
    effort: int = 64

    @classmethod
    def fitting(cls, bits: int) -> Hnsw:
        """The same choice for codes of any length."""
        return cls()

    def check(self, bits: int) -> None:
        """Refuse graphs without links or effort."""
        if self.links < 2 or min(self.build_effort, self.effort) < 1:
            raise ConfigError(
                f"links is at least 2, build_effort and effort at least 1, got {self.links}, {self.build_effort} "
                f"and {self.effort}."
            )

    def empty(self, bits: int) -> Any:
        """An empty structure for codes of `bits` bits, which faiss counts by eights."""
        structure = _faiss().IndexBinaryHNSW(bits, self.links)
        structure.hnsw.efConstruction = self.build_effort
        structure.hnsw.efSearch = self.effort
        return structure


KINDS: Mapping[str, type[MultiHash] | type[Hnsw]] = {"multihash": MultiHash, "hnsw": Hnsw}


@cache
def _faiss() -> Any:
    """Import faiss, whose threads must not keep processors busy while they wait."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    return require("faiss")


@contextmanager
def _own_threads() -> Iterator[None]:
    """Let faiss use the processors that this process may use, and then as many as before."""
    from centerhash.core.compiled import processors

    faiss = _faiss()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(processors())
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def _settings(kind: str, bits: int, given: Mapping[str, int]) -> MultiHash | Hnsw:
    """The settings of a structure: those given, and fitting ones for the rest."""
    if kind not in KINDS:
        raise unknown_name("kind of faiss index", kind, KINDS)
    chosen = asdict(KINDS[kind].fitting(bits))
    for name, value in given.items():
        if name not in chosen:
            raise unknown_name(f"setting of {kind}", name, chosen)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(f"{name} is a whole number, got {value!r}.")
    settings = KINDS[kind](**{**chosen, **given})
    settings.check(bits)
    return settings


class _Structures:
    """The structures of the segments of one index: built once, kept in memory and in files beside the segments."""

    def __init__(self, folder: Path, bits: int, settings: MultiHash | Hnsw) -> None:
        self.folder, self.bits, self.settings = folder, bits, settings
        self._known: dict[tuple[str, int], Any] = {}
        self._unsaved: set[tuple[str, int]] = set()
        self._making = threading.Lock()

    def of(self, part: Part, parts: Sequence[Part]) -> Any:
        """The structure over the rows of one of the parts of an index: known, read or built."""
        key = (part.file, part.checksum)
        with self._making:
            if key not in self._known:
                self._forget_all_but(parts)
                stored = self._read(part)
                self._known[key] = self._built(part) if stored is None else stored
                if stored is None:
                    self._unsaved.add(key)
            return self._known[key]

    def save(self, parts: Sequence[Part]) -> None:
        """Write the structures of these parts that no file has, and forget and delete those of all other parts."""
        with self._making:
            needed = {(part.file, part.checksum): self._path(part) for part in parts}
            for key in self._unsaved & needed.keys():
                content = _faiss().serialize_index_binary(self._known[key])
                write_arrays(needed[key], {"structure": content})
            self._unsaved.clear()
            self._forget_all_but(parts)
            for path in set(self.folder.glob("segment-*.faiss")) - set(needed.values()):
                with suppress(OSError):  # nobody needs the file; the next writer tries again
                    path.unlink()

    def problems(self, parts: Sequence[Part]) -> list[str]:
        """What is wrong with the files of these parts."""
        found = (self._damage(part) for part in parts)
        return [reason for reason in found if reason is not None]

    def _forget_all_but(self, parts: Sequence[Part]) -> None:
        """Give back the memory of structures of segments that were replaced."""
        needed = {(part.file, part.checksum) for part in parts}
        self._known = {key: known for key, known in self._known.items() if key in needed}
        self._unsaved &= needed

    def _path(self, part: Part) -> Path:
        return self.folder / f"{Path(part.file).stem}-{part.checksum:08x}.faiss"

    def _damage(self, part: Part) -> str | None:
        path = self._path(part)
        try:
            return damage(path, map_arrays(path).checksum) if path.exists() else None
        except DataError as error:
            return str(error)

    def _read(self, part: Part) -> Any | None:
        """The structure in the file of a part, if there is one, it is sound and has these settings."""
        path = self._path(part)
        if not path.exists() or self._damage(part) is not None:
            return None  # what it says can be built again
        structure = _faiss().deserialize_index_binary(np.array(map_arrays(path).arrays["structure"]))
        fits = structure.ntotal == len(part.segment) and structure.code_size == part.segment.codes.shape[1]
        return structure if fits else None

    def _built(self, part: Part) -> Any:
        with _own_threads():
            structure = self.settings.empty(8 * part.segment.codes.shape[1])
            structure.add(np.asarray(part.segment.codes))
        return structure


class FaissIndex(FlatIndex):
    """An approximate index in a folder: may miss neighbours in `search`; all else is as exact as the flat index.

    Structures are built when they are first needed, and stored by a writer's `close`.
    After many small adds, `compact` makes one large segment, which is searched quicker than many.
    """

    exact = False
    _structures: _Structures

    @classmethod
    def create(cls, folder: str | Path, bits: int, kind: str = "multihash", **settings: int) -> Self:
        """Make an empty index, of the kind `multihash` or `hnsw`, and open it for writing.

        Settings, with those for 64 bits: hashes=3, hash_bits=21, flips=1 of multihash; links=32, build_effort=40,
        effort=64 of hnsw. More flips or effort find more neighbours in more time.
        """
        check_bits(bits)
        chosen = _settings(kind, bits, settings)
        index = super().create(folder, bits)
        index._structures = _Structures(index.folder, bits, chosen)
        try:
            write_json(index.folder / SETTINGS, sealed(_described(chosen)))
        except BaseException:
            index.close()
            raise
        return index

    @classmethod
    def open(cls, folder: str | Path, *, read_only: bool = False) -> Self:
        """Open an index as `FlatIndex.open` does."""
        index = super().open(folder, read_only=read_only)
        try:
            index._structures = _Structures(
                index.folder, index.bits, _read_settings(index.folder, index.bits)
            )
        except BaseException:
            FlatIndex.close(index)
            raise
        return index

    def verify(self) -> list[str]:
        """Check every checksum and name the damaged files; an empty list when the index is sound."""
        return super().verify() + self._structures.problems(self._large())

    def info(self) -> dict[str, Any]:
        """As `FlatIndex.info`, with the kind and settings of the structures."""
        return {**super().info(), **_described(self._structures.settings)}

    def close(self) -> None:
        """As `FlatIndex.close`; a writer stores the structures that it had to build."""
        try:
            if self._snapshot is not None and self._lock is not None:
                with suppress(OutputError):  # nothing is lost: the next one to search builds them again
                    self._structures.save(self._large())
        finally:
            super().close()

    def _large(self) -> list[Part]:
        return [part for part in self._now.sealed if part.count >= LARGE]

    def _search(self, packed: Packed, k: int, only: Filter) -> list[Hits]:
        parts = self._now.parts
        columns = [self._of_part(part, parts, packed, k, only) for part in parts]
        return [_nearest_of([column[query] for column in columns], k) for query in range(len(packed))]

    def _of_part(self, part: Part, parts: Sequence[Part], packed: Packed, k: int, only: Filter) -> list[Hits]:
        """The nearest items of one part, exact where that is quicker or faiss finds too few."""
        labels = only.having
        wanted = MOST + 1 if only != Filter(labels) else _to_ask_for(part, k, labels)
        if not part.file or part.count < LARGE or wanted > MOST:
            return answers.nearest([part], packed, self.bits, k, only)
        structure = self._structures.of(part, parts)
        with _own_threads():
            _, proposed = structure.search(np.ascontiguousarray(packed), min(wanted, len(part.segment)))
        found = [_ranked(part, code, rows, k, labels) for code, rows in zip(packed, proposed, strict=True)]
        short = [query for query, hits in enumerate(found) if len(hits) < k]
        exact = answers.nearest([part], packed[short], self.bits, k, only) if short else []
        for query, hits in zip(short, exact, strict=True):
            found[query] = hits
        return found


def _to_ask_for(part: Part, k: int, labels: Sequence[str]) -> int:
    """How many items to ask faiss for, so that k are likely to be left of them; more than MOST if none can be."""
    rows = len(part.segment)
    carrying = rows
    for label in labels:
        number = part.segment.label_numbers.get(label)
        carrying = 0 if number is None else min(carrying, len(part.segment.members[number]))
    share = part.count / rows * carrying / rows
    if share == 0:
        return MOST + 1
    return int((k + SPARE) / share * (2 if labels else 1))


def _ranked(part: Part, code: Packed, proposed: NDArray[np.int64], k: int, labels: Sequence[str]) -> Hits:
    """The k nearest of the rows that faiss proposes, by distances of our own, without what must not be there."""
    rows = np.unique(proposed[(proposed >= 0) & (proposed < len(part.segment))])
    if part.alive is not None:
        rows = rows[part.alive[rows] == 1]
    if labels:
        numbers = {part.segment.label_numbers[label] for label in labels}
        rows = rows[[numbers.issubset(part.segment.labels[row].tolist()) for row in rows.tolist()]]
    distances = np.bitwise_count(part.segment.codes[rows] ^ code).sum(axis=1, dtype=np.int64)
    order = np.argsort(distances, kind="stable")[:k]  # rows are in the order of ids
    return Hits(tuple(part.segment.ids.at(rows[order])), distances[order])


def _nearest_of(found: Sequence[Hits], k: int) -> Hits:
    """The k nearest of what all parts found."""
    if len(found) == 1:
        return found[0]
    merged = sorted((distance, id) for hits in found for id, distance in hits)[:k]
    return Hits(tuple(id for _, id in merged), np.array([distance for distance, _ in merged], np.int64))


def _described(settings: MultiHash | Hnsw) -> dict[str, Any]:
    kind = next(name for name, row in KINDS.items() if isinstance(settings, row))
    return {"kind": kind, "settings": asdict(settings)}


def _read_settings(folder: Path, bits: int) -> MultiHash | Hnsw:
    """The settings that an index was created with."""
    path = folder / SETTINGS
    try:
        stored = read_sealed(path)
        return _settings(stored["kind"], bits, stored["settings"])
    except FileNotFoundError:
        raise DataError(f"'{folder}' has no {SETTINGS}: it is a flat index, open it as one.") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"'{path}' is damaged: {error}. Restore it, or open the folder as a flat index."
        ) from None
