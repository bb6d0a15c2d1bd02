"""Checksums of what is stored as json or as named tensors, kept inside the same file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

from centerhash.core.files import parse_json

CHECKSUM = "checksum"  # of all other fields of a json object
CHECKSUMS = "checksums"  # of tensors by name, in the metadata of their file


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """A json object with a checksum of itself."""
    return {**value, CHECKSUM: _json_checksum(value)}


def unsealed(value: Any, what: str) -> dict[str, Any]:
    """The json object without its checksum, or ValueError where that does not match; it may have none."""
    if not isinstance(value, dict):
        raise ValueError(f"{what} is no json object")
    rest = {name: part for name, part in value.items() if name != CHECKSUM}
    if CHECKSUM in value and value[CHECKSUM] != _json_checksum(rest):
        raise ValueError(f"{what} does not match its checksum")
    return rest


def read_sealed(path: Path) -> dict[str, Any]:
    """The json object in a file, as `unsealed` gives it."""
    return unsealed(parse_json(path.read_text(encoding="utf-8")), path.name)


def _json_checksum(value: Mapping[str, Any]) -> int:
    return crc32(json.dumps(value, sort_keys=True).encode())


def tensor_checksum(name: str, dtype: object, shape: Sequence[int], content: Any) -> int:
    """The checksum of a tensor's bytes with its name, type and shape, as torch or numpy call the type."""
    return crc32(content, crc32(f"{name} {str(dtype).removeprefix('torch.')} {list(shape)}".encode()))


def stored_checksums(metadata: Mapping[str, str] | None) -> dict[str, int] | None:
    """The checksums of tensors in the metadata of their file; None in a file of earlier versions."""
    text = (metadata or {}).get(CHECKSUMS)
    return None if text is None else dict(json.loads(text))
