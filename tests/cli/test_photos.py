"""`centerhash photos` on an index and on a folder of pictures."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from centerhash.photos import PhotoIndex
from tests.photos.pictures import id_of, picture, save, save_many
from tests.toys import cli, process_environment, refused

pytestmark = pytest.mark.usefixtures("kept_networks")


@pytest.fixture
def pictures(tmp_path: Path, image_run: Path) -> Path:
    """A folder of three pictures, with an empty default index of a small model."""
    PhotoIndex.create(tmp_path / "pictures.index", image_run).close()
    save_many(tmp_path / "pictures", 3)
    return tmp_path / "pictures"


@pytest.fixture(scope="module")
def stored(scene_folder: Path, image_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of eight drawn pictures, made by the command; not to be changed."""
    folder = tmp_path_factory.mktemp("commands") / "shapes.index"
    paths = sorted((scene_folder / "images").iterdir())[:8]
    done = cli("photos", "add", folder, *paths, "--model", image_run, "--device", "cpu")
    assert done.code == 0, done.err
    assert "8 images added, 0 already known; 8 photos" in done.text
    again = cli("photos", "add", folder, *paths, "--model", image_run, "--device", "cpu")
    assert "0 images added, 8 already known" in again.text
    return folder


@pytest.fixture
def first(scene_folder: Path) -> Path:
    return min((scene_folder / "images").iterdir())


def test_add_folders(pictures: Path) -> None:
    done = cli("photos", "add", pictures)
    assert done.code == 0, done.err
    index = pictures.parent / "pictures.index"
    assert str(index) in done.err
    assert "3 images added" in done.text
    save(pictures / "new.png", picture(9))
    for place in (pictures, index):
        assert cli("photos", "add", place).code == 0
    with PhotoIndex.open(index, read_only=True) as photos:
        assert len(photos) == 4
    (pictures / "new.png").unlink()
    assert "1 files are gone" in cli("photos", "add", index).text


def test_search_by_picture(stored: Path, first: Path) -> None:
    done = cli("photos", "search", stored, first, "-k", "3")
    assert done.code == 0, done.err
    assert "3 results" in done.out
    assert done.out.startswith("query: ")
    found = cli("photos", "search", stored, first, "-k", "3", "--json").json
    with PhotoIndex.open(stored, read_only=True) as photos:
        answer = photos.search(first, k=3)
    assert [row["path"] for row in found["results"]] == [row.path for row in answer]
    assert [row["label"] for row in found["labels"]] == [row.label for row in answer.labels]


def test_other_searches(stored: Path, first: Path) -> None:
    with PhotoIndex.open(stored, read_only=True) as photos:
        label = max(photos.labels(), key=lambda name: photos.labels()[name])
        expected = {
            "id": photos.search(id=id_of(first)),
            "labels": photos.search(labels=label),
            "like": photos.search(like=[first]),
        }
    queries: dict[str, str | Path] = {"id": id_of(first), "labels": label, "like": first}
    for name, value in queries.items():
        found = cli("photos", "search", stored, f"--{name}", value, "--json").json["results"]
        assert [row["id"] for row in found] == [row.id for row in expected[name]]
    for by in ("general", "semantic"):
        rows = cli("photos", "search", stored, "--id", id_of(first), "--by", by, "--json").json["results"]
        numbers = [row["general" if by == "general" else "distance"] for row in rows]
        assert numbers == sorted(numbers)


def test_filters(stored: Path, first: Path) -> None:
    with PhotoIndex.open(stored, read_only=True) as photos:
        label, count = max(photos.labels().items(), key=lambda pair: pair[1])
    listed = cli("photos", "list", stored, "--having", label, "--json").json
    assert listed["total"] == len(listed["items"]) == count
    others = cli("photos", "search", stored, first, "--without", label.upper(), "--json").json["results"]
    assert not {row["id"] for row in others} & {row["id"] for row in listed["items"]}
    assert cli("photos", "list", stored, "--under", stored, "--json").json["total"] == 0
    assert cli("photos", "list", stored, "--before", "1990", "--json").json["total"] == 0
    assert "8 photos" in cli("photos", "list", stored, "-k", "2").out
    done = cli("photos", "search", stored, first, "--having", "unicorn")
    assert (done.code, "unicorn" in done.err) == (0, True)


