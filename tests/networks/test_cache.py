from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from centerhash.core.errors import OutputError
from centerhash.networks.cache import ArrayCache, default_cache

ARRAYS = np.arange(6, dtype=np.float16).reshape(2, 3)


def test_write_and_read(tmp_path: Path) -> None:
    cache = ArrayCache(tmp_path, 3, np.float16)
    assert cache.available(["a", "b"]) == set()
    cache.write(["a", "b"], ARRAYS)
    cache.write(["c"], 2 * ARRAYS[:1])
    for opened in (cache, ArrayCache(tmp_path, 3, np.float16)):
        assert opened.available(["c", "x", "a"]) == {"a", "c"}
        assert np.array_equal(opened.read(["c", "b", "c"]), [2 * ARRAYS[0], ARRAYS[1], 2 * ARRAYS[0]])
        assert opened.read([]).shape == (0, 3)


def test_equal_keys_are_one_file(tmp_path: Path) -> None:
    for _ in range(2):
        ArrayCache(tmp_path, 3, np.float16).write(["a", "b"], ARRAYS)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("suffix", [".npy", ".txt"])
@pytest.mark.parametrize("damage", ["cut", "empty", "flipped", "gone"])
def test_damaged_shard_is_dropped(tmp_path: Path, suffix: str, damage: str) -> None:
    ArrayCache(tmp_path, 3, np.float16).write(["a", "b"], ARRAYS)
    ArrayCache(tmp_path, 3, np.float16).write(["c"], ARRAYS[:1])
    victim = next(path for path in tmp_path.glob("*.txt") if "a" in path.read_text().split())
    victim = victim.with_suffix(suffix)
    content = victim.read_bytes()
    if damage == "gone":
        victim.unlink()
    else:
        flipped = content[:-2] + bytes([content[-2] ^ 255]) + content[-1:]
        if suffix == ".txt":  # of a key, a flipped byte is another key: of the checksum it is noticed
            flipped = bytes([content[0] ^ 1]) + content[1:]
        victim.write_bytes({"cut": content[: len(content) // 2], "empty": b"", "flipped": flipped}[damage])
    cache = ArrayCache(tmp_path, 3, np.float16)
    assert cache.available(["a", "b", "c"]) == {"c"}
    cache.write(["a", "b"], ARRAYS)
    for opened in (cache, ArrayCache(tmp_path, 3, np.float16)):
        assert np.array_equal(opened.read(["a", "b"]), ARRAYS)


@pytest.mark.parametrize(("width", "dtype"), [(4, np.float16), (3, np.float32)])
def test_arrays_of_another_shape(tmp_path: Path, width: int, dtype: type) -> None:
    ArrayCache(tmp_path, 3, np.float16).write(["a", "b"], ARRAYS)
    assert ArrayCache(tmp_path, width, dtype).available(["a"]) == set()


def test_unwritable_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError, match="cache="):
        ArrayCache(tmp_path / "file" / "cache", 3, np.float16).write(["a", "b"], ARRAYS)


def test_default_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CENTERHASH_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert default_cache() == Path.home() / ".cache" / "centerhash"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "centerhash"
    monkeypatch.setenv("CENTERHASH_CACHE", str(tmp_path / "named"))
    assert default_cache() == tmp_path / "named"
