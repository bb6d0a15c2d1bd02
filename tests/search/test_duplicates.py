from __future__ import annotations

import csv
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from centerhash.core.errors import ConfigError, DataError
from centerhash.data import content_key
from centerhash.data.images import Header, load_with_header, read_header
from centerhash.model.model import HashModel
from centerhash.search import Index, duplicates
from centerhash.search.duplicates import (
    Content,
    Duplicates,
    Looks,
    find_duplicates,
    folder_duplicates,
)
from centerhash.search.keepers import RULES, Keeping, RealFile
from centerhash.search.moving import move, plan_moves, undo
from tests.search.test_pixels import scene
from tests.toys import write_images


def save(image: Image.Image, path: Path, *, camera: str = "", taken: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    exif = Image.Exif()
    if camera:
        exif[0x0110] = camera
    if taken:
        exif.get_ifd(0x8769)[0x9003] = taken
    image.save(path, exif=exif, quality=90)
    return path


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Photo 0 with two equal copies and a small one, photo 1 mirrored; photos 2 and 3 are others."""
    root = tmp_path / "photos"
    first = save(scene(0), root / "0.png")
    for name in ("0-copy.png", "0-copy-<script>.png"):
        shutil.copy(first, root / name)
    save(scene(0).resize((90, 90)), root / "0-small.jpg")
    scene(1).save(root / "1.png", compress_level=1)  # the larger file
    ImageOps.mirror(scene(1)).save(root / "1-mirrored.png", compress_level=9)
    save(scene(2), root / "2.png")
    save(scene(3, 300), root / "3.png")
    return root


def find(images: Path, **choice: object) -> Duplicates:
    return folder_duplicates(images, progress=False, **choice)  # type: ignore[arg-type]


def named(found: Duplicates) -> list[tuple[str, str, set[str], str]]:
    root = found.root or Path()
    return [
        (
            group.kind,
            Path(group.keep.path or "").relative_to(root).as_posix(),
            {Path(one.path or "").relative_to(root).as_posix() for one in group.others},
            group.rule,
        )
        for group in found
    ]


def test_kinds_of_groups_which_to_keep_and_why(photos: Path) -> None:
    found = find(photos)
    assert named(found) == [
        ("same", "0.png", {"0-copy.png", "0-copy-<script>.png"}, "shorter path"),
        ("near", "0.png", {"0-small.jpg"}, "resolution"),
        ("near", "1.png", {"1-mirrored.png"}, "file size"),
    ]
    near = found.of_kind("near")
    assert (near[0].keep.width, near[0].keep.height, near[0].others[0].width) == (200, 200, 90)
    assert [group.others[0].change for group in near] == [None, "mirrored"]
    assert found.looked_at == 8
    for kind in ("same", "near"):
        assert list(find(photos, kind=kind)) == list(found.of_kind(kind))
    others = [one.path for group in found for one in group.others]
    assert len(others) == len(set(others)) == 4  # each is proposed for removal once


def test_same_content_in_three_folders_is_kept_where_one_prefers(tmp_path: Path) -> None:
    first = save(scene(0), tmp_path / "albums/2024 Summer/beach.jpg")
    for name in ("Backup/beach.jpg", "phone/IMG_1.jpg"):
        (tmp_path / name).parent.mkdir()
        shutil.copy(first, tmp_path / name)
    album, backup, phone = "albums/2024 Summer/beach.jpg", "Backup/beach.jpg", "phone/IMG_1.jpg"
    assert named(find(tmp_path)) == [("same", phone, {album, backup}, "shorter path")]
    for prefer, keep in (
        (["albums"], album),
        (["Backup", "albums"], backup),
        (["albums", "Backup"], album),
        (["albums/2024 Summer"], album),
    ):
        (group,) = named(find(tmp_path, prefer=[tmp_path / name for name in prefer]))
        assert group == ("same", keep, {album, backup, phone} - {keep}, "preferred folder")
    with pytest.raises(ConfigError, match="nowhere"):
        find(tmp_path, prefer=tmp_path / "nowhere")


def test_exif_and_the_oldest_date_decide_between_equal_sizes() -> None:
    contents = [Content(name, [RealFile(Path(f"/{name}"), 100)]) for name in ("aaaa", "bbb", "cc", "d")]
    picture = duplicates.picture_of(scene(0))
    facts = [
        Header("image/jpeg", 8, 8, taken=1.0, exif=True),
        Header("image/jpeg", 8, 8, taken=2.0, exif=True),
        Header("image/jpeg", 8, 8, exif=True),
        Header("image/jpeg", 8, 8),
    ]
    for first, rule in enumerate(["date taken", "date taken", "EXIF"]):
        looks = Looks(
            contents[first:], dict.fromkeys(range(4 - first), picture), dict(enumerate(facts[first:]))
        )
        (group,) = find_duplicates(looks, Keeping())
        assert (group.keep.id, group.rule) == (contents[first].id, rule)
        assert [one.id for one in group.others] == [content.id for content in contents[first + 1 :]]
    assert set(RULES) >= {"date taken", "EXIF"}


def test_an_image_with_its_header(tmp_path: Path) -> None:
    path = save(scene(0), tmp_path / "a.jpg", camera="Camera", taken="2024:06:01 12:30:00")
    image, header = load_with_header(path)
    assert (image.size, header) == ((200, 200), read_header(path))
    assert (header.camera, header.exif) == ("Camera", True)
    assert not load_with_header(save(scene(0), tmp_path / "b.jpg"))[1].exif
    lying = Image.Exif()
    lying[0x0112] = 6
    scene(0).resize((80, 40)).save(path, exif=lying)
    image, header = load_with_header(path)
    assert (header.width, header.height) == image.size == (40, 80)
    save(scene(0), path, taken="2024:06:01 12:30:00")
    shutil.copy(path, tmp_path / "copy.jpg")
    assert find(tmp_path, kind="same")[0].keep.taken == "2024-06-01 12:30:00"


def test_edited_metadata_is_near_not_the_same(tmp_path: Path) -> None:
    first = save(scene(0), tmp_path / "a.jpg")
    with Image.open(first) as image:
        exif = image.getexif()
        exif[0x0110] = "Camera"
        image.save(tmp_path / "edited.jpg", exif=exif, quality="keep")
    (group,) = find(tmp_path)
    assert (group.kind, group.others[0].correlation, group.rule) == ("near", 1.0, "file size")
    assert group.keep.path == str(tmp_path / "edited.jpg")


def test_links_to_a_file_are_that_file(tmp_path: Path) -> None:
    first = save(scene(0), tmp_path / "album/a.jpg")
    save(scene(1), tmp_path / "album/b.jpg")
    (tmp_path / "l.jpg").symlink_to(first)
    os.link(first, tmp_path / "album/hard.jpg")
    found = find(tmp_path)
    assert (list(found), found.looked_at) == ([], 2)
    assert "2 paths are links" in found.notes[0]
    outside = tmp_path / "outside"
    shutil.copy(first, save(scene(2), outside / "c.jpg"))
    (tmp_path / "album/z.jpg").symlink_to(outside / "c.jpg")
    (group,) = find(tmp_path / "album")
    assert (
        group.rule == "not a link or upload"
    )  # the file in the album is kept, not the link to another place
    assert [one.path for one in group.others] == [str(tmp_path / "album/z.jpg")]
    _, skipped = plan_moves(find(tmp_path / "album").wanted(), tmp_path / "to", tmp_path / "album")
    assert list(skipped) == [str(tmp_path / "album/z.jpg")]


def test_moved_duplicates_are_not_compared_again(photos: Path) -> None:
    found = find(photos)
    target = photos / "duplicates"
    planned, _ = plan_moves(found.wanted(), target, photos)
    assert move(planned, target).photos == 4
    again = find(photos)
    assert (list(again), again.looked_at) == ([], 4)
    assert "4 images in folders of moved duplicates" in again.notes[0]
    assert undo(target).photos == 4
    shutil.rmtree(target)
    assert list(find(photos)) == list(found)


def test_similar_ones_are_only_moved_if_named(photos: Path) -> None:
    found = find(photos)
    similar = duplicates.Group("similar", found[0].keep, found[0].others, "name")
    both = Duplicates([*found, similar], 8, {}, root=photos)
    assert len(both.wanted()) == len(found.wanted()) == 4
    assert len(both.wanted("same")) == len(both.wanted("similar")) == 2


@settings(max_examples=25)
@given(
    st.lists(st.integers(0, 3), min_size=2, max_size=12),
    st.lists(st.booleans(), min_size=12, max_size=12),
)
def test_a_file_is_never_in_a_group_twice(families: list[int], twice: list[bool]) -> None:
    """Files of four pictures, some of them with a second file of the same bytes."""
    pictures = [duplicates.picture_of(scene(family)) for family in range(4)]
    contents = [
        Content(
            str(row),
            [RealFile(Path(f"/{row}/{copy}"), 10 * row, real=(1, 2 * row + copy)) for copy in range(1 + two)],
        )
        for row, (_, two) in enumerate(zip(families, twice, strict=False))
    ]
    looks = Looks(contents, {row: pictures[family] for row, family in enumerate(families)})
    groups = find_duplicates(looks, Keeping())
    for group in groups:
        paths = [one.path for one in group.photos]
        assert len(paths) == len(set(paths)) > 1
    others = [one.path for group in groups for one in group.others]
    assert len(others) == len(set(others))
    everything = {str(file.path) for content in contents for file in content.files}
    assert len(everything - set(others)) == len(set(families))  # one of each picture is kept


def test_only_files_of_equal_size_are_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = write_images(tmp_path, 3)
    shutil.copy(paths[1], tmp_path / "copy.png")
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    read: list[Path] = []
    monkeypatch.setattr(duplicates, "content_key", lambda path: read.append(path) or content_key(path))
    found = find(tmp_path, model=tmp_path / "no model", kind="same")
    assert named(found) == [("same", "001.png", {"copy.png"}, "shorter path")]
    assert len(read) == sum(sizes.count(size) > 1 for size in sizes)


def test_a_folder_with_a_model_that_sees(image_run: Path, photos: Path) -> None:
    (photos / "broken.jpg").write_bytes(b"no image")
    (photos / "broken-too.jpg").write_bytes(b"no image")
    model = HashModel.load(image_run)
    assert model.visual_bits == 128
    found = find(photos, model=model, kind="similar", device="cpu")
    assert found.looked_at == 8
    assert sorted(Path(path).name for path in found.skipped) == ["broken-too.jpg", "broken.jpg"]
    assert all(group.kind == "similar" for group in found)
    assert all(one.bits is not None for group in found for one in group.others)


def test_folders_and_kinds_that_are_rejected(feature_run: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=str(tmp_path)):
        folder_duplicates(tmp_path)
    Image.new("RGB", (8, 8)).save(tmp_path / "one.png")
    (tmp_path / "empty.png").touch()
    with pytest.raises(DataError, match=r"1 of 2 images .* two.*0 bytes"):
        find(tmp_path)
    write_images(tmp_path, 2)
    with pytest.raises(ConfigError, match="visual"):
        find(tmp_path, model=feature_run, kind="similar")
    with pytest.raises(ConfigError, match="'simlar'"):
        find(tmp_path, kind="simlar")


def test_as_json_as_a_table_and_as_a_page(photos: Path, tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    found = find(photos)
    assert repr(found) == "Duplicates(1 same, 2 near, 0 similar; 8 images)"
    first = found.to_dict()["groups"][0]
    assert (Path(first["keep"]["path"]).name, first["rule"]) == ("0.png", "shorter path")
    assert found.to_pandas()["keep"].sum() == 3
    found.write_csv(tmp_path / "found.csv")
    with (tmp_path / "found.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["rule"] for row in rows if row["keep"] == "True"] == [group.rule for group in found]
    assert [row["path"] for row in rows] == [one.path for group in found for one in group.photos]
    found.write_page(tmp_path / "page" / "duplicates.html")
    page = (tmp_path / "page" / "duplicates.html").read_text()
    assert page.count("<img") == page.count("data:image/jpeg;base64") == 7
    assert page.count('class="keep"') == page.count("<em>keep: ") == 3
    assert "keep: shorter path" in page
    assert "<script>" not in page
    assert "0-copy-&lt;script&gt;.png" in page


# --- indexes


def visual_of(number: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.random.default_rng(number).integers(0, 256, 16, dtype=np.uint8)


def fill(index: Index, paths: list[Path]) -> None:
    """Add photos with made visual codes, which depend on the first letter of their names."""
    ids = [content_key(path)[:16] for path in paths]
    visual = [visual_of(ord(path.name[0])) for path in paths]
    index.add_codes(np.zeros((len(paths), 4), np.uint8), ids, None, list(map(str, paths)), visual)


@pytest.fixture
def index_folder(image_run: Path, tmp_path: Path) -> Path:
    Index.create(tmp_path / "index", image_run).close()
    return tmp_path / "index"


def test_an_index_by_files_and_visual_codes(index_folder: Path, photos: Path) -> None:
    with Index.open(index_folder) as index:
        with pytest.raises(DataError, match="0 items"):
            index.duplicates(progress=False)
        index.add_codes(np.zeros((2, 4), np.uint8), "ab", [["cat"], []])
        with pytest.raises(DataError, match="visual code"):
            index.duplicates(kind="similar", progress=False)
        assert len(index.duplicates(progress=False)) == 0
        unlike = save(scene(7), photos / "2-other.png")
        names = ["0.png", "0-small.jpg", "1.png", "1-mirrored.png", "2.png", "3.png"]
        fill(index, [*(photos / name for name in names), unlike])
        found = index.duplicates(progress=False)
    assert [group[:3] for group in named(found)] == [
        ("near", "0.png", {"0-small.jpg"}),
        ("near", "1.png", {"1-mirrored.png"}),
        ("similar", "2-other.png" if unlike.stat().st_size > (photos / "2.png").stat().st_size else "2.png",
         {"2.png", "2-other.png"} - {named(found)[2][1]}),
    ]  # fmt: skip
    assert found.looked_at == 9
    assert "2 of 9 images" in found.notes[0]


def test_an_edited_file_is_not_its_own_duplicate(index_folder: Path, tmp_path: Path) -> None:
    path = save(scene(0), tmp_path / "photos/a.jpg")
    linked = tmp_path / "photos/linked.jpg"
    with Index.open(index_folder) as index:
        fill(index, [path])
        save(scene(0), path, camera="edited")
        fill(index, [path, save(scene(1), tmp_path / "photos/z.jpg")])
        found = index.duplicates(progress=False)
        assert (list(found), found.looked_at) == ([], 2)
        os.link(path, linked)
        save(scene(0), path, camera="edited again")  # in place, so both paths still lead to one file
        assert path.samefile(linked)
        fill(index, [linked])
        found = index.duplicates(progress=False)
        assert (list(found), found.looked_at) == ([], 2)
        assert "1 items are of files that were edited" in found.notes[0]


def test_an_index_has_all_paths_of_equal_files(index_folder: Path, photos: Path) -> None:
    with Index.open(index_folder) as index:
        index.add(photos, progress=False)
        found = index.duplicates(kind="same", prefer=photos, progress=False)
        assert [group[:3] for group in named(found)] == [
            ("same", "0.png", {"0-copy.png", "0-copy-<script>.png"})
        ]
        target = photos.parent / "to"
        planned, _ = plan_moves(found.wanted(), target, photos)
        assert move(planned, target, index=index).photos == 2
        (id,) = {photo.id for group in found for photo in group.photos}
        expected = {photos / "0.png", target / "0-copy.png", target / "0-copy-<script>.png"}
        assert set(index.paths(id or "")) == set(map(str, expected))
        assert list(index.duplicates(kind="same", progress=False)) == []
        assert undo(target, index=index).photos == 2
        assert list(index.duplicates(kind="same", prefer=photos, progress=False)) == list(found)


def test_an_upload_stays_in_its_index_and_the_file_of_an_album_is_kept(
    index_folder: Path, tmp_path: Path
) -> None:
    small = save(scene(0).resize((90, 90)), tmp_path / "photos/small.jpg")
    large = save(scene(0), tmp_path / "sent.png")
    with Index.open(index_folder) as index:
        index.add(small, progress=False)
        index.add_bytes(large.read_bytes(), "sent.png")
        (group,) = index.duplicates(kind="near", progress=False)
        assert (group.keep.path, group.rule) == (str(small), "not a link or upload")
        assert Path(group.others[0].path or "").parent == index_folder / "images"
        assert index.duplicates(kind="near", progress=False).wanted() == []


def test_files_of_an_index_that_are_gone_are_compared_by_visual_code(
    index_folder: Path, photos: Path
) -> None:
    with Index.open(index_folder) as index:
        fill(index, [photos / "0.png", photos / "0-small.jpg", photos / "1.png"])
        shutil.rmtree(photos)
        found = index.duplicates(progress=False)
    (group,) = found
    assert (group.kind, group.keep.width, group.others[0].bits) == ("similar", None, 0)
    assert "3 of 3 images" in found.notes[0]
    assert found.wanted("similar") == []


def test_an_index_learns_of_moved_files(index_folder: Path, photos: Path, tmp_path: Path) -> None:
    small = photos / "0-small.jpg"
    with Index.open(index_folder) as index:
        fill(index, [photos / "0.png", small, photos / "2.png"])
        found = index.duplicates(progress=False)
        planned, _ = plan_moves(found.wanted(), tmp_path / "to", photos)
        id = content_key(small)[:16]
        move(planned, tmp_path / "to", index=index)
        assert index.get(id).path == str(tmp_path / "to/0-small.jpg")
        assert index.missing() == []
        assert list(index.duplicates(progress=False)) == []
    undo(tmp_path / "to")  # opens the index itself
    with Index.open(index_folder, read_only=True) as index:
        assert index.get(id).path == str(small)
        assert list(index.duplicates(progress=False)) == list(found)
