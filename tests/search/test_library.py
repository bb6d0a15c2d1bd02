"""An index in step with folders: dates and cameras, copies, files that change, move, vanish and come back."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from datetime import date, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from PIL import ExifTags, Image

from centerhash.core.errors import InputError
from centerhash.data import content_key
from centerhash.data.images import camera_name, date_taken, read_header
from centerhash.data.listing import list_images
from centerhash.search import Added, Index, library
from centerhash.search.library import shown_name
from centerhash.search.query import read_date
from centerhash.search.results import wall_clock
from tests.toys import cli, noise_image, refused, write_images


@pytest.fixture
def index(tmp_path: Path, image_run: Path) -> Iterator[Index]:
    with Index.create(tmp_path / "index", image_run) as made:
        yield made


def photo(path: Path, seed: int, taken: str = "", make: str = "", model: str = "") -> Path:
    """Write a JPEG with EXIF data."""
    exif = Image.Exif()
    if taken:
        exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = taken
    exif[ExifTags.Base.Make], exif[ExifTags.Base.Model] = make, model
    path.parent.mkdir(parents=True, exist_ok=True)
    noise_image(seed=seed).save(path, exif=exif)
    return path


def id_of(path: Path) -> str:
    return content_key(path)[:16]


def forbid_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(image: Any) -> str:
        raise AssertionError(f"{image} was read")

    monkeypatch.setattr("centerhash.data.images.content_key", forbidden)


# --- EXIF


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ({36867: "2024:06:01 12:30:00"}, "2024-06-01 12:30:00"),
        ({36867: "2024:06:01 12:30:00", 37521: "25"}, "2024-06-01 12:30:00.250000"),
        ({36867: "2024-06-01 12:30:00\0", 306: "2025:01:01 00:00:00"}, "2024-06-01 12:30:00"),
        ({36867: "0000:00:00 00:00:00", 36868: "2023:12:31 23:59:59"}, "2023-12-31 23:59:59"),
        ({36867: "    :  :     :  :  ", 306: "1999:01:02 03:04:05"}, "1999-01-02 03:04:05"),
        ({36867: b"2024:06:01 12:30:00", 36868: 7, 306: "yesterday"}, None),
        ({}, None),
    ],
)
def test_the_date_of_a_photo(tags: dict[int, Any], expected: str | None) -> None:
    taken = date_taken(tags)
    assert (None if taken is None else str(wall_clock(taken))) == expected


@pytest.mark.parametrize(
    ("make", "model", "expected"),
    [
        ("Canon", "Canon EOS 5D", "Canon EOS 5D"),
        ("NIKON CORPORATION", "NIKON D750", "NIKON D750"),
        ("Apple", "iPhone 12", "Apple iPhone 12"),
        ("SONY\0\0", "  ILCE-7M3 ", "SONY ILCE-7M3"),
        ("Canon", None, "Canon"),
        (None, "X", "X"),
        (7, b"x", None),
        ("\x1b\n", " ", None),
    ],
)
def test_the_name_of_a_camera(make: Any, model: Any, expected: str | None) -> None:
    assert camera_name({271: make, 272: model}) == expected


def test_a_header_has_date_camera_and_upright_size(tmp_path: Path) -> None:
    path = photo(tmp_path / "a.jpg", 0, "2024:06:01 12:30:00", "Canon", "Canon R5")
    with Image.open(path) as image:
        exif = image.getexif()
        exif[ExifTags.Base.Orientation] = 6
        image.crop((0, 0, 48, 20)).save(path, exif=exif)
    header = read_header(path)
    assert (header.width, header.height, header.camera) == (20, 48, "Canon R5")
    assert header.taken == read_date("2024-06-01") + 12.5 * 3600


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_broken_exif_is_no_date(tmp_path: Path) -> None:
    noise_image().save(tmp_path / "a.jpg", exif=b"Exif\0\0II*\0\xff\xff\xff\xff broken")
    assert read_header(tmp_path / "a.jpg").taken is None


def test_dates() -> None:
    day = 24 * 3600
    assert [read_date(text) for text in ("1970", "1970-02", "1970-1-2", " 1969-12-31 ")] == [
        0,
        31 * day,
        day,
        -day,
    ]
    assert read_date(1970) == read_date(date(1970, 1, 1)) == read_date(datetime(1970, 1, 1)) == 0
    for wrong in ("70", "2024-13", "2024-02-30", "0000", "2024/06", "june", "", None):
        with pytest.raises(InputError, match="2024-06"):
            read_date(wrong)  # type: ignore[arg-type]


# --- dates and cameras in an index


def test_dates_cameras_and_filters(index: Index, tmp_path: Path) -> None:
    home = tmp_path / "photos"
    taken = ("2023:05:01 10:00:00", "2024:06:01 00:00:00", "2024:06:30 23:59:59", "2024:07:01 00:00:00")
    cameras = (("Canon", "Canon R5"), ("Apple", "iPhone 12"), ("Apple", "iPhone 15"), ("", ""))
    paths = [
        photo(home / when[:4] / f"{seed}.jpg", seed, when, *camera)
        for seed, (when, camera) in enumerate(zip(taken, cameras, strict=True))
    ]
    old = photo(home / "old.jpg", 9)
    os.utime(old, (5, datetime(2001, 2, 3, 4, 5).timestamp()))
    index.add(home)

    def found(**only: Any) -> list[str]:
        page, total = index.newest(**only)
        assert total == len(page) == sum(index.months(**only).values())
        assert {row.id for row in index.search(labels="cat", k=9, by="semantic", **only)} == {
            row.id for row in page
        }
        return [Path(row.path or "").stem for row in page]

    assert found() == ["3", "2", "1", "0", "old"]
    assert found(after="2024-06", before="2024-07") == ["2", "1"]
    assert found(after=2024) == ["3", "2", "1"]
    assert found(before="2024-06-01") == ["0", "old"]
    assert found(camera="iphone") == ["2", "1"]
    assert found(camera="R5", before=date(2024, 1, 1), under=home / "2023") == ["0"]
    assert found(camera="nikon") == []
    assert index.months() == {"2024-07": 1, "2024-06": 2, "2023-05": 1, "2001-02": 1}
    assert index.cameras() == {"Apple iPhone 12": 1, "Apple iPhone 15": 1, "Canon R5": 1}
    row = index.get(id_of(paths[1]))
    assert (row.taken, row.camera, row.width) == (datetime(2024, 6, 1), "Apple iPhone 12", 48)
    for wrong in ({"after": "june"}, {"camera": " "}, {"camera": 7}):
        with pytest.raises(InputError):
            index.newest(**wrong)  # type: ignore[arg-type]


def test_list_and_search_on_the_command_line(index: Index, tmp_path: Path) -> None:
    photo(tmp_path / "photos" / "a.jpg", 1, "2024:06:01 12:00:00", "Apple", "iPhone 12")
    photo(tmp_path / "photos" / "b.jpg", 2, "2023:06:01 12:00:00")
    index.add(tmp_path / "photos")
    index.close()
    shown = cli("index", "list", index.folder, "--after", "2024-06", "--json")
    assert [row["taken"] for row in shown.json["items"]] == ["2024-06-01T12:00:00"]
    assert cli("index", "list", index.folder, "--months", "--json").json == {"2024-06": 1, "2023-06": 1}
    assert "2023-06-01" in cli("index", "list", index.folder).out
    found = cli("search", index.folder, "--labels", "cat", "--semantic", "--camera", "iphone", "--json").json[
        "results"
    ]
    assert [row["camera"] for row in found] == ["Apple iPhone 12"]
    done = cli("search", index.folder, "--labels", "cat", "--semantic", "--camera", "leica")
    assert "leica" in done.err
    assert "Apple iPhone 12" in done.err
    assert "june" in refused(cli("index", "list", index.folder, "--after", "june"))


# --- files


def test_a_second_add_reads_nothing(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = write_images(tmp_path / "photos", 4)
    (tmp_path / "photos" / "link.png").symlink_to(paths[0].name)
    shutil.copytree(tmp_path / "photos", tmp_path / "photos" / "copies", symlinks=False)
    index.add(tmp_path / "photos")
    assert index.paths(id_of(paths[1])) == tuple(
        str(tmp_path / "photos" / name) for name in ("001.png", "copies/001.png")
    )
    (tmp_path / "photos" / "link.png").unlink()
    version = index.version
    forbid_reading(monkeypatch)
    assert index.add(tmp_path / "photos") == Added(0, 9, {})
    assert index.version == version  # nothing is written either
    monkeypatch.undo()
    noise_image(seed=77).save(paths[1])
    assert index.add(tmp_path / "photos") == Added(1, 8, {}, predicted=1)
    assert index.paths(id_of(paths[1])) == (str(paths[1]),)
    assert len(index) == 5  # the copy still has what was there before


def test_a_moved_folder_is_right_without_reading(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_images(tmp_path / "old" / "a", 2)
    photo(tmp_path / "old" / "b" / "000.png", 50)
    index.add(tmp_path / "old")
    before = [item.id for item in index]
    (tmp_path / "old").rename(tmp_path / "new")
    forbid_reading(monkeypatch)
    assert index.add(tmp_path / "new") == Added(0, 0, {}, moved=3)
    assert [item.id for item in index] == before
    assert index.folders() == {str(tmp_path / "new" / "a"): 2, str(tmp_path / "new" / "b"): 1}
    assert (index.missing(), index.verify()) == ([], [])


def test_vanished_photos_are_hidden_and_come_back(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "photos"
    paths = write_images(home, 3)
    copy = Path(shutil.copy2(paths[0], home / "copy.png"))
    index.add(home)
    counts = index.labels()
    away = [Path(shutil.move(path, tmp_path)) for path in (paths[0], paths[1])]
    forbid_reading(monkeypatch)
    assert index.add(home) == Added(0, 2, {}, gone=2)
    gone = id_of(away[1])
    assert (len(index), index.newest()[1], index.missing()) == (2, 2, [gone])
    assert gone in index
    assert index.paths(id_of(copy)) == (str(copy),)
    assert gone not in {row.id for row in index.search(id=id_of(copy), k=9)}
    assert sum(index.labels().values()) < sum(counts.values())
    assert index.folders() == {str(home): 2}
    index.compact()
    for path, place in zip(away, paths, strict=False):
        shutil.move(path, place)
    assert index.add(home) == Added(0, 4, {})
    assert (len(index), index.labels(), index.missing(), index.verify()) == (3, counts, [], [])


def test_a_folder_that_cannot_be_read_is_not_gone(index: Index, tmp_path: Path) -> None:
    write_images(tmp_path / "photos" / "closed", 2)
    write_images(tmp_path / "photos" / "open", 1)
    index.add(tmp_path / "photos")
    listdir = os.listdir

    def closed(folder: str) -> list[str]:
        if str(folder).endswith("closed"):
            raise PermissionError(13, "closed")
        return listdir(folder)

    with mock.patch.object(library.os, "listdir", closed):
        assert list(library.vanished(index.store, [str(tmp_path / "photos")])) == []
    shutil.rmtree(tmp_path / "photos" / "closed")
    assert len(list(library.vanished(index.store, [str(tmp_path / "photos")]))) == 2


def test_a_file_that_changes_while_it_is_read_is_left_for_later(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = write_images(tmp_path / "photos", 2)
    real = library.photo_info

    def written_meanwhile(image: Any, file: Any) -> Any:
        found = real(image, file)
        if str(image).endswith("000.png"):
            os.utime(first, (1, 1))
        return found

    with monkeypatch.context() as patch:
        patch.setattr(library, "photo_info", written_meanwhile)
        done = index.add(tmp_path / "photos")
    assert (done.added, list(done.broken)) == (1, [str(first)])
    assert index.add(tmp_path / "photos") == Added(1, 1, {}, predicted=1)


def test_folders_that_programs_keep_are_skipped(tmp_path: Path) -> None:
    kept = (
        "@eaDir",
        ".thumbnails",
        "#recycle",
        "lost+found",
        ".Trash-1000",
        "Photos Previews.lrdata",
        "$RECYCLE.BIN",
    )
    for name in (*kept, "2024"):
        photo(tmp_path / name / "a.jpg", 1)
    photo(tmp_path / "2024" / "._a.jpg", 1)
    assert list_images([tmp_path]) == list_images([f"{tmp_path}/**/*.jpg"]) == [tmp_path / "2024" / "a.jpg"]
    assert list_images([tmp_path / "@eaDir"]) == [tmp_path / "@eaDir" / "a.jpg"]  # named by its owner


def test_roots_are_remembered_until_they_are_removed(index: Index, tmp_path: Path) -> None:
    write_images(tmp_path / "a", 1)
    write_images(tmp_path / "b" / "c", 2)
    index.add([tmp_path / "a", tmp_path / "b"])
    assert index.store.roots() == [str(tmp_path / "a"), str(tmp_path / "b")]
    index.remove(id_of(tmp_path / "a" / "000.png"))
    index.compact()
    assert index.store.roots() == [str(tmp_path / "a"), str(tmp_path / "b")]
    index.remove(tmp_path / "b")
    assert index.store.roots() == [str(tmp_path / "a")]


def test_a_shared_index_writes_when_nobody_else_does(index: Index, tmp_path: Path) -> None:
    paths = write_images(tmp_path / "photos", 3)
    folder = index.folder
    index.close()
    with Index.open(folder, shared=True) as first, Index.open(folder, shared=True) as second:
        first.add(paths[0])
        second.add(paths[1])
        with Index.open(folder) as owner:
            owner.add(paths[2])
            with (
                mock.patch("centerhash.search.index._WAIT", 0.01),
                pytest.raises(InputError, match=str(os.getpid())),
            ):
                second.remove(paths[0])
        assert len(first) == len(second) == 3
        added = second.add_bytes((tmp_path / "photos" / "000.png").read_bytes())
        assert first.remove(added.id) == 1
        assert len(second) == 2


def test_opening_waits_for_a_change_of_another_process(index: Index) -> None:
    with mock.patch("centerhash.core.files.time.sleep", side_effect=lambda seconds: index.close()) as slept:
        Index.open(index.folder).close()
    slept.assert_called_once()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("IMG_1.jpg", "IMG_1.jpg"),
        ("../../etc/passwd", "passwd"),
        ("C:\\photos\\a b.jpg", "a b.jpg"),
        ("\x1b\n", None),
    ],
)
def test_names_of_uploads(name: str, expected: str | None) -> None:
    assert shown_name(name) == expected
