from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from centerhash.core.errors import DataError
from centerhash.core.files import check_budget, read_npz


def announced(path: Path, shape: str, values: bytes) -> Path:
    """An .npz file of one array of bytes that announces a shape."""
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    header = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("codes.npy", header + values)
    return path


def test_the_budget_is_of_the_files_size(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"123")
    check_budget(file, 2**30, "it", "")
    with pytest.raises(DataError) as caught:
        check_budget(file, 38 * 10**8, "its table", "Copy it again.")
    assert str(caught.value) == (
        f"'{file}': its table would take 3.8 GB of memory, but a file of its size may take 1.1 GB. Copy it again."
    )


@pytest.mark.parametrize("shape", ["(1000000000000,)", "(200,)", "(99999999999999999999999,)"])
def test_arrays_that_announce_more_than_there_is(tmp_path: Path, shape: str) -> None:
    file = announced(tmp_path / "a.npz", shape, b"1234")
    with pytest.raises(DataError, match=r"announces the shape .* but has fewer values"):
        read_npz(file)
    assert read_npz(announced(tmp_path / "b.npz", "(4,)", b"1234"))["codes"].tolist() == list(b"1234")


def test_arrays_of_zeros_that_are_much_larger_than_their_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("centerhash.core.files.ALWAYS", 10**6)
    stream = io.BytesIO()
    np.savez_compressed(stream, codes=np.zeros(10**7, np.uint8))
    (tmp_path / "a.npz").write_bytes(stream.getvalue())
    with pytest.raises(DataError, match=r"its arrays would take 10\.0 MB of memory, but"):
        read_npz(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", codes=np.zeros(10**7, np.uint8))  # as large as it says
    assert read_npz(tmp_path / "b.npz")["codes"].size == 10**7
