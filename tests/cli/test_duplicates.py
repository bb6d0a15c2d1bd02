from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from centerhash.search import Index
from tests.toys import cli, noise_image, refused

pytestmark = pytest.mark.usefixtures("kept_networks")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three photos, one of them also smaller and one twice, and a broken file; not to be changed."""
    place = tmp_path_factory.mktemp("duplicates")
    for number in range(3):
        noise_image(200, number).save(place / f"{number}.png")
    noise_image(200, 1).resize((150, 150)).save(place / "smaller.png")
    shutil.copy(place / "2.png", place / "2-copy.png")
    (place / "broken.jpg").write_bytes(b"no image")
    return place


@pytest.mark.slow
def test_a_folder_as_a_table_as_json_and_as_a_page(folder: Path, image_run: Path, tmp_path: Path) -> None:
    words = ("duplicates", folder, "--model", image_run, "--near", "128", "--device", "cpu")
    done = cli(*words, "--page", tmp_path / "page.html")
    assert done.code == 0, done.err
    assert "5 images, groups: 1 same, 1 near" in done.text
    assert "skipped: cannot read" in done.text
    assert "data:image/jpeg" in (tmp_path / "page.html").read_text()
    found = cli(*words, "--json", "--kind", "near").json
    (group,) = found["groups"]
    assert (group["kind"], Path(group["keep"]["path"]).name) == ("near", "1.png")
    assert [(Path(one["path"]).name, one["width"]) for one in group["others"]] == [("smaller.png", 150)]
    assert list(found["skipped"]) == [str(folder / "broken.jpg")]


@pytest.mark.slow
def test_an_index(folder: Path, image_run: Path, tmp_path: Path) -> None:
    place = tmp_path / "own.index"
    with Index.create(place, image_run) as index:
        with pytest.raises(ValueError, match="0 items"):
            index.duplicates()
        index.add(folder, progress=False)
        expected = index.duplicates(near=128, progress=False).to_dict()
    found = cli("duplicates", place, "--near", "128", "--json").json
    assert found == expected
    assert found["images"] == 4  # equal bytes are one item
    assert [Path(one["path"]).name for one in found["groups"][0]["others"]] == ["smaller.png"]


def test_an_index_whose_files_are_gone(folder: Path, image_run: Path, tmp_path: Path) -> None:
    photos, place = Path(shutil.copytree(folder, tmp_path / "photos")), tmp_path / "own.index"
    with Index.create(place, image_run) as index:
        index.add(photos, progress=False)
    shutil.rmtree(photos)
    done = cli("duplicates", place, "--near", "128")
    assert done.code == 0, done.err
    assert "4 of 4 images have no readable file" in done.text


def test_what_is_refused(folder: Path, tmp_path: Path) -> None:
    assert "no image in the folder" in refused(cli("duplicates", tmp_path))
    assert "Did you mean 'near'" in refused(cli("duplicates", folder, "--kind", "neer"))
    assert "cannot list" in refused(cli("duplicates", tmp_path / "nowhere"))
