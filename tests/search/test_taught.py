"""Taught labels of an index: queries, filters and results have them like any other label."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from centerhash.codes import pack
from centerhash.core.errors import ConfigError, DataError, InputError
from centerhash.search import Index, verify_index
from centerhash.search.database import FILE
from centerhash.search.milvus import MilvusStore
from tests.toys import CLASSES, separable

ITEMS, MARKED = 400, 40  # the first ones show what is taught


def planted(model: Any, count: int = ITEMS, seed: int = 0) -> tuple[Any, Any, list[list[str]]]:
    """Codes of a model, visual codes whose first bits are set for marked items, and labels."""
    features, labels = separable(count, seed=seed)
    generator = np.random.default_rng(seed)
    bits = np.where(generator.random((count, 128)) < 0.5, -1, 1)
    bits[:MARKED, :70] = np.where(generator.random((MARKED, 70)) < 0.05, -1, 1)
    names = [[name for name, there in zip(CLASSES, row, strict=True) if there] for row in labels]
    return pack(model.encode_features(features)), pack(bits), names


def name(row: int) -> str:
    return f"{row:04}"


@pytest.fixture
def index(feature_run: Path, tmp_path: Path) -> Iterator[Index]:
    """Items 0000 to 0399, of which 0000 to 0039 show something; every second one has stored label scores."""
    with Index.create(tmp_path / "index", feature_run) as made:
        packed, visual, names = planted(made.model)
        scores = [
            {one: (250, 250 // len(row)) for one in row} if at % 2 else {} for at, row in enumerate(names)
        ]
        paths = [f"/photos/{at % 3}/{name(at)}.jpg" for at in range(ITEMS)]
        ids = list(map(name, range(ITEMS)))
        made.add_codes(packed, ids, names, paths, list(visual), scores)
        yield made


def shown(found: Any) -> set[str]:
    return {row.id for row in found}


def test_a_label_is_taught_searched_filtered_and_shown(index: Index) -> None:
    version = index.version
    taught = index.teach("Bella", like=[name(row) for row in range(6)], unlike=name(200))
    assert index.version != version
    assert (taught.name, taught.like[0], taught.unlike) == ("Bella", "0000", ("0200",))
    assert 25 <= taught.items <= 50
    assert index.labels()["Bella"] == index.info()["labels"]["Bella"] == taught.items
    assert index.taught() == {"Bella": taught}

    results = index.search(labels="bella", k=MARKED)
    assert sum(row.id < name(MARKED) for row in results) >= max(25, 0.9 * len(results))
    likely = [(row.probability or {})["Bella"] for row in results]
    assert likely == sorted(likely, reverse=True)
    assert [row.label for row in results.labels] == ["Bella"]
    assert shown(results[:6]) == {name(row) for row in range(6)}  # the examples themselves are certain
    assert likely[:6] == [1.0] * 6

    carried = index.search(id=name(100), having="Bella", k=ITEMS)
    others = index.search(id=name(100), without="Bella", k=ITEMS)
    assert len(carried) == taught.items
    assert len(carried) + len(others) == ITEMS - 1
    assert not shown(carried) & shown(others)
    for row in carried:
        assert "Bella" in row.labels
        assert (row.probability or {})["Bella"] >= 0.5
        assert "Bella" not in (row.share or {})
    assert not any("Bella" in row.labels for row in others)
    page, total = index.newest(having="Bella")
    assert total == taught.items
    assert all("Bella" in row.labels for row in page)
    assert "Bella" in index.get(name(0)).labels
    assert (index.get(name(200)).labels.count("Bella"), index.get(name(0)).labels.count("Bella")) == (0, 1)


def test_a_query_of_taught_and_other_labels_is_that_of_a_naive_loop(index: Index) -> None:
    index.teach("Bella", like=[name(row) for row in range(6)])
    found = index.search(labels="Bella, dog:0.5, cat:0.5", k=ITEMS)
    by_id = {item.id: item for item in index}
    alone = {row.id: (row.probability or {})["Bella"] for row in index.search(labels="Bella", k=ITEMS)}
    assert min(alone.values()) >= 0.1  # others do not fit
    centers = index.model_info.centers
    classes = [CLASSES.index("dog"), CLASSES.index("cat")]

    def penalty(id: str) -> float:
        item, total = by_id[id], -np.log(max(alone[id], 0.01))
        code = np.where(np.unpackbits(item.code, count=index.spec.bits), 1, -1)
        sizes = np.exp(8 * (centers @ code) / index.spec.bits)
        for column in classes:
            if item.scores:
                likely, share = (value / 255 for value in item.scores.get(CLASSES[column], (0, 0)))
                likely = max(likely, 0.01)
            else:
                share = sizes[column] / sizes.sum()
                likely = min(max(2 * share, 0.01), 1)
            total += -np.log(likely) + abs(share - 0.25) / 2
        return float(total)

    penalties = [penalty(row.id) for row in found]
    assert penalties == pytest.approx(sorted(penalties), abs=1e-6)

    def fits(id: str) -> bool:
        scores = by_id[id].scores
        return not scores or all(scores.get(one, (0, 0))[0] >= 25.5 for one in ("dog", "cat"))

    assert shown(found) == {id for id in alone if fits(id)}
    near = index.search(labels="Bella, dog", k=5, within=4)
    assert all(row.distance <= 4 for row in near)
    under = index.search(labels="Bella", k=ITEMS, under="/photos/1")
    assert shown(under) == {id for id in alone if int(id) % 3 == 1}


def test_new_items_have_the_label_at_once_and_it_survives_compaction(index: Index) -> None:
    index.teach("Bella", like=[name(row) for row in range(6)])
    before = index.taught()["Bella"].items
    packed, visual, names = planted(index.model, seed=1)
    index.add_codes(packed[:50], [f"new{row}" for row in range(50)], names[:50], visual=list(visual[:50]))
    fresh = [row.id for row in index.search(labels="Bella", k=before + 40) if row.id.startswith("new")]
    assert sum(int(id[3:]) < MARKED for id in fresh) >= 20
    assert index.labels()["Bella"] > before + 20
    index.remove([name(row) for row in range(3)])  # examples too
    after = index.taught()["Bella"]
    assert after.like == tuple(name(row) for row in range(6))
    index.compact()
    assert index.taught()["Bella"] == after
    assert index.verify() == []
    folder = index.folder
    index.close()
    with Index.open(folder, read_only=True) as again:
        assert again.taught()["Bella"] == after
        with pytest.raises(InputError, match="read-only"):
            again.teach("Bella", like=name(30))
        with pytest.raises(InputError, match="read-only"):
            again.forget("Bella")
    assert verify_index(folder) == []


def test_suggestions_are_no_examples_and_answers_are_kept(index: Index) -> None:
    index.teach("Bella", like=[name(0), name(1)])
    found = index.suggest("bella", 10)
    assert (found.name, len(found.likely), len(found.uncertain)) == ("Bella", 5, 5)
    ids = [row.id for row in (*found.likely, *found.uncertain)]
    assert len(set(ids)) == 10
    assert not {name(0), name(1)} & set(ids)
    likely = [(row.probability or {})["Bella"] for row in found.likely]
    assert likely == sorted(likely, reverse=True)
    away = [abs((row.probability or {})["Bella"] - 0.5) for row in found.uncertain]
    assert away == sorted(away)
    yes = [id for id in ids if id < name(MARKED)]
    no = [id for id in ids if id >= name(MARKED)]
    index.teach("Bella", like=yes, unlike=no)
    label = index.taught()["Bella"]
    assert (set(label.like), set(label.unlike)) == ({name(0), name(1), *yes}, set(no))
    assert not set(ids) & {row.id for row in index.suggest("Bella", 400).likely}
    changed = index.teach("Bella", unlike=name(1))
    assert (name(1) in changed.like, name(1) in changed.unlike) == (False, True)
    assert "Bella" not in index.get(name(1)).labels
    for k in (0, 1001, "3"):
        with pytest.raises(InputError, match="k must"):
            index.suggest("Bella", k)  # type: ignore[arg-type]


def test_paths_and_folders_are_examples(index: Index) -> None:
    label = index.teach("Bella", like="/photos/0/0003.jpg", unlike=["/photos/1"])
    assert label.like == ("0003",)
    assert set(label.unlike) == {name(row) for row in range(ITEMS) if row % 3 == 1}


def test_labels_are_renamed_and_forgotten(index: Index) -> None:
    index.teach("Bella", like=name(0))
    index.teach("garden", like=name(50))
    index.rename_taught("bella", "Bella, our dog")
    assert list(index.taught()) == ["Bella, our dog", "garden"]
    assert index.search(labels='"Bella, our dog"', k=1)[0].id == name(0)
    index.rename_taught("garden", "Garden")
    index.forget("GARDEN")
    assert list(index.taught()) == ["Bella, our dog"]
    assert "Garden" not in index.labels()
    with pytest.raises(ConfigError, match="garden"):
        index.search(labels="garden")
    index.forget("Bella, our dog")
    assert index.taught() == {}
    with pytest.raises(InputError, match="Bella"):
        index.forget("Bella")
    with pytest.raises(InputError, match="no taught labels"):
        index.export_taught(index.folder / "none.json")


def test_names_and_examples_that_cannot_be(index: Index) -> None:
    for taken in ("dog", "Dog"):
        with pytest.raises(ConfigError, match="'dog'"):
            index.teach(taken, like=name(0))
    index.teach("Bella", like=name(0))
    index.teach("garden", like=name(1))
    with pytest.raises(ConfigError, match="'garden'"):
        index.rename_taught("Bella", "Garden")
    with pytest.raises(ConfigError, match="'gardne'"):
        index.suggest("gardne")
    with pytest.raises(InputError, match="nowhere"):
        index.teach("Bella", like=["nowhere.jpg"])
    with pytest.raises(InputError, match="0001"):
        index.teach("Bella", like=name(1), unlike=[name(1)])
    with pytest.raises(InputError, match="no examples"):
        index.teach("Bella")
    with pytest.raises(InputError, match="like="):
        index.teach("new", unlike=name(1))
    assert list(index.taught()) == ["Bella", "garden"]


def test_labels_move_to_another_index_of_the_same_model(
    index: Index, feature_run: Path, image_run: Path, tmp_path: Path
) -> None:
    index.teach("Bella", like=[name(row) for row in range(6)], unlike=name(200))
    file = tmp_path / "labels.json"
    assert index.export_taught(file) == 1
    with Index.create(tmp_path / "other", feature_run) as other:
        packed, visual, names = planted(other.model, seed=2)
        other.add_codes(packed, list(map(str, range(ITEMS))), names, visual=list(visual))
        assert other.import_taught(file) == ["Bella"]
        found = other.search(labels="Bella", k=MARKED)
        assert sum(int(row.id) < MARKED for row in found) >= 20
        with pytest.raises(ConfigError, match="Bella"):
            other.import_taught(file)
        other.teach("Bella", like="7")  # learned again, from all examples
        assert other.taught()["Bella"].like == (*(name(row) for row in range(6)), "7")
    with Index.create(tmp_path / "third", image_run) as third:
        with pytest.raises(DataError, match="another model"):
            third.import_taught(file)
        with pytest.raises(DataError, match="missing"):
            third.import_taught(tmp_path / "missing.json")
        file.write_text(file.read_text().replace("0003", "0004"))
        with pytest.raises(DataError, match="checksum"):
            third.import_taught(file)
        file.write_bytes(b"\xff")
        with pytest.raises(DataError, match=r"labels\.json"):
            third.import_taught(file)
        assert third.taught() == {}


def test_a_label_that_items_are_given_later_counts_once(index: Index) -> None:
    index.teach("Bella", like=[name(0), name(1)])
    count = index.labels()["Bella"]
    assert "Bella" not in index.get(name(300)).labels
    packed, visual, _ = planted(index.model)
    index.add_codes(packed[300:301], ["given"], [["Bella"]], visual=[visual[300]])
    index.add_codes(packed[:1], ["both"], [["Bella"]], visual=[visual[0]])
    assert index.labels()["Bella"] == count + 2
    assert index.get("both").labels == ("Bella",)
    assert "given" in shown(index.search(id=name(0), having="Bella", k=ITEMS))


def test_damage_of_a_taught_label_is_found(index: Index) -> None:
    index.teach("Bella", like=name(0))
    index.teach("garden", like=name(1))
    folder = index.folder
    index.close()
    sound = (folder / FILE).read_bytes()
    for statement in (
        "UPDATE taught SET parameters = zeroblob(580) WHERE name = 'Bella'",
        "UPDATE taught SET examples = '[]' WHERE name = 'Bella'",
        "UPDATE taught SET name = 'Bello' WHERE name = 'Bella'",
        "DELETE FROM taught WHERE name = 'Bella'",
        "DELETE FROM taught",
    ):
        (folder / FILE).write_bytes(sound)
        with sqlite3.connect(folder / FILE) as db:
            db.execute(statement)
        db.close()
        assert len(verify_index(folder)) == 1, statement
        with Index.open(folder, read_only=True) as opened, pytest.raises(DataError, match=FILE):
            opened.search(labels="Bella")


def test_milvus_keeps_no_taught_labels() -> None:
    store = MilvusStore.__new__(MilvusStore)
    assert store.taught() == {}
    for call in (lambda: store.save_taught({}), lambda: store.sample_codes(1, [])):
        with pytest.raises(InputError, match="sqlite"):
            call()


def test_codes_of_other_programs_can_be_taught(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    bits = np.where(generator.random((200, 64)) < 0.5, -1, 1)
    bits[:20, :40] = 1
    with Index.create(tmp_path / "codes", bits=64) as codes:
        codes.add_codes(pack(bits), list(map(name, range(200))))
        codes.teach("marked", like=[name(row) for row in range(5)])
        found = codes.search(labels="marked", k=20)
        assert sum(row.id < name(20) for row in found) >= 12
        assert len(codes.search(id=name(0), having="marked", k=200)) + 1 == codes.labels()["marked"]
        assert codes.export_taught(tmp_path / "labels.json") == 1
    for bits_of_other in (64, 32):
        with Index.create(tmp_path / f"other-{bits_of_other}", bits=bits_of_other) as other:
            if bits_of_other == 64:
                assert other.import_taught(tmp_path / "labels.json") == ["marked"]
            else:
                with pytest.raises(DataError, match="other bits"):
                    other.import_taught(tmp_path / "labels.json")


def test_an_index_has_a_limited_number_of_taught_labels(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.teach("a", like=name(0))
    index.teach("b", like=name(0))
    index.export_taught(tmp_path / "labels.json")
    index.forget("b")
    index.rename_taught("a", "c")
    monkeypatch.setattr("centerhash.search.taught.MAX_TAUGHT", 2)
    with pytest.raises(ConfigError, match="at most 2"):
        index.import_taught(tmp_path / "labels.json")
    index.teach("d", like=name(1))
    with pytest.raises(ConfigError, match="at most 2"):
        index.teach("e", like=name(2))
    index.teach("d", like=name(3))  # more examples are no further label
    assert list(index.taught()) == ["c", "d"]


def test_the_exported_file_is_json_that_others_can_read(index: Index, tmp_path: Path) -> None:
    index.teach("Bella", like=[name(0), name(1)])
    index.export_taught(tmp_path / "labels.json")
    value = json.loads((tmp_path / "labels.json").read_text())
    (label,) = value["labels"]
    assert (label["name"], len(label["parameters"])) == ("Bella", index.spec.bits + 129)
    assert [row["id"] for row in label["examples"]] == [name(0), name(1)]
    assert (value["bits"], value["model"]) == (index.spec.bits, index.model.digest)