def test_a_folder_is_searched_at_once(pictures: Path) -> None:
    found = cli("photos", "search", pictures, pictures / "0.png", "-k", "1", "--json")
    assert found.json["results"][0]["path"] == str(pictures / "0.png")
    assert "pictures.index" in found.err
    assert cli("photos", "list", pictures, "--json").json["total"] == 3


def test_remove(pictures: Path) -> None:
    cli("photos", "add", pictures)
    done = cli("photos", "remove", pictures, pictures / "0.png", "nowhere")
    assert "1 removed, 2 photos left" in done.text
    assert "nowhere" in done.err
    assert "1 removed before" in cli("photos", "add", pictures).text
    assert "1 image added" in cli("photos", "add", pictures, "--with-removed").text
    (pictures / "1.png").unlink()
    cli("photos", "add", pictures)
    assert "1 removed, 2 photos left" in cli("photos", "remove", pictures, "--missing").text


def test_duplicates(pictures: Path) -> None:
    shutil.copy(pictures / "0.png", pictures / "copy.png")
    save(pictures / "large.png", picture(0, 48).resize((96, 96)))
    found = cli("photos", "duplicates", pictures, "--json").json
    assert [(group["kind"], [Path(path).name for path in group["paths"]]) for group in found["groups"]][
        :2
    ] == [
        ("same", ["0.png", "copy.png"]),
        ("near", ["large.png", "0.png"]),
    ]
    done = cli("photos", "duplicates", pictures.parent / "pictures.index", "--kind", "same")
    assert (done.code, "1 same" in done.out) == (0, True)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("jq") is None, reason="the recipe needs jq")
def test_recipe_that_moves_duplicates(pictures: Path, image_run: Path) -> None:
    """The commands of the page, with a shell function in place of the installed program."""
    shutil.copytree(pictures, pictures.parent / "doubles")
    doubles = pictures.parent / "doubles"
    (doubles / "a folder\nof copies").mkdir()
    shutil.copy(doubles / "0.png", doubles / "a folder\nof copies" / "copy.png")
    shutil.copy(doubles / "1.png", doubles / "copy.png")
    page = Path(__file__).parents[2] / "docs" / "how-to" / "duplicates.md"
    (recipe,) = re.findall(r"```sh\n(mkdir -p moved\n.*?)```", page.read_text(), flags=re.DOTALL)
    program = f'centerhash() {{ {sys.executable} -m centerhash "$@"; }}\n'
    cli("photos", "add", doubles, "--model", image_run)
    subprocess.run(
        ["bash", "-euo", "pipefail", "-c", program + recipe],
        cwd=pictures.parent,
        env=process_environment(),
        check=True,
    )
    moved = sorted(path.name for path in (pictures.parent / "moved").iterdir())
    assert moved == ["copy.png", "copy.png.~1~"]
    assert sorted(path.name for path in doubles.rglob("*.png")) == ["0.png", "1.png", "2.png"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["add", "nowhere"], "nowhere"),
        (["add", "INDEX", "nowhere"], "nowhere"),
        (["add", "INDEX", "--model", "coco"], "--model"),
        (["add", "new", "nowhere"], "nowhere"),
        (["add", "CODES"], "CODES"),
        (["search", "INDEX"], "--labels"),
        (["search", "INDEX", "a.png", "--id", "b"], "--id"),
        (["search", "INDEX", "--labels", "unicorn"], "unicorn"),
        (["search", "INDEX", "--labels", "star", "--by", "looks"], "looks"),
        (["search", "nowhere", "--labels", "star"], "nowhere"),
        (["list", "INDEX", "--after", "june"], "june"),
        (["remove", "INDEX"], "--missing"),
        (["duplicates", "INDEX", "--kind", "simlar"], "simlar"),
        (["duplicates", "nowhere"], "nowhere"),
    ],
)
def test_rejected(stored: Path, tmp_path: Path, words: list[str], named: str) -> None:
    cli("index", "create", tmp_path / "CODES", "--bits", "16")
    places = {"INDEX": stored, "CODES": tmp_path / "CODES", "new": tmp_path / "new"}
    assert named in refused(cli("photos", *(places.get(word, word) for word in words)))
    assert not (tmp_path / "new").exists()
