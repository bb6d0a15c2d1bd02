from __future__ import annotations

import io
import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from numpy.typing import NDArray

from centerhash.core.errors import ConfigError, ImageError, InputError
from centerhash.data import content_key
from centerhash.networks.backbones import BACKBONES, DEFAULT_BACKBONE
from centerhash.networks.encoder import Encoder
from centerhash.search import Added, Index
from centerhash.search.engines.flat import FlatIndex
from centerhash.search.uploads import image_suffix
from tests.toys import Killed, noise_image, write_images


@pytest.fixture
def index(image_run: Path, tmp_path: Path) -> Iterator[Index]:
    """An empty index."""
    with Index.create(tmp_path / "index", image_run) as made:
        yield made


@pytest.fixture
def quick_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Features of pictures without a network, for tests that are about files: mean colours in coarse cells."""

    class Quick:
        def features(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
            rows = [
                np.resize(image[::20, ::20].ravel(), BACKBONES[DEFAULT_BACKBONE].features) for image in pixels
            ]
            return np.array(rows, dtype=np.float32) / 255

    monkeypatch.setattr(Encoder, "engine", Quick())


def picture(seed: int, kind: str = "png") -> bytes:
    stream = io.BytesIO()
    noise_image(seed=seed).save(stream, kind)
    return stream.getvalue()


def id_of(path: Path) -> str:
    return content_key(path)[:16]


def damage(folder: Path) -> list[Path]:
    """Three files that are no whole pictures."""
    (folder / "empty.jpg").write_bytes(b"")
    (folder / "text.jpg").write_text("I am no picture.")
    (folder / "cut.png").write_bytes(picture(0)[:200])
    return sorted(folder / name for name in ("empty.jpg", "text.jpg", "cut.png"))


@pytest.mark.usefixtures("quick_network")
def test_equal_content_is_added_once(index: Index, tmp_path: Path) -> None:
    paths = write_images(tmp_path / "pictures", 5)
    shutil.copy(paths[0], tmp_path / "pictures" / "copy.png")
    assert index.add([tmp_path / "pictures"]) == Added(5, 1, {}, predicted=5)
    assert index.add([tmp_path / "pictures" / "*.png"]) == Added(0, 6, {})
    noise_image(seed=99).save(paths[4])  # another picture under the same name
    assert index.add([tmp_path / "pictures"]) == Added(1, 5, {}, predicted=1)
    assert len(index) == 6


@pytest.mark.usefixtures("quick_network")
def test_broken_images_are_told_not_fatal(index: Index, tmp_path: Path) -> None:
    write_images(tmp_path / "pictures", 3)
    broken = damage(tmp_path / "pictures")
    done = index.add([tmp_path / "pictures"])
    assert (done.added, done.known) == (3, 0)
    assert sorted(done.broken) == [str(path) for path in broken]
    assert all(path in reason for path, reason in done.broken.items())
    assert len(index) == 3


@pytest.mark.usefixtures("quick_network")
def test_a_name_that_is_no_text_is_told(index: Index, tmp_path: Path) -> None:
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.png")
    Path(odd).write_bytes(picture(1))
    (tmp_path / "café.png").write_bytes(picture(2))
    done = index.add([tmp_path / "*.png"])
    assert done.added == 1
    (reason,) = done.broken.values()
    assert "its name is not UTF-8. Rename it." in reason
    reason.encode()


@pytest.mark.usefixtures("quick_network")
def test_a_kill_loses_at_most_the_batch_in_work(
    image_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = write_images(tmp_path / "pictures", 40)
    store, batches = FlatIndex._add, []

    def killed_in_the_third(self: FlatIndex, *arguments: Any) -> None:
        batches.append(len(arguments[0].ids))
        if len(batches) == 3:
            raise Killed
        store(self, *arguments)

    monkeypatch.setattr(FlatIndex, "_add", killed_in_the_third)
    index = Index.create(tmp_path / "index", image_run)
    with pytest.raises(Killed), index:
        index.add(paths, batch=7)
    assert batches == [7, 7, 7]
    monkeypatch.undo()
    with Index.open(tmp_path / "index", read_only=True) as reader:
        assert list(reader.store.ids()) == sorted(id_of(path) for path in paths[:14])


@pytest.mark.usefixtures("quick_network")
def test_memory_holds_a_few_steps_however_many_files(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = write_images(tmp_path / "pictures", 60)
    decode, finish, lock = Encoder.pixels, Encoder._step, threading.Lock()
    alive, most = 0, 0

    def counted(self: Encoder, source: Path) -> NDArray[np.uint8]:
        nonlocal alive, most
        with lock:
            alive += 1
            most = max(most, alive)
        return decode(self, source)

    def finished(self: Encoder, *arguments: Any) -> Any:
        nonlocal alive
        step = finish(self, *arguments)
        with lock:
            alive -= len(step.keys)
        return step

    monkeypatch.setattr(Encoder, "pixels", counted)
    monkeypatch.setattr(Encoder, "_step", finished)
    stream = Encoder.stream
    monkeypatch.setattr(Encoder, "stream", lambda self, images, key: stream(self, images, key, batch=4))
    seen: list[tuple[str, int, int]] = []
    index.add(paths, batch=10, progress=lambda *state: seen.append(state[:3]))
    assert 0 < most <= 3 * 4
    assert seen == [("images", done, 60) for done in range(4, 61, 4)]
    assert len(index) == 60


@pytest.mark.usefixtures("quick_network")
def test_moved_files_get_their_new_path_without_being_read_again(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = write_images(tmp_path / "old", 4)
    index.add(paths)
    (tmp_path / "old").rename(tmp_path / "new")
    monkeypatch.setattr(Encoder, "pixels", mock.Mock(side_effect=AssertionError("nothing is decoded")))
    before = [index.get(id_of(tmp_path / "new" / path.name)).labels for path in paths]
    assert index.missing() == sorted(id_of(tmp_path / "new" / path.name) for path in paths)
    assert index.info()["missing"] == 4
    assert index.add([tmp_path / "new"], batch=3) == Added(0, 0, {}, moved=4)
    assert index.missing() == []
    assert [index.get(id_of(tmp_path / "new" / path.name)).labels for path in paths] == before
    moved = [tmp_path / "new" / path.name for path in paths]
    assert [index.image(id_of(path)) for path in moved] == [path.resolve() for path in moved]
    os.utime(moved[0])
    assert index.add([tmp_path / "new"]) == Added(0, 4, {})


@pytest.mark.usefixtures("quick_network")
def test_labels_above_the_folder_are_found(index: Index, tmp_path: Path) -> None:
    write_images(tmp_path / "photos" / "images", 3)
    write_images(tmp_path / "photos" / "others", 1)
    (tmp_path / "photos" / "labels.csv").write_text(
        "file_name,labels\nimages/000.png,mine\nimages/001.png,mine|yours\nothers/000.png,mine\n"
    )
    done = index.add(tmp_path / "photos" / "images")
    assert (done.added, done.given, done.predicted) == (3, 2, 1)
    assert index.get(id_of(tmp_path / "photos" / "images" / "000.png")).labels == ("mine",)
    assert len(index) == 3


@pytest.mark.usefixtures("quick_network")
def test_what_is_no_image_is_counted_by_kind(index: Index, tmp_path: Path) -> None:
    place = tmp_path / "photos"
    write_images(place, 2)
    for name in ("a.mp4", "b.MOV", "c.txt", "d.xmp", ".hidden.mp4", "deep/e.mp4", "classes.txt"):
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text("x")
    done = index.add(place)
    assert done.skipped == {"videos": 3, "texts": 1, "other files": 1}


@pytest.mark.usefixtures("quick_network")
def test_images_that_vanish_while_they_are_added_lose_nothing(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = write_images(tmp_path / "photos", 6)
    read = Encoder.pixels

    def vanishing(self: Encoder, image: Path) -> NDArray[np.uint8]:
        if image in paths[2:4]:
            image.unlink()
        return read(self, image)

    monkeypatch.setattr(Encoder, "pixels", vanishing)
    done = index.add(tmp_path / "photos", batch=2)
    assert (done.added, sorted(done.broken)) == (4, [str(path) for path in paths[2:4]])
    assert all("no such file" in reason for reason in done.broken.values())
    assert len(index) == 4


@pytest.mark.usefixtures("quick_network")
@pytest.mark.usefixtures("quick_network")
def test_a_relative_folder_below_its_labels_is_read_once(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = write_images(tmp_path / "photos" / "images", 3)
    lines = [f"images/{path.name},dog" for path in paths[:2]]
    (tmp_path / "photos" / "labels.csv").write_text("\n".join(["file_name,labels", *lines, ""]))
    monkeypatch.chdir(tmp_path)
    done = index.add("photos/images", labels="given")
    assert (done.added, done.known, done.given) == (3, 0, 2)


@pytest.mark.slow
def test_labels_are_given_or_predicted_or_none(image_run: Path, tmp_path: Path) -> None:
    first, second = write_images(tmp_path / "data" / "images", 2)
    (tmp_path / "data" / "labels.csv").write_text("file_name,labels\nimages/000.png,my label|other\n")
    stored, counts = {}, [(1, 1), (1, 0), (0, 2), (0, 0), (1, 1)]
    for number, labels in enumerate((None, "given", "predicted", "none", {str(second): ["mine", "mine"]})):
        with Index.create(tmp_path / str(number), image_run) as index:
            done = index.add(str(tmp_path / "data"), labels=labels)  # type: ignore[arg-type]
            assert done == Added(2, 0, {}, given=counts[number][0], predicted=counts[number][1])
            stored[number] = [index.get(id_of(path)).labels for path in (first, second)]
    assert [set(labels) for labels in stored[1]] == [{"my label", "other"}, set()]
    assert set(stored[0][0]) == {"my label", "other"}
    assert all(stored[2])
    assert stored[0][1] == stored[2][1]
    assert stored[3] == [(), ()]
    assert stored[4] == [stored[2][0], ("mine",)]


def test_slips_in_add_are_told(index: Index, tmp_path: Path) -> None:
    write_images(tmp_path / "plain", 1)
    with pytest.raises(ConfigError):
        index.add(tmp_path / "plain", labels="gven")
    with pytest.raises(ConfigError):
        index.add(tmp_path / "plain", labels="given")
    for images in (7, [7], None):
        with pytest.raises(InputError):
            index.add(images)  # type: ignore[arg-type]
    with pytest.raises(InputError):
        index.add(tmp_path / "plain", batch=0)
    assert len(index) == 0


def test_what_was_added_is_told_in_short() -> None:
    assert repr(Added(1200, 3, {"a.jpg": "why"})) == "Added(added=1,200, known=3, broken=1)"
    assert "moved=2" in repr(Added(0, 0, {}, moved=2))


@pytest.mark.usefixtures("quick_network")
def test_remove_by_id_path_and_folder(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = write_images(tmp_path / "a", 2)
    (tmp_path / "b" / "c").mkdir(parents=True)
    for number in (7, 8, 9):
        (tmp_path / "b" / "c" / f"{number}.png").write_bytes(picture(number))
    index.add([tmp_path / "a", tmp_path / "b"])
    monkeypatch.chdir(tmp_path)
    gone = id_of(second)
    second.unlink()
    entries = [id_of(first), "a/001.png", "no/such.png", "x" * 600, "b/c/"]
    found = index.find(entries)
    assert (found[entries[0]], found["a/001.png"], found["no/such.png"]) == ([id_of(first)], [gone], [])
    assert len(found["b/c/"]) == 3
    assert index.remove([id_of(first), "a/001.png", "no/such.png"]) == 2
    assert index.remove([id_of(first), "a/001.png"]) == 0
    assert first.exists()
    assert index.remove(["b", "b/c/7.png"]) == 3
    assert len(index) == 0


def test_a_link_that_leads_to_itself_means_no_item(index: Index, tmp_path: Path) -> None:
    (tmp_path / "round.png").symlink_to("round.png")
    assert index.find([tmp_path / "round.png"]) == {str(tmp_path / "round.png"): []}


def test_uploads_are_kept_and_found(index: Index, tmp_path: Path) -> None:
    data = picture(3)
    added = index.add_bytes(data, "holiday.png")
    assert added == index.add_bytes(data) == index.get(added.id)
    file = index.image(added.id)
    assert file == (tmp_path / "index" / "images" / f"{added.id}.png").resolve()
    assert file.read_bytes() == data
    assert added.labels
    (found,) = index.search(data, k=1)
    assert found == replace(added, look=0)
    (tmp_path / "same.png").write_bytes(data)
    assert index.add([tmp_path / "same.png"]) == Added(0, 1, {})
    index.close()
    (tmp_path / "index").rename(tmp_path / "moved")
    with Index.open(tmp_path / "moved") as moved:
        assert moved.image(added.id).read_bytes() == data
        assert moved.verify() == []
        assert moved.info()["uploads"] == 1
        assert moved.remove([added.id]) == 1
        assert list((tmp_path / "moved" / "images").iterdir()) == []


@pytest.mark.usefixtures("quick_network")
def test_an_upload_replaces_a_file_that_is_gone(index: Index, tmp_path: Path) -> None:
    (path,) = write_images(tmp_path / "pictures", 1)
    data = path.read_bytes()
    index.add([path])
    assert index.add_bytes(data).path == str(path.resolve())
    path.unlink()
    added = index.add_bytes(data)
    assert index.image(added.id).parent.name == "images"
    assert index.image(added.id).read_bytes() == data
    assert len(index) == 1


@pytest.mark.usefixtures("quick_network")
def test_broken_uploads_leave_nothing(index: Index, tmp_path: Path) -> None:
    for data, reason in ((b"", "0 bytes"), (b"GIF89a", "damaged GIF"), (picture(1)[:99], "'cat.png'")):
        with pytest.raises(ImageError, match=reason):
            index.add_bytes(data, "cat.png")
    with pytest.raises(ImageError):
        index.add_bytes(b"text")
    assert len(index) == 0
    assert not (tmp_path / "index" / "images").exists()


@pytest.mark.usefixtures("quick_network")
def test_a_kill_between_picture_and_item_leaves_an_orphan_that_compact_removes(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = index.add_bytes(picture(1))

    def killed(*arguments: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(FlatIndex, "_add", killed)
        with pytest.raises(Killed):
            index.add_bytes(picture(2))
    assert len(list((tmp_path / "index" / "images").iterdir())) == 2
    assert len(index) == 1
    assert index.verify() == []
    index.compact()
    assert [file.stem for file in (tmp_path / "index" / "images").iterdir()] == [kept.id]


@pytest.mark.usefixtures("quick_network")
def test_damaged_and_missing_uploads_are_named(index: Index) -> None:
    first, second, third = (index.image(index.add_bytes(picture(seed)).id) for seed in (1, 2, 3))
    first.write_bytes(picture(9))
    third.write_bytes(b"")
    problems = sorted(index.verify(), key=lambda text: first.name in text)
    assert len(problems) == 2
    assert third.name in problems[0]
    assert f"{first.name}' is not the image that was added" in problems[1]
    first.write_bytes(picture(1))
    third.write_bytes(picture(3))
    second.unlink()
    (missing,) = index.verify()
    assert f"{second.name}', the image of the item '{second.stem}', is missing" in missing


@pytest.mark.parametrize(
    ("kind", "suffix"),
    [
        ("jpeg", ".jpg"),
        ("png", ".png"),
        ("gif", ".gif"),
        ("webp", ".webp"),
        ("bmp", ".bmp"),
        ("tiff", ".tif"),
        ("jpeg2000", ".jp2"),
        ("avif", ".avif"),
        ("ppm", ".ppm"),
    ],
)
def test_suffixes_by_content(kind: str, suffix: str) -> None:
    assert image_suffix(picture(0, kind)) == suffix


@pytest.mark.usefixtures("quick_network")
@pytest.mark.slow
def test_threads_may_search_while_others_change(index: Index, tmp_path: Path) -> None:
    paths = write_images(tmp_path / "pictures", 30)
    index.add(paths[:10])
    stay = id_of(paths[0])
    data = [picture(100 + number) for number in range(8)]

    def churn(number: int) -> None:
        added = index.add_bytes(data[number % 8])  # every picture by several threads
        index.remove([added.id])

    def ask(number: int) -> int:
        return len(index.search(id=stay, k=50))

    with ThreadPoolExecutor(8) as pool:
        changes = [pool.submit(churn, number) for number in range(40)]
        adding = [pool.submit(index.add, paths) for _ in range(2)]
        asked = [pool.submit(ask, number) for number in range(150)]
        assert [change.exception() for change in changes] == [None] * 40
        sizes = [answer.result() for answer in asked]
        assert sum(work.result().added for work in adding) == 20
    assert min(sizes) >= 9
    assert len(index) == 30
    assert index.verify() == []
