from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from centerhash.networks.tensors import load_tensors, save_tensors

TENSORS = {
    "matrix": torch.arange(6.0).reshape(2, 3).T,  # not contiguous
    "half": torch.ones(3, dtype=torch.bfloat16),
    "number": torch.tensor(3),
    "flags": torch.tensor([True, False]),
    "nothing": torch.empty(0, 4),
}


def test_tensors_come_back_with_what_was_said_of_them(tmp_path: Path) -> None:
    for name in ("one", "two"):
        save_tensors(tmp_path / name, TENSORS)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    save_tensors(tmp_path / "one", TENSORS, {"log": "[é]"})
    found, metadata = load_tensors(tmp_path / "one")
    assert metadata["log"] == "[é]"
    assert found.keys() == TENSORS.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in TENSORS.items())
    assert all(torch.equal(load_file(tmp_path / "one")[name], tensor) for name, tensor in TENSORS.items())


def test_a_file_without_checksums_is_rejected(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "file")
    with pytest.raises(ValueError, match="checksums"):
        load_tensors(tmp_path / "file")


def test_every_changed_byte_of_the_numbers_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    save_tensors(path, TENSORS, {"log": "[1]"})
    sound = path.read_bytes()
    for place in range(8 + int.from_bytes(sound[:8], "little"), len(sound)):
        path.write_bytes(sound[:place] + bytes([sound[place] ^ 1]) + sound[place + 1 :])
        with pytest.raises(ValueError, match="checksums"):
            load_tensors(path)


def test_a_changed_header_changes_no_number(tmp_path: Path) -> None:
    path = tmp_path / "file"
    save_tensors(path, TENSORS, {"log": "[1]"})
    sound = path.read_bytes()
    for place in range(8 + int.from_bytes(sound[:8], "little")):
        path.write_bytes(sound[:place] + bytes([sound[place] ^ 1]) + sound[place + 1 :])
        try:
            found, _ = load_tensors(path)
        except ValueError:
            continue
        assert found.keys() == TENSORS.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in TENSORS.items())
