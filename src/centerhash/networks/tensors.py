"""Tensors in a safetensors file, with a checksum of each in its metadata. Nothing is ever unpickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from centerhash.core.files import atomic, parse_json

# The metadata with the checksums by name.
CHECKSUMS = "checksums"


def _checksums(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> dict[str, int]:
    """Checksums by name, also of the metadata."""
    of_tensors = {}
    for name, tensor in tensors.items():
        facts = f"{name} {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
        content: Any = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
        of_tensors[name] = crc32(content, crc32(facts.encode()))
    texts = {f"#{name}": crc32(text.encode()) for name, text in metadata.items() if name != CHECKSUMS}
    return dict(sorted({**of_tensors, **texts}.items()))


def save_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors by name, whole or not at all."""
    plain = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    texts = dict(metadata or {})
    with atomic(path) as stream:
        stream.write(save(plain, {**texts, CHECKSUMS: json.dumps(_checksums(plain, texts))}))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read what `save_tensors` wrote, and the metadata; ValueError if something does not match its checksum."""
    try:
        with safe_open(path, framework="pt") as stored:
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118  # not a mapping
            metadata = dict(stored.metadata() or {})
    except SafetensorError as error:
        raise ValueError(str(error)) from None
    if parse_json(metadata.get(CHECKSUMS, "null")) != _checksums(tensors, metadata):
        raise ValueError(f"the numbers in {path.name} do not match their checksums")
    return tensors, metadata
