from __future__ import annotations

from pathlib import Path

import pytest

from centerhash.core.errors import DataError
from centerhash.encoding.parts import read_parts
from centerhash.encoding.work import encode_parts
from centerhash.search import Collection
from centerhash.search.importing import import_parts
from centerhash.training.run import train
from tests.toys import feature_dataset, toy_config


def test_parts_are_added_once(feature_run: Path, feature_folder: Path, tmp_path: Path) -> None:
    encode_parts(feature_run, [str(feature_folder)], tmp_path / "parts", part_size=70)
    with Collection.create(tmp_path / "index", feature_run) as collection:
        done = import_parts(collection, tmp_path / "parts")
        assert (done.added, done.known, len(collection)) == (160, 0, 160)
        again = import_parts(collection, tmp_path / "parts")
        assert (again.added, again.known) == (0, 160)
        items = {str(item.id): item for item in collection.items()}
    for ids, packed, labels in read_parts(tmp_path / "parts"):
        for id, code, names in zip(ids, packed, labels, strict=True):
            assert items[id].code.tobytes() == code.tobytes()
            assert set(items[id].labels) == set(names)


def test_parts_of_another_model_or_unfinished_ones_are_refused(
    feature_run: Path, feature_folder: Path, tmp_path: Path
) -> None:
    train(feature_dataset(), config=toy_config(seed=5, epochs=1)).save(tmp_path / "model")
    encode_parts(tmp_path / "model", [str(feature_folder)], tmp_path / "others")
    encode_parts(feature_run, [str(feature_folder)], tmp_path / "parts", part_size=70)
    (tmp_path / "parts" / "part-00001.parquet").unlink()
    with Collection.create(tmp_path / "index", feature_run) as collection:
        with pytest.raises(DataError, match="are of another model than the collection's"):
            import_parts(collection, tmp_path / "others")
        with pytest.raises(DataError, match="lacks 1 of 3 parts"):
            import_parts(collection, tmp_path / "parts")
        assert len(collection) == 0
