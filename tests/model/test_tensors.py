from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from centerhash.model.model import load_tensors, save_tensors

TENSORS = {
    "matrix": torch.arange(6.0).reshape(2, 3).T,  # not contiguous
    "half": torch.ones(3, dtype=torch.bfloat16),
    "number": torch.tensor(3),
    "flags": torch.tensor([True, False]),
    "nothing": torch.empty(0, 4),
}


def test_save_and_load_tensors(tmp_path: Path) -> None:
    for name in ("one", "two"):
        save_tensors(tmp_path / name, TENSORS)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    save_tensors(tmp_path / "one", TENSORS, {"log": "[é]"})
    tensors, metadata = load_tensors(tmp_path / "one")
    assert metadata["log"] == "[é]"
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], tensor) for name, tensor in TENSORS.items())
    assert all(torch.equal(load_file(tmp_path / "one")[name], tensor) for name, tensor in TENSORS.items())


def test_load_tensors_without_checksums(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "file")
    with pytest.raises(ValueError, match="checksums"):
        load_tensors(tmp_path / "file")


def test_load_tensors_with_changed_bytes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    save_tensors(path, TENSORS, {"log": "[1]"})
    sound = path.read_bytes()
    for position in range(len(sound)):
        path.write_bytes(sound[:position] + bytes([sound[position] ^ 1]) + sound[position + 1 :])
        try:
            tensors, _ = load_tensors(path)
        except ValueError:
            continue
        assert position < 8 + int.from_bytes(sound[:8], "little"), "a changed number was not noticed"
        assert tensors.keys() == TENSORS.keys()
        assert all(torch.equal(tensors[name], tensor) for name, tensor in TENSORS.items())
