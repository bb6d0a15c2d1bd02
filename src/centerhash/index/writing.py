"""Changes of an index: each is one commit, or part of the commit of the transaction around it.

They read and rewrite whole chunks of columns through a snapshot of the store, and load no column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from centerhash.index.items import LEVELS, LabelScores, attribute_column
from centerhash.index.store import CARRIED, CHUNK_ROWS, LABELS, Flag, LabelChunk, Snapshot, Store, insert


def add(store: Store, columns: Mapping[str, Any], *, replace: bool = False) -> int:
    """Add N items and return how many were added; those of stored ids are skipped, or replaced with `replace`.

    `columns` are `ids` (by default numbers), `labels`, `scores`, and by the names of the store `semantic`, `general` and
    attributes, texts among them as objects. A column may be None; a general code of zeros is a missing one.
    """
    with store.changing() as snapshot:
        first, count = snapshot.meta.next_number, len(columns["semantic"])
        ids = columns.get("ids") or [str(number) for number in range(first, first + count)]
        defaults: dict[str, Any] = {"labels": [()] * count, "scores": [{}] * count}
        if (dtype := store.columns.get("general")) is not None:
            defaults["general"] = np.zeros(count, dtype)
        columns = defaults | {name: column for name, column in columns.items() if column is not None}
        stored = snapshot.keys(ids, thorough=False) if snapshot.meta.items else {}
        if replace:
            _set_flag(snapshot, list(stored.values()), Flag.REMOVED, True)
        elif stored:
            is_new = [id not in stored for id in ids]
            ids = list(compress(ids, is_new))
            columns = {
                name: column[is_new] if isinstance(column, np.ndarray) else list(compress(column, is_new))
                for name, column in columns.items()
            }
        if ids:
            _append(snapshot, ids, columns)
        return len(ids)


def _append(snapshot: Snapshot, ids: Sequence[str], columns: Mapping[str, Any]) -> None:
    """Append the rows of new items to the columns, chunk by chunk."""
    first, end = snapshot.meta.rows, snapshot.meta.rows + len(ids)
    keys = range(snapshot.meta.next_key, snapshot.meta.next_key + len(ids))
    stored = _stored_columns(snapshot, columns, keys)
    entries = _label_entries(snapshot, columns["labels"], columns["scores"], first)
    for chunk in range(first // CHUNK_ROWS, -(-end // CHUNK_ROWS)):
        top, bottom = max(chunk * CHUNK_ROWS, first), min((chunk + 1) * CHUNK_ROWS, end)
        is_new = top == chunk * CHUNK_ROWS
        for name, values in stored.items():
            old = b"" if is_new else snapshot.chunk(name, chunk).tobytes()
            snapshot.write(name, chunk, old + values[top - first : bottom - first].tobytes())
        added = entries[:, slice(*np.searchsorted(entries[0], (top, bottom)).tolist())]
        if not is_new:
            added = np.hstack([snapshot.chunk(LABELS, chunk).entries(chunk), added])
        snapshot.write(LABELS, chunk, LabelChunk.of(added).to_bytes())
    insert(snapshot.connection, "items", list(zip(keys, ids, strict=True)))
    numbers = (int(id) for id in ids if id.isascii() and id.isdecimal() and len(id) < 19)
    snapshot.meta = snapshot.meta._replace(
        rows=end,
        items=snapshot.meta.items + len(ids),
        next_key=keys.stop,
        next_number=max(snapshot.meta.next_number, 1 + max(numbers, default=-1)),
    )


def _stored_columns(snapshot: Snapshot, columns: Mapping[str, Any], keys: range) -> dict[str, Any]:
    """Return the columns of new items as they are stored; store new texts of attributes."""
    stored = {**columns, "key": np.array(keys)}
    flags = Flag.NO_SCORES * np.array([not row for row in columns["scores"]], np.uint8)
    if "general" in columns:
        flags |= Flag.NO_GENERAL * (~columns["general"].any(axis=1)).astype(np.uint8)
    stored["flags"] = flags
    for name, kind in snapshot.store.facts.attributes.items():
        if kind is str:
            values = columns[attribute_column(name)].tolist()
            numbers = snapshot.add_texts(name, [text for text in values if text is not None])
            column = [0 if text is None else numbers[text] + 1 for text in values]
            stored[attribute_column(name)] = np.array(column)
    types = snapshot.store.columns
    return {name: stored[name].astype(dtype.base, copy=False) for name, dtype in types.items()}


def _label_entries(
    snapshot: Snapshot, labels: Sequence[Sequence[str]], scores: Sequence[LabelScores], first_row: int
) -> NDArray[np.uint32]:
    """Return the entries (4, n) of the labels that items carry, and of their scores; store new labels."""
    names = {name: None for row in (*labels, *scores) for name in row}
    numbers = snapshot.add_texts("", list(names))
    entries = list[int]()
    for row, (carried, scores_of_row) in enumerate(zip(labels, scores, strict=True), first_row):
        for name in carried:
            entries += (row, numbers[name] + CARRIED, LEVELS, 0)
        for name, (probability, share) in scores_of_row.items():
            entries += (row, numbers[name], probability, share)
    return np.array(entries, "<u4").reshape(-1, 4).T.copy()


def _set_flag(snapshot: Snapshot, keys: Sequence[int], flag: int, is_set: bool) -> int:
    """Set or clear a flag of items and return the number of items that this has changed."""
    rows, changed, hidden = snapshot.require_rows(keys), 0, 0
    for chunk in np.unique(rows // CHUNK_ROWS).tolist():
        flags = snapshot.chunk("flags", chunk).copy()
        positions = rows[rows // CHUNK_ROWS == chunk] % CHUNK_ROWS
        before = flags[positions]
        flags[positions] = before | flag if is_set else before & ~np.uint8(flag)
        changed += int(np.count_nonzero(before != flags[positions]))
        hidden += int(np.count_nonzero(before & Flag.HIDDEN))
        snapshot.write("flags", chunk, flags.tobytes())
    meta = snapshot.meta
    if flag == Flag.REMOVED:
        snapshot.connection.executemany("DELETE FROM items WHERE key = ?", ((key,) for key in keys))
        snapshot.meta = meta._replace(items=meta.items - changed, hidden=meta.hidden - hidden)
    else:
        snapshot.meta = meta._replace(hidden=meta.hidden + (changed if is_set else -changed))
    return changed


def remove(store: Store, ids: Sequence[str]) -> int:
    """Remove items and return how many were stored; their rows stay until `compact`."""
    with store.changing() as snapshot:
        return _set_flag(snapshot, list(snapshot.keys(ids).values()), Flag.REMOVED, True)


def set_hidden(store: Store, ids: Sequence[str], hidden: bool) -> int:
    """Hide items or show them again; return the number of items that this has changed."""
    with store.changing() as snapshot:
        return _set_flag(snapshot, list(snapshot.require_keys(ids).values()), Flag.HIDDEN, hidden)


def compact(store: Store) -> None:
    """Drop the rows of removed items and return their space to the disk; keys do not change."""
    with store.changing() as snapshot:
        flags = snapshot.span("flags", range(snapshot.chunk_count))
        rows = np.flatnonzero(flags & Flag.REMOVED == 0)
        if len(rows) == snapshot.meta.rows:
            return
        for chunk, start in enumerate(range(0, len(rows), CHUNK_ROWS)):
            # These rows are in this chunk or later ones, so no chunk is read that has been written.
            selected = rows[start : start + CHUNK_ROWS]
            for name in store.columns:
                snapshot.write(name, chunk, snapshot.gather(name, selected).tobytes())
            parts = []
            for old in range(int(selected[0]) // CHUNK_ROWS, int(selected[-1]) // CHUNK_ROWS + 1):
                entries = snapshot.chunk(LABELS, old).entries(old)
                parts.append(entries.compress(np.isin(entries[0], selected), axis=1))
            kept = np.hstack(parts)
            kept[0] = np.searchsorted(selected, kept[0])
            snapshot.write(LABELS, chunk, LabelChunk.of(kept).to_bytes())
        snapshot.connection.execute("DELETE FROM chunks WHERE chunk >= ?", (-(-len(rows) // CHUNK_ROWS),))
        snapshot.meta = snapshot.meta._replace(rows=len(rows))
    store.shrink()
