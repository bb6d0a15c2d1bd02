"""What Milvus stores of an item, and the expressions that find it again.

Untrusted text never reaches an expression as it is: keys are hexadecimal, labels percent-encoded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

import numpy as np

from centerhash.core.errors import ConfigError, DataError, InputError, unknown_name
from centerhash.search.engines.base import MAX_ID_BYTES, Filter, Id, Item, Seen

CONSISTENCIES = ("Strong", "Bounded", "Session", "Eventually")
MAX_LABELS = 1_024  # of one item
MAX_LABEL_BYTES = 512  # in UTF-8
MAX_PATH_BYTES = 4_096
MAX_PARTS_BYTES = 65_535  # Milvus' own limit for a text

_MARK = "centerhash"  # the description of our collections
_ESCAPED = 3  # a percent-encoded byte takes three
_NO_PATH = "%"  # no percent-encoded text is this
_INSERT_ROWS = 500  # milvus-lite's time per request grows with the square of its rows
_INSERT_BYTES = 4 << 20  # far below the 64 MiB that a server takes

Row: TypeAlias = dict[str, Any]


def check_bits(bits: int) -> None:
    """Refuse lengths that Milvus' binary vectors do not have."""
    if bits < 8 or bits % 8:
        raise ConfigError(
            f"Milvus holds codes whose bits are a multiple of 8, got {bits}: use such a length, or the flat store."
        )


def check_collection(name: str) -> None:
    """Refuse names that Milvus does not take."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,254}", name):
        raise ConfigError(
            f"a Milvus collection is named with letters, digits and '_', and no digit first, got '{name}'."
        )


def check_consistency(level: str) -> None:
    """Refuse levels of consistency that Milvus does not know."""
    if level not in CONSISTENCIES:
        raise unknown_name("consistency", level, CONSISTENCIES)


def fits(id: Id) -> bool:
    """Whether an index may hold this id at all."""
    if isinstance(id, int):
        return -(2**63) <= id < 2**63
    return 1 <= len(id.encode("utf-8", "surrogatepass")) <= MAX_ID_BYTES


def key_of(id: Id) -> str:
    """The primary key of an id: hexadecimal, in the order of the ids, with its kind first."""
    if isinstance(id, int):
        return f"i{id + 2**63:016x}"
    return "s" + id.encode("utf-8", "surrogatepass").hex()


def id_of(key: str) -> Id:
    """The id of a primary key, the inverse of `key_of`."""
    if key[0] == "i":
        return int(key[1:], 16) - 2**63
    return bytes.fromhex(key[1:]).decode("utf-8", "surrogatepass")


def escaped(text: str) -> str:
    """Percent-encode a text, so that it has no quote, backslash or control character."""
    return quote(text.encode("utf-8", "surrogatepass"), safe=" /")


def unescaped(text: str) -> str:
    """The inverse of `escaped`."""
    return unquote(text, errors="surrogatepass")


def _fitting(text: str, what: str, most: int) -> str:
    """Percent-encode a text of at most `most` bytes."""
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > most:
        raise InputError(f"Milvus takes a {what} of up to {most:,} bytes, got {size:,}: '{text[:40]}...'.")
    return escaped(text)


def expression(only: Filter) -> str:
    """The expression for items that pass a filter."""
    terms = [f'ARRAY_CONTAINS(labels, "{escaped(label)}")' for label in only.having]
    terms += [f'not ARRAY_CONTAINS(labels, "{escaped(label)}")' for label in only.without]
    if only.under is not None:
        # what begins with "folder/" stands between it and "folder0", the next character
        ranges = [
            f'(path >= "{escaped(folder)}" and path < "{escaped(_after(folder))}")' for folder in only.under
        ]
        terms.append(f"({' or '.join(ranges)})" if ranges else 'id == ""')
    return " and ".join(terms)


def _after(folder: str) -> str:
    """The first text after all those that begin with `folder`."""
    return folder[:-1] + chr(ord(folder[-1]) + 1)


def insert_batches(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Cut rows into requests of a bounded number and size."""
    batch: list[Row] = []
    size = 0
    for row in rows:
        texts = (row["id"], row["code"], row["path"], row.get("parts", ""), *row["labels"])
        more = sum(map(len, texts))
        if batch and (len(batch) == _INSERT_ROWS or size + more > _INSERT_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(row)
        size += more
    if batch:
        yield batch


def any_of(keys: Sequence[str]) -> str:
    """The expression for the rows of these keys."""
    return "id in [" + ", ".join(f'"{key}"' for key in keys) + "]"


def row_of(
    id: Id,
    code: bytes,
    labels: Sequence[str],
    path: str | None,
    visual: bytes | None = None,
    seen: Seen | None = None,
) -> Row:
    """The row of one item, or InputError for labels and paths that do not fit."""
    parts = json.dumps([visual and visual.hex(), seen or {}])
    if len(parts) > MAX_PARTS_BYTES:
        raise InputError(f"Milvus takes presences of fewer labels than the {len(seen or {}):,} of one item.")
    if len(labels) > MAX_LABELS:
        raise InputError(f"Milvus takes up to {MAX_LABELS:,} labels per item, got {len(labels):,}.")
    return {
        "id": key_of(id),
        "code": code,
        "labels": [_fitting(label, "label", MAX_LABEL_BYTES) for label in labels],
        "path": _NO_PATH if path is None else _fitting(path, "path", MAX_PATH_BYTES),
        "parts": parts,
    }


def item_of(row: Row) -> Item:
    """The item of one row, the inverse of `row_of`."""
    path = None if row["path"] == _NO_PATH else unescaped(row["path"])
    code = np.frombuffer(row["code"][0], dtype=np.uint8)
    labels = tuple(unescaped(label) for label in row["labels"])
    looks, seen = json.loads(row.get("parts", "[null, {}]"))
    visual = None if looks is None else np.frombuffer(bytearray.fromhex(looks), dtype=np.uint8)
    pairs = {label: (presence, share) for label, (presence, share) in seen.items()}
    return Item(id_of(row["id"]), code, labels, path, visual, pairs)


def schema_of(bits: int) -> tuple[Any, Any]:
    """The fields of a collection of codes of `bits` (K) bits, and its index."""
    from pymilvus import DataType, MilvusClient

    schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False, description=_MARK)
    schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=2 * MAX_ID_BYTES + 1)
    schema.add_field("code", DataType.BINARY_VECTOR, dim=bits)
    schema.add_field(
        "labels",
        DataType.ARRAY,
        element_type=DataType.VARCHAR,
        max_capacity=MAX_LABELS,
        max_length=_ESCAPED * MAX_LABEL_BYTES,
    )
    schema.add_field("path", DataType.VARCHAR, max_length=_ESCAPED * MAX_PATH_BYTES)
    schema.add_field("parts", DataType.VARCHAR, max_length=MAX_PARTS_BYTES)
    index = MilvusClient.prepare_index_params()
    index.add_index("code", index_type="BIN_FLAT", metric_type="HAMMING")
    return schema, index


def bits_of(description: Row, collection: str) -> tuple[int, bool]:
    """The number of bits K of a collection and whether it holds all parts of an item; DataError if it is not ours."""
    fields = {field["name"]: field for field in description["fields"]}
    if description.get("description") != _MARK or fields.keys() - {"parts"} != {
        "id",
        "code",
        "labels",
        "path",
    }:
        raise DataError(
            f"the collection '{collection}' is not an index of centerhash: choose another, or create one."
        )
    return int(fields["code"]["params"]["dim"]), "parts" in fields
