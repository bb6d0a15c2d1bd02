from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from centerhash.search import Index
from tests.search.test_pixels import scene
from tests.toys import cli, refused

pytestmark = pytest.mark.usefixtures("kept_networks")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three photos, one of them also smaller and one twice, and a broken file; not to be changed."""
    place = tmp_path_factory.mktemp("duplicates")
    for number in range(3):
        scene(number).save(place / f"{number}.png")
    (place / "backup").mkdir()
    scene(1).resize((150, 150)).save(place / "backup/smaller.png")
    (place / "backup/smaller.xmp").write_text("<edits>")
    shutil.copy(place / "2.png", place / "backup/2.png")
    (place / "broken.jpg").write_bytes(b"no image")
    return place


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_as_a_table_as_json_csv_and_as_a_page(folder: Path, tmp_path: Path) -> None:
    done = cli("duplicates", folder, "--page", tmp_path / "page.html", "--csv", tmp_path / "found.csv")
    assert done.code == 0, done.err
    assert "5 images, groups: 1 same, 1 near" in done.text
    assert "skipped: cannot read" in done.text
    assert "shorter path" in done.text
    assert "resolution" in done.text
    assert "data:image/jpeg" in (tmp_path / "page.html").read_text()
    assert "resolution" in (tmp_path / "found.csv").read_text()
    found = cli("duplicates", folder, "--json", "--kind", "near").json
    (group,) = found["groups"]
    assert (group["kind"], Path(group["keep"]["path"]).name, group["rule"]) == ("near", "1.png", "resolution")
    assert [(Path(one["path"]).name, one["width"]) for one in group["others"]] == [("smaller.png", 150)]
    assert list(found["skipped"]) == [str(folder / "broken.jpg")]


def test_move_undo_and_what_a_dry_run_shows(folder: Path, tmp_path: Path) -> None:
    photos, target = Path(shutil.copytree(folder, tmp_path / "photos")), tmp_path / "moved"
    before = files(photos)
    words = ("duplicates", photos, "--prefer", photos / "backup", "--move-to", target)
    planned = cli(*words, "--dry-run", "--json").json["planned"]
    assert (planned["photos"], planned["sidecars"]) == (2, 0)
    assert [Path(new).name for _, new in planned["files"]] == ["2.png", "1.png"]
    shown = cli(*words, "--dry-run")
    assert shown.code == 0
    assert "would be moved" in shown.text
    assert files(photos) == before
    assert not target.exists()
    plain = ("duplicates", photos, "--move-to", target)
    moved = cli(*plain)
    assert moved.code == 0, moved.err
    assert "2 photos and 1 sidecar file moved" in moved.text
    assert before - files(photos) == {"backup/2.png", "backup/smaller.png", "backup/smaller.xmp"}
    assert cli(*plain, "--json").json["moved"]["photos"] == 0
    back = cli("duplicates", "--undo", target)
    assert "2 photos and 1 sidecar file moved back" in back.text
    assert files(photos) == before
    assert cli("duplicates", "--undo", target / "moved.jsonl", "--json").json == {
        "undone": {"photos": 0, "sidecars": 0, "not_moved": {}}
    }


@pytest.mark.slow
def test_an_index(folder: Path, image_run: Path, tmp_path: Path) -> None:
    photos, target = Path(shutil.copytree(folder, tmp_path / "photos")), tmp_path / "moved"
    place = tmp_path / "own.index"
    with Index.create(place, image_run) as index:
        with pytest.raises(ValueError, match="0 items"):
            index.duplicates()
        index.add(photos, progress=False)
        expected = index.duplicates(kind="near", progress=False).to_dict()
    found = cli("duplicates", place, "--kind", "near", "--json").json
    assert found == expected
    assert [Path(one["path"]).name for one in found["groups"][0]["others"]] == ["smaller.png"]
    assert (
        cli("duplicates", place, "--kind", "near", "--move-to", target, "--json").json["moved"]["sidecars"]
        == 1
    )
    with Index.open(place, read_only=True) as index:
        assert index.missing() == []
        assert [row.path for row in index.newest(0, 100)[0]].count(str(target / "backup/smaller.png")) == 1
    assert cli("duplicates", "--undo", target).code == 0
    assert cli("duplicates", place, "--kind", "near", "--json").json == expected


def test_an_index_whose_files_are_gone(folder: Path, image_run: Path, tmp_path: Path) -> None:
    photos, place = Path(shutil.copytree(folder, tmp_path / "photos")), tmp_path / "own.index"
    with Index.create(place, image_run) as index:
        index.add(photos, progress=False)
    shutil.rmtree(photos)
    done = cli("duplicates", place)
    assert done.code == 0, done.err
    assert "4 of 4 images have no readable file" in done.text


def test_what_is_refused(folder: Path, tmp_path: Path) -> None:
    assert "no image in the folder" in refused(cli("duplicates", tmp_path))
    assert "Did you mean 'near'" in refused(cli("duplicates", folder, "--kind", "neer"))
    assert "cannot list" in refused(cli("duplicates", tmp_path / "nowhere"))
    assert "--undo" in refused(cli("duplicates"))
    assert "--undo" in refused(cli("duplicates", folder, "--undo", tmp_path))
    assert "--move-to" in refused(cli("duplicates", folder, "--dry-run"))
    assert "moved.jsonl" in refused(cli("duplicates", "--undo", tmp_path))
    assert str(folder) in refused(cli("duplicates", folder, "--move-to", folder))
    assert "nowhere" in refused(cli("duplicates", folder, "--prefer", folder / "nowhere"))
