"""Backups of an index that is being written."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from centerhash.core.errors import DataError, OutputError
from centerhash.model.model import HashModel
from centerhash.search import Index, verify_index
from tests.serve.toys import colour_index, ids_of, png
from tests.toys import cli


def test_a_backup_of_an_index_in_use_is_whole_and_holds_all_that_was_there(
    feature_run: Path, tmp_path: Path
) -> None:
    stop = threading.Event()
    with colour_index(tmp_path / "index", feature_run, 2) as index:

        def write() -> None:
            generator, number = np.random.default_rng(0), 0
            while not stop.is_set():
                codes = generator.integers(0, 256, (3, index.spec.bits // 8), np.uint8)
                index.add_codes(codes, [f"{number}-{row}" for row in range(3)])
                if number % 4 == 3:
                    index.remove([f"{number - 1}-0"])
                number += 1

        thread = threading.Thread(target=write)
        thread.start()
        try:
            for number in range(8):
                acknowledged = len(index)
                with Index.open(index.folder, read_only=True) as reader:
                    place = tmp_path / f"copy-{number}"
                    count = reader.backup(place, progress=False)
                assert verify_index(place) == []
                with Index.open(place) as copy:
                    assert len(copy) == count >= acknowledged - 1
                    copy.add_codes(np.zeros((1, index.spec.bits // 8), np.uint8), ["more"])
        finally:
            stop.set()
            thread.join()


def test_a_backup_leaves_out_what_was_removed_after_its_snapshot(
    feature_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with colour_index(tmp_path / "index", feature_run, 3) as index:
        first, *others = ids_of(index)
        copy_database = index.store.back_up  # type: ignore[attr-defined]

        def back_up(*arguments: object) -> None:
            copy_database(*arguments)
            index.remove([first])
            index.add_bytes(png(9))

        monkeypatch.setattr(index.store, "back_up", back_up)
        assert index.backup(tmp_path / "copy", progress=False) == 2
    with Index.open(tmp_path / "copy") as copy:
        assert ids_of(copy) == others
        assert copy.verify() == []


def test_a_backup_is_refused_in_one_sentence(toy_model: HashModel, tmp_path: Path) -> None:
    with Index.create(tmp_path / "index", toy_model) as index:
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "file").touch()
        with pytest.raises(OutputError, match="full"):
            index.backup(tmp_path / "full", progress=False)
        (index.folder / "model" / "model.onnx").write_bytes(b"broken")
        with pytest.raises(DataError, match=r"index/model/model\.onnx"):
            index.backup(tmp_path / "copy", progress=False)
    assert not (tmp_path / "copy").exists()


def test_the_command(toy_model: HashModel, tmp_path: Path) -> None:
    Index.create(tmp_path / "index", toy_model).close()
    done = cli("index", "backup", tmp_path / "index", tmp_path / "copy")
    assert done.code == 0, done.err
    assert verify_index(tmp_path / "copy") == []
