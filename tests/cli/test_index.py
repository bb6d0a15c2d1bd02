from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from centerhash.data import content_key
from centerhash.model.loading import load
from centerhash.search import Index
from tests.toys import cli, refused, write_images

pytestmark = pytest.mark.usefixtures("kept_networks")


@pytest.fixture(scope="module")
def pictures(scene_folder: Path) -> list[Path]:
    return sorted((scene_folder / "images").iterdir())[:8]


@pytest.fixture(scope="module")
def stored(image_run: Path, pictures: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of eight scenes, made by the commands; not to be changed."""
    folder = tmp_path_factory.mktemp("commands") / "scenes.index"
    done = cli("index", "create", folder, "--model", image_run)
    assert done.code == 0, done.err
    assert "an empty index of 32-bit codes (sqlite)" in done.text
    assert "centerhash index add" in done.out
    done = cli("index", "add", folder, *pictures, "--device", "cpu", "--batch", "3")
    assert done.code == 0, done.err
    assert "8 images added, 0 already known; 8 items" in done.text
    return folder


@pytest.fixture
def own(stored: Path, tmp_path: Path) -> Path:
    """A copy of the index to change."""
    return Path(shutil.copytree(stored, tmp_path / "own.index"))


def id_of(path: Path) -> str:
    return content_key(path)[:16]


@pytest.mark.slow
def test_search_by_an_image(stored: Path, pictures: list[Path]) -> None:
    done = cli("search", stored, pictures[0], "-k", "3")
    assert done.code == 0, done.err
    assert "3 results" in done.out
    assert done.out.startswith("query: ")
    assert id_of(pictures[0]) in done.out
    assert pictures[0].name in done.out
    found = cli("search", stored, pictures[0], "-k", "3", "--json").json
    with Index.open(stored, read_only=True) as index:
        answer = index.search(pictures[0], k=3)
    assert [(row["id"], row["distance"], row["path"]) for row in found["results"]] == [
        (row.id, row.distance, row.path) for row in answer
    ]
    assert found["results"][0]["labels"] == list(answer[0].labels)
    assert [row["label"] for row in found["labels"]] == [row.label for row in answer.labels]


def test_search_by_visual_and_by_semantic_code(stored: Path, pictures: list[Path]) -> None:
    own = id_of(pictures[0])
    looks = cli("search", stored, "--id", own, "--visual", "--json").json["results"]
    assert [row["visual"] for row in looks] == sorted(row["visual"] for row in looks)
    meant = cli("search", stored, "--id", own, "--semantic", "--json").json["results"]
    assert [row["distance"] for row in meant] == sorted(row["distance"] for row in meant)
    assert "visual" in cli("search", stored, "--id", own).out
    assert "one of --visual" in refused(cli("search", stored, "--id", own, "--visual", "--semantic"))


@pytest.mark.slow
def test_words_and_ids_need_neither_torch_nor_numba(stored: Path, pictures: list[Path]) -> None:
    script = (
        "import sys\n"
        "from centerhash.cli import app\n"
        "app(sys.argv[1:], standalone_mode=False)\n"
        "print(sorted({'torch', 'numba'} & set(sys.modules)))"
    )
    for question in (["--labels", "person"], ["--id", id_of(pictures[0])]):
        done = subprocess.run(
            [sys.executable, "-c", script, "search", str(stored), *question, "--json"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == "[]"


def test_search_by_labels(stored: Path) -> None:
    first, second = load(stored / "model").classes[:2]
    done = cli("search", stored, "--labels", f"{first}:0.7,{second}:0.3", "--semantic")
    assert done.code == 0, done.err
    assert f"query: {first} 0.70, {second} 0.30" in done.out
    assert "8 results" in done.out
    found = cli("search", stored, "--labels", first, "--semantic", "--json", "--top", "1").json
    assert found["labels"] == [{"label": first, "weight": 1.0, "similarity": 1.0, "distance": 0}]
    assert len(found["results"]) == 1


def test_search_with_a_filter_and_a_radius(stored: Path, pictures: list[Path]) -> None:
    with Index.open(stored, read_only=True) as index:
        label, count = max(index.labels().items(), key=lambda pair: pair[1])
    found = cli("search", stored, pictures[0], "--having", label, "--json").json["results"]
    assert len(found) == count
    others = cli("search", stored, pictures[0], "--without", label.upper(), "--json").json["results"]
    assert len(others) == 8 - count
    assert cli("search", stored, pictures[0], "--under", stored, "--json").json["results"] == []
    near = cli("search", stored, pictures[0], "--within", "0", "--json").json["results"]
    assert id_of(pictures[0]) in [row["id"] for row in near]
    assert {row["distance"] for row in near} == {0}
    done = cli("search", stored, pictures[0], "--having", label, "--having", "unicorn")
    assert done.code == 0
    assert "no item of the index carries the label 'unicorn'" in done.text
    assert "0 results" in done.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "--code"),
        (("photo.jpg", "--id", "x"), "--code"),
        (("--id", "unknown"), "no item 'unknown' in the index, which holds 8"),
        (("--labels", ""), "no label was given"),
        (("--labels", "persn"), "unknown label 'persn'. Did you mean 'person'?"),
        (("--labels", "person:0"), "the weight of 'person' must be a positive number"),
        (("no-such.jpg",), "cannot read 'no-such.jpg': no such file"),
        (("--labels", "person", "--within", "40"), "within must be 0 to 32"),
    ],
)
def test_searches_that_are_refused(stored: Path, words: tuple[str, ...], message: str) -> None:
    assert message in refused(cli("search", stored, *words))


def test_what_is_no_index_is_refused(tmp_path: Path, image_run: Path) -> None:
    for words in (
        ("search", tmp_path, "--id", "x"),
        ("index", "add", tmp_path, "x.jpg"),
        ("index", "verify", tmp_path),
    ):
        text = refused(cli(*words))
        assert "is no index" in text
        assert "centerhash index create" in text
    text = refused(cli("index", "create", tmp_path / "new", "--model", image_run, "--store", "falt"))
    assert "unknown store 'falt'" in text


def test_adding_again_skips_and_broken_images_warn(own: Path, pictures: list[Path], tmp_path: Path) -> None:
    place = tmp_path / "more"
    write_images(place, 2)
    for number in range(7):
        (place / f"broken {number}.jpg").write_text("I am no picture.")
    done = cli("index", "add", own, *pictures, place, "--device", "cpu")
    assert done.code == 0
    assert "2 images added, 8 already known; 10 items" in done.text
    assert "warning: 7 images skipped as unreadable" in done.text
    assert "broken 4.jpg" in done.err
    assert "broken 5.jpg" not in done.err
    assert "... and 2 more" in done.text
    assert "Did you mean 'given'?" in refused(cli("index", "add", own, place, "--labels", "gven"))


def test_remove(own: Path, pictures: list[Path]) -> None:
    done = cli("index", "remove", own, id_of(pictures[0]), pictures[1], "nothing.jpg")
    assert done.code == 0, done.err
    assert "2 removed, 6 items left" in done.text
    assert "'nothing.jpg' is neither an id nor a path of this index" in done.text
    assert pictures[1].exists()
    assert "6 removed, 0 items left" in cli("index", "remove", own, pictures[0].parent).text


@pytest.mark.slow
def test_files_that_are_gone_are_counted_and_mended(image_run: Path, tmp_path: Path) -> None:
    place, photos = tmp_path / "a.index", tmp_path / "photos"
    write_images(photos, 3)
    (photos / "clip.mp4").write_text("x")
    assert cli("index", "create", place, "--model", image_run).code == 0
    done = cli("index", "add", place, photos, "--device", "cpu")
    assert "labels of the added images: 0 given, 3 predicted" in done.text
    assert "skipped: videos 1" in done.text
    photos.rename(tmp_path / "moved")
    for command in ("info", "verify"):
        done = cli("index", command, place)
        assert done.code == 0
        assert "the files of 3 images are missing" in done.text
        assert f"centerhash index add {place}" in done.text
    assert "3 under a new path" in cli("index", "add", place, tmp_path / "moved", "--device", "cpu").text
    assert "are missing" not in cli("index", "info", place).text
    (tmp_path / "moved" / "000.png").unlink()
    assert "1 removed, 2 items left" in cli("index", "remove", place, "--missing").text
    assert "--missing" in refused(cli("index", "remove", place))


def test_info_and_compact(own: Path, pictures: list[Path]) -> None:
    done = cli("index", "info", own)
    assert done.code == 0, done.err
    assert "size 8" in done.text
    assert "method ics-softmax" in done.text
    facts = cli("index", "info", own, "--json").json
    label, count = max(facts["labels"].items(), key=lambda pair: (pair[1], pair[0]))
    assert f"{label} {count}" in done.text
    cli("index", "remove", own, id_of(pictures[0]))
    assert "7 items" in cli("index", "compact", own).text
    assert cli("search", own, "--id", id_of(pictures[1]), "--json").json["results"]


def test_verify_names_the_damaged_file(own: Path) -> None:
    done = cli("index", "verify", own)
    assert done.code == 0
    assert "no damage found in" in done.out
    cli("index", "compact", own)
    with sqlite3.connect(own / "items.db") as database:
        database.execute("UPDATE items SET labels = x'00' WHERE row = 3")
    database.close()
    done = cli("index", "verify", own)
    assert done.code == 1
    assert "damaged: " in done.err
    assert "items.db" in done.err
    assert "Traceback" not in done.err


@pytest.mark.slow
def test_export_and_import(stored: Path, image_run: Path, tmp_path: Path) -> None:
    file, copy = tmp_path / "codes.npz", tmp_path / "copy.index"
    assert "8 codes in" in cli("index", "export", stored, file).text
    assert cli("index", "create", copy, "--model", image_run).code == 0
    assert "8 codes added, 0 already known; 8 items" in cli("index", "import", copy, file).text
    assert "0 codes added, 8 already known; 8 items" in cli("index", "import", copy, file).text
    with np.load(file) as arrays:
        id = json.loads(arrays["names"].tobytes())[0]
    first, second = (cli("search", place, "--id", id, "--json").json for place in (stored, copy))
    assert first["results"] == second["results"]
    assert cli("evaluate", file, file, "--json").json["queries"] == 8


def test_export_for_other_programs(stored: Path, tmp_path: Path) -> None:
    done = cli("index", "export", stored, tmp_path / "out", "--to", "npy")
    assert done.code == 0, done.err
    assert "8 codes in" in done.text
    assert np.load(tmp_path / "out" / "codes.npy").shape == (8, 4)
    assert "is not empty" in refused(cli("index", "export", stored, tmp_path / "out", "--to", "npy"))
    assert "unknown format 'xls'" in refused(cli("index", "export", stored, tmp_path / "new", "--to", "xls"))


def test_every_command_has_an_example() -> None:
    for name in ("create", "add", "remove", "info", "verify", "compact", "import", "export"):
        done = cli("index", name, "--help")
        assert done.code == 0
        assert f"centerhash index {name} photos.index" in done.text, name
    assert "centerhash search photos.index photo.jpg" in cli("search", "--help").text
