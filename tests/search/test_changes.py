"""Changes of an index: adding, moving, removing, uploads, compaction, and what a crash leaves."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from numpy.typing import NDArray

from centerhash.core.errors import ConfigError, DataError, ImageError, InputError
from centerhash.data import content_key
from centerhash.networks.encoder import Encoder
from centerhash.search import Added, Index
from centerhash.search.items import File
from centerhash.search.store import Store
from centerhash.search.uploads import image_suffix
from tests.toys import Killed, names, noise_image, write_images


@pytest.fixture
def index(image_run: Path, tmp_path: Path) -> Iterator[Index]:
    """An empty index."""
    with Index.create(tmp_path / "index", image_run) as made:
        yield made


@pytest.fixture(autouse=True)
def quick_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Features without a network, as these tests are about files: mean colors in coarse cells."""

    class Quick:
        def __init__(self, encoder: Encoder) -> None:
            self.width = encoder.backbone.features

        def features(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
            rows = [np.resize(image[::20, ::20].ravel(), self.width) for image in pixels]
            return np.array(rows, dtype=np.float32) / 255 - 0.5

    monkeypatch.setattr(Encoder, "engine", property(Quick))


@pytest.fixture
def killed_adds(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The sizes of all additions to a store; the one after those is killed."""
    add, done = Store._add, list[int]()

    def killed_in_the_third(self: Store, *arguments: Any) -> None:
        if len(done) == 2:
            raise Killed
        done.append(len(arguments[0]))
        add(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "_add", killed_in_the_third)
        yield done


def picture(seed: int, kind: str = "png") -> bytes:
    stream = io.BytesIO()
    noise_image(seed=seed).save(stream, kind)
    return stream.getvalue()


def id_of(path: Path) -> str:
    return content_key(path)[:16]


# --- adding files


def test_equal_content_is_added_once(index: Index, tmp_path: Path) -> None:
    paths = write_images(tmp_path / "pictures", 5)
    shutil.copy(paths[0], tmp_path / "pictures" / "copy.png")
    assert index.add([tmp_path / "pictures"]) == Added(5, 1, {}, predicted=5)
    steps: list[tuple[str, int, int]] = []
    again = index.add([tmp_path / "pictures" / "*.png"], progress=lambda *step: steps.append(step[:3]))
    assert (again, steps) == (Added(0, 6, {}), [("images", 6, 6)])
    noise_image(seed=99).save(paths[4])  # another picture under the same name
    done = index.add([tmp_path / "pictures"])
    assert done == Added(1, 5, {}, predicted=1)
    assert len(index) == 5  # the picture of before is gone with its only file
    assert index.paths(id_of(paths[0])) == (
        str(tmp_path / "pictures" / "000.png"),
        str(tmp_path / "pictures" / "copy.png"),
    )
    assert repr(replace(done, added=1200, broken={"a": "why"})) == "Added(added=1,200, known=5, broken=1)"
    assert "moved=2" in repr(replace(done, moved=2))


def test_broken_and_other_files_do_not_stop_the_others(index: Index, tmp_path: Path) -> None:
    place = tmp_path / "pictures"
    write_images(place, 3)
    odd = os.fsdecode(os.fsencode(place) + b"/caf\xe9.png")
    contents = {"empty.jpg": b"", "text.jpg": b"I am no picture.", "cut.png": picture(0)[:200]}
    for name, content in {**contents, odd: picture(7)}.items():
        (place / name).write_bytes(content)
    for name in ("a.mp4", "b.MOV", "c.txt", "d.xmp", ".hidden.mp4", "deep/e.mp4", "classes.txt"):
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text("x")
    done = index.add(place)
    assert (done.added, done.known, len(index)) == (4, 0, 4)
    assert set(done.broken) == {str(place / name) for name in contents}
    assert all(str(place / name) in done.broken[str(place / name)] for name in contents)
    assert index.paths(id_of(Path(odd))) == (odd,)  # a name that is not UTF-8
    assert index.image(id_of(Path(odd))).read_bytes() == picture(7)
    assert done.skipped == {"videos": 3, "texts": 1, "other files": 1}


def test_a_crash_loses_one_batch(image_run: Path, tmp_path: Path, killed_adds: list[int]) -> None:
    paths = write_images(tmp_path / "pictures", 40)
    with pytest.raises(Killed), Index.create(tmp_path / "index", image_run) as index:
        index.add(paths, batch=7)
    assert killed_adds == [7, 7]
    with Index.open(tmp_path / "index", read_only=True) as reader:
        assert [item.id for item in reader] == [id_of(path) for path in paths[:14]]


def test_moved_files(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = write_images(tmp_path / "old", 4)
    index.add(paths)
    before = {item.id: item for item in index}
    (tmp_path / "old").rename(tmp_path / "new")
    moved = [tmp_path / "new" / path.name for path in paths]
    os.utime(moved[0], (5, 5))
    assert index.missing() == list(before) == list(map(id_of, moved))
    assert index.info()["missing"] == 4
    monkeypatch.setattr(Encoder, "pixels", mock.Mock(side_effect=AssertionError("nothing is decoded")))
    assert index.add([tmp_path / "new"], batch=3) == Added(0, 0, {}, moved=4)
    assert index.missing() == []
    for path in moved:
        item, old = index.store.get([id_of(path)])[0], before[id_of(path)]
        assert item.files == (File(str(path.resolve()), path.stat().st_size, path.stat().st_mtime),)
        assert (item.labels, item.scores, item.code.tolist()) == (old.labels, old.scores, old.code.tolist())
    assert index.folders() == {str(tmp_path / "new"): 4}
    assert index.add([tmp_path / "new"]) == Added(0, 4, {})
    assert index.verify() == []


def test_labels_are_given_or_predicted_or_none(image_run: Path, tmp_path: Path) -> None:
    first, second = write_images(tmp_path / "data" / "images", 2)
    (tmp_path / "data" / "labels.csv").write_text("file_name,labels\nimages/000.png,my label|other\n")
    stored: list[list[tuple[str, ...]]] = []
    sources: list[Any] = [None, "given", "predicted", "none", {str(second): ["mine", "mine"]}]
    counts = [(1, 1), (1, 0), (0, 2), (0, 0), (1, 1)]
    for number, (labels, (given, predicted)) in enumerate(zip(sources, counts, strict=True)):
        with Index.create(tmp_path / str(number), image_run) as index:
            done = index.add(str(tmp_path / "data"), labels=labels)
            assert done == Added(2, 0, {}, given=given, predicted=predicted)
            stored.append([tuple(sorted(index.get(id_of(path)).labels)) for path in (first, second)])
    both = ("my label", "other")
    assert all(stored[2])
    assert stored == [[both, stored[2][1]], [both, ()], stored[2], [(), ()], [stored[2][0], ("mine",)]]


def test_labels_above_the_folder(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = write_images(tmp_path / "photos" / "images", 3)
    write_images(tmp_path / "photos" / "others", 1)
    lines = ("images/000.png,mine", "images/001.png,mine|yours", "others/000.png,mine")
    (tmp_path / "photos" / "labels.csv").write_text("\n".join(["file_name,labels", *lines, ""]))
    monkeypatch.chdir(tmp_path)
    for folder in ("photos/images", tmp_path / "photos" / "images"):
        done = index.add(folder)
        assert (done.added, done.known, done.given, done.predicted) == (3, 0, 2, 1)
        assert index.get(id_of(paths[0])).labels == ("mine",)
        assert index.remove(folder) == 3


def test_bad_arguments_of_add(index: Index, tmp_path: Path) -> None:
    write_images(tmp_path / "plain", 1)
    (tmp_path / "labels.csv").write_text("file_name,labels\nnone.jpg,dog\n")
    plain, bad = tmp_path / "plain", list[tuple[Any, dict[str, Any], type[InputError], str]]()
    bad += [(images, {}, InputError, f"got .*{images}") for images in (7, None)]
    bad += [
        ([7], {}, InputError, "7"),
        (plain, {"labels": "gven"}, ConfigError, "gven"),
        (plain, {"labels": "given"}, DataError, r"none\.jpg"),
        (plain, {"batch": 0}, InputError, "batch"),
        (plain, {"labels": {"plain/000.png": "dog"}}, InputError, "dog"),
    ]
    for images, options, kind, named in bad:
        with pytest.raises(kind, match=named):
            index.add(images, **options)
    (tmp_path / "labels.csv").unlink()
    with pytest.raises(ConfigError, match=r"labels\.csv"):
        index.add(plain, labels="given")
    assert len(index) == 0


# --- adding codes


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"ids": ["a", "b"]}, "2"),
        ({"packed": np.zeros((3, 1), np.uint8)}, "codes"),
        ({"packed": np.zeros((3, 4), np.int64)}, "codes"),
        ({"ids": ["a", "", "c"]}, "got ''"),
        ({"ids": ["a", "x" * 513, "c"]}, "512"),
        ({"ids": ["a", "\ud800", "c"]}, "id"),
        ({"ids": ["a", "b", "a"]}, "'a'"),
        ({"labels": [("cat",)]}, "1"),
        ({"labels": ["cat", (), ()]}, "'cat'"),
        ({"labels": [(), (3,), ()]}, "3"),
        ({"labels": [(), ("\ud800",), ()]}, "label"),
        ({"paths": ["../secret.txt", None, None]}, r"'\.\./secret\.txt'"),
        ({"paths": ["/a\0", None, None]}, "path"),
        ({"visual": [None, np.zeros(15, np.uint8), None]}, "visual"),
        ({"scores": [{}, {"cat": (256, 0)}, {}]}, "'cat'"),
        ({"scores": [{}, {"cat": (1,)}, {}]}, "'cat'"),
    ],
)
def test_codes_that_are_rejected(index: Index, columns: dict[str, Any], named: str) -> None:
    given = {"packed": np.zeros((3, 4), np.uint8), "ids": ["a", "b", "c"], **columns}
    with pytest.raises(InputError, match=named):
        index.add_codes(**given)
    assert len(index) == 0


def test_codes_are_added_under_texts_and_known_ones_skipped(index: Index) -> None:
    assert index.add_codes(np.zeros((3, 4), np.uint8), range(3)) == Added(3, 0, {})
    assert index.add_codes(np.ones((4, 4), np.uint8), range(1, 5)) == Added(2, 2, {})
    assert [item.id for item in index] == ["0", "1", "2", "3", "4"]
    assert [row.id for row in index.search(id="1", k=2)] == ["0", "2"]


# --- removing


def test_remove_by_id_path_and_folder(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = write_images(tmp_path / "a", 2)
    (tmp_path / "b" / "c").mkdir(parents=True)
    for number in (7, 8, 9):
        (tmp_path / "b" / "c" / f"{number}.png").write_bytes(picture(number))
    (tmp_path / "round.png").symlink_to("round.png")
    index.add([tmp_path / "a", tmp_path / "b"])
    assert index.folders() == {str(tmp_path / "a"): 2, str(tmp_path / "b" / "c"): 3}
    monkeypatch.chdir(tmp_path)
    gone = id_of(second)
    second.unlink()
    others = [item.id for item in index][2:]
    assert index.find([id_of(first), "a/001.png", "no/such.png", "x" * 600, "b/c/", "round.png"]) == {
        id_of(first): [id_of(first)],
        "a/001.png": [gone],
        "no/such.png": [],
        "x" * 600: [],
        "b/c/": others,
        "round.png": [],
    }
    assert index.remove([id_of(first), "a/001.png", "no/such.png"]) == 2
    assert index.remove([id_of(first), "a/001.png"]) == index.remove([]) == 0
    assert first.exists()
    assert index.remove(["b", "b/c/7.png"]) == 3
    assert (len(index), index.labels(), index.folders(), index.newest()) == (0, {}, {}, ([], 0))
    with pytest.raises(InputError, match="7"):
        index.remove([7])  # type: ignore[list-item]


def test_compaction_reclaims_space_and_changes_no_result(index: Index, tmp_path: Path) -> None:
    paths = write_images(tmp_path / "pictures", 12)
    index.add(paths)
    index.remove(paths[::2])
    asked = id_of(paths[1])

    def results() -> list[Any]:
        return [list(index.search(id=asked, k=9)), index.newest(), index.labels(), index.folders()]

    before, version, removed = results(), index.version, index.info()["details"]["removed"]
    index.compact()
    assert (removed, index.info()["details"]["removed"]) == (6, 0)
    assert results() == before
    assert index.version != version
    assert index.verify() == []
    assert index.add(paths).added == 6


# --- uploads


def test_uploads_are_kept_and_found(index: Index, tmp_path: Path) -> None:
    data = picture(3)
    added = index.add_bytes(data, "holiday.png")
    assert added == index.add_bytes(data) == index.get(added.id)
    file = index.image(added.id)
    assert file == (tmp_path / "index" / "images" / f"{added.id}.png").resolve()
    assert file.read_bytes() == data
    (found,) = index.search(data, k=1)
    assert found == replace(added, visual=0)
    assert (added.name, added.width, added.height) == ("holiday.png", 48, 48)
    assert added.taken == datetime.fromtimestamp(file.stat().st_mtime)
    assert index.folders() == {str(file.parent): 1}
    assert len(index.search(data, under=tmp_path / "index")) == len(index.newest(under=file.parent)[0]) == 1
    assert len(index.search(data, under=tmp_path / "elsewhere")) == 0
    (tmp_path / "same.png").write_bytes(data)
    assert index.add([tmp_path / "same.png"]) == Added(0, 1, {})
    index.close()
    (tmp_path / "index").rename(tmp_path / "moved")
    with Index.open(tmp_path / "moved") as moved:
        assert moved.image(added.id).read_bytes() == data
        assert moved.verify() == []
        assert moved.info()["uploads"] == 1
        assert moved.remove([added.id]) == 1
    assert names(tmp_path / "moved" / "images") == []


def test_an_upload_replaces_a_file_that_is_missing(index: Index, tmp_path: Path) -> None:
    (path,) = write_images(tmp_path / "pictures", 1)
    data = path.read_bytes()
    index.add([path])
    assert index.add_bytes(data).path == str(path.resolve())
    path.unlink()
    added = index.add_bytes(data)
    assert index.image(added.id).parent.name == "images"
    assert index.image(added.id).read_bytes() == data
    assert len(index) == 1


def test_broken_uploads_leave_nothing(index: Index, tmp_path: Path) -> None:
    for data in (b"", b"GIF89a", b"text", picture(1)[:99]):
        with pytest.raises(ImageError, match=r"'cat\.png'"):
            index.add_bytes(data, "cat.png")
        with pytest.raises(ImageError):
            index.add_bytes(data)
    with pytest.raises(InputError, match="str"):
        index.add_bytes("cat.png")  # type: ignore[arg-type]
    assert len(index) == 0
    assert not (tmp_path / "index" / "images").exists()


def test_uploads_without_an_item(index: Index, tmp_path: Path, killed_adds: list[int]) -> None:
    kept = [index.add_bytes(picture(seed)).id for seed in (1, 2)]
    with pytest.raises(Killed):
        index.add_bytes(picture(3))
    assert (len(names(tmp_path / "index" / "images")), len(index), index.verify()) == (3, 2, [])
    index.compact()
    assert names(tmp_path / "index" / "images") == sorted(f"{id}.png" for id in kept)


def test_damaged_and_missing_uploads_are_named(index: Index) -> None:
    first, second, third = (index.image(index.add_bytes(picture(seed)).id) for seed in (1, 2, 3))
    for file, content in ((first, picture(9)), (third, b"")):
        before = file.read_bytes()
        file.write_bytes(content)
        (problem,) = index.verify()
        assert file.name in problem
        with pytest.raises(ImageError, match=file.name):
            index.image(file.stem)
        file.write_bytes(before)
    second.unlink()
    (missing,) = index.verify()
    assert second.name in missing
    assert index.missing() == [second.stem]


def test_suffixes_by_content() -> None:
    for kind in ("png", "gif", "webp", "bmp", "avif", "ppm"):
        assert image_suffix(picture(0, kind)) == f".{kind}"
    for kind, suffix in (("jpeg", ".jpg"), ("tiff", ".tif"), ("jpeg2000", ".jp2")):
        assert image_suffix(picture(0, kind)) == suffix


@pytest.mark.slow
def test_threads_may_search_while_others_change(index: Index, tmp_path: Path) -> None:
    paths = write_images(tmp_path / "pictures", 30)
    index.add(paths[:10])
    stay = id_of(paths[0])
    data = [picture(100 + number) for number in range(8)]

    def churn(number: int) -> None:
        index.remove([index.add_bytes(data[number % 8]).id])  # every picture by several threads

    def search(_: int) -> int:
        return min(len(index.search(id=stay, k=50)), index.newest(without=["x"])[1])

    with ThreadPoolExecutor(8) as pool:
        changes = [pool.submit(churn, number) for number in range(40)]
        adding = [pool.submit(index.add, paths) for _ in range(2)]
        compaction = pool.submit(index.compact)
        searches = [pool.submit(search, number) for number in range(150)]
        assert [change.exception() for change in (*changes, compaction)] == [None] * 41
        sizes = [found.result() for found in searches]
        assert sum(work.result().added for work in adding) == 20
    assert min(sizes) >= 9
    assert len(index) == 30
    assert index.verify() == []
