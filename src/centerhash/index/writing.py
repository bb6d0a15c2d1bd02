"""Changes of an index: each is one commit, or part of that of the transaction around it.

All read and rewrite whole chunks of columns through a snapshot of the store, and load nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Any

import numpy as np

from centerhash.index.items import LEVELS, LabelScores, attribute_column
from centerhash.index.store import (
    CARRIED,
    CHUNK_ROWS,
    LABELS,
    Entries,
    Flag,
    Part,
    Snapshot,
    Store,
    insert,
)


def add(store: Store, given: Mapping[str, Any], *, replace: bool = False) -> int:
    """Add items and return how many; those of known ids are skipped, or replaced if asked.

    `given` has columns of N items, or None: `ids`, by default numbers, `labels`, `scores`, and by the names of the store
    `semantic`, `general` and attributes, texts among them as objects. A general code of zeros is a missing one.
    """
    with store.changing() as snapshot:
        first, count = snapshot.meta.next_number, len(given["semantic"])
        ids = given["ids"] or [str(number) for number in range(first, first + count)]
        defaults: dict[str, Any] = {"labels": [()] * count, "scores": [{}] * count}
        if (general := store.columns.get("general")) is not None:
            defaults["general"] = np.zeros(count, general)
        given = defaults | {name: column for name, column in given.items() if column is not None}
        known = snapshot.keys(ids, thorough=False) if snapshot.meta.items else {}
        if replace:
            _flag(snapshot, list(known.values()), Flag.REMOVED, True)
        elif known:
            is_new = [id not in known for id in ids]
            ids = list(compress(ids, is_new))
            given = {
                name: column[is_new] if isinstance(column, np.ndarray) else list(compress(column, is_new))
                for name, column in given.items()
            }
        if ids:
            _append(snapshot, ids, given)
        return len(ids)


def _append(snapshot: Snapshot, ids: Sequence[str], given: Mapping[str, Any]) -> None:
    first, count = snapshot.meta.rows, len(ids)
    end, keys = first + count, range(snapshot.meta.next_key, snapshot.meta.next_key + count)
    columns, entries = _columns(snapshot, given, keys), _entries(snapshot, given["labels"], given["scores"])
    for chunk in range(first // CHUNK_ROWS, -(-end // CHUNK_ROWS)):
        top, bottom = max(chunk * CHUNK_ROWS, first), min((chunk + 1) * CHUNK_ROWS, end)
        is_new, selected = top == chunk * CHUNK_ROWS, slice(top - first, bottom - first)
        for name, values in columns.items():
            before = b"" if is_new else snapshot.chunk(name, chunk).tobytes()
            snapshot.write(name, chunk, before + values[selected].tobytes())
        added = entries.take(slice(*np.searchsorted(entries.rows, (selected.start, selected.stop)).tolist()))
        parts = [] if is_new else [snapshot.chunk(LABELS, chunk).entries()]
        parts.append(added._replace(rows=added.rows + (first - chunk * CHUNK_ROWS)))
        snapshot.write(LABELS, chunk, Part.of(parts).to_bytes())
    insert(snapshot.sql, "items", list(zip(keys, ids, strict=True)))
    numbers = (int(id) for id in ids if id.isascii() and id.isdecimal() and len(id) < 19)
    snapshot.meta = snapshot.meta._replace(
        rows=end,
        items=snapshot.meta.items + count,
        next_key=keys.stop,
        next_number=max(snapshot.meta.next_number, 1 + max(numbers, default=-1)),
    )


def _columns(snapshot: Snapshot, given: Mapping[str, Any], keys: range) -> dict[str, Any]:
    """Return the columns of new items as they are stored; new texts of attributes are stored."""
    columns = {**given, "key": np.array(keys)}
    flags = Flag.NO_SCORES * np.array([not row for row in given["scores"]], np.uint8)
    if "general" in columns:
        flags |= Flag.NO_GENERAL * (~columns["general"].any(axis=1)).astype(np.uint8)
    for name, kind in snapshot.store.facts.attributes.items():
        if kind is str:
            values = given[attribute_column(name)].tolist()
            texts = snapshot.add_texts(name, [text for text in values if text is not None])
            columns[attribute_column(name)] = np.array(
                [0 if text is None else texts[text] + 1 for text in values]
            )
    columns["flags"] = flags
    types = snapshot.store.columns
    return {name: columns[name].astype(dtype.base, copy=False) for name, dtype in types.items()}


def _entries(snapshot: Snapshot, labels: Sequence[Sequence[str]], scores: Sequence[LabelScores]) -> Entries:
    """Return the entries of the labels that items carry, and of their scores; new labels are stored."""
    names = {name: None for row in (*labels, *scores) for name in row}
    numbers = snapshot.add_texts("", list(names))
    flat = list[int]()
    for row, (carried, of_row) in enumerate(zip(labels, scores, strict=True)):
        for name in carried:
            flat += (row, numbers[name] + CARRIED, LEVELS, 0)
        for name, (probability, share) in of_row.items():
            flat += (row, numbers[name], probability, share)
    columns = np.array(flat, np.int64).reshape(-1, 4).T
    types = ("<i8", "<u4", "u1", "u1")
    return Entries(*(column.astype(of) for column, of in zip(columns, types, strict=True)))


def _flag(snapshot: Snapshot, keys: Sequence[int], flag: int, is_set: bool) -> int:
    """Set or clear a flag of items; return of how many it has changed."""
    rows, changed, hidden = snapshot.rows_of_items(keys), 0, 0
    for chunk in np.unique(rows // CHUNK_ROWS).tolist():
        flags = snapshot.chunk("flags", chunk).copy()
        places = rows[rows // CHUNK_ROWS == chunk] % CHUNK_ROWS
        before = flags[places]
        flags[places] = before | flag if is_set else before & ~np.uint8(flag)
        changed += int(np.count_nonzero(before != flags[places]))
        hidden += int(np.count_nonzero(before & Flag.HIDDEN))
        snapshot.write("flags", chunk, flags.tobytes())
    meta = snapshot.meta
    if flag == Flag.REMOVED:
        snapshot.sql.executemany("DELETE FROM items WHERE key = ?", ((key,) for key in keys))
        snapshot.meta = meta._replace(items=meta.items - changed, hidden=meta.hidden - hidden)
    else:
        snapshot.meta = meta._replace(hidden=meta.hidden + (changed if is_set else -changed))
    return changed


def remove(store: Store, ids: Sequence[str]) -> int:
    """Remove items and return how many were stored; their rows stay until `compact`."""
    with store.changing() as snapshot:
        return _flag(snapshot, list(snapshot.keys(ids).values()), Flag.REMOVED, True)


def set_hidden(store: Store, ids: Sequence[str], hidden: bool) -> int:
    """Hide items or show them again; return of how many this has changed."""
    with store.changing() as snapshot:
        return _flag(snapshot, list(snapshot.known_keys(ids).values()), Flag.HIDDEN, hidden)


def compact(store: Store) -> None:
    """Drop the rows of removed items and give their space back; keys stay as they are."""
    with store.changing() as snapshot:
        rows = np.flatnonzero(snapshot.span("flags", range(snapshot.chunks)) & Flag.REMOVED == 0)
        if len(rows) == snapshot.meta.rows:
            return
        for chunk, start in enumerate(range(0, len(rows), CHUNK_ROWS)):
            # of no earlier chunk than this one, so that none is read which has been written
            selected = rows[start : start + CHUNK_ROWS]
            read = range(int(selected[0]) // CHUNK_ROWS, int(selected[-1]) // CHUNK_ROWS + 1)
            for name in store.columns:
                snapshot.write(name, chunk, snapshot.gather(name, selected).tobytes())
            parts = []
            for old in read:
                entries = snapshot.chunk(LABELS, old).entries()
                stored = entries.rows + np.int64(old * CHUNK_ROWS)
                places = np.searchsorted(selected, stored)
                parts.append(entries._replace(rows=places).take(np.isin(stored, selected)))
            snapshot.write(LABELS, chunk, Part.of(parts).to_bytes())
        snapshot.sql.execute("DELETE FROM chunks WHERE chunk >= ?", (-(-len(rows) // CHUNK_ROWS),))
        snapshot.meta = snapshot.meta._replace(rows=len(rows))
    store.shrink()
