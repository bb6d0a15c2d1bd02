from __future__ import annotations

import csv
import hashlib
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from centerhash.core.errors import DataError, InputError
from reproduction import backdrops, glyphs, scenes
from reproduction.glyphs import CLASSES, DISTRACTORS, GLYPHS
from reproduction.scenes import MIN_AREA, Scene, Sprite, render_scene, write_scenes

SMALL = 64
TINY = 40  # pixels a side where many scenes are needed


def digest(scene: Scene) -> str:
    return hashlib.sha256(scene.image.tobytes()).hexdigest()


def block(label: str | None, left: int, top: int, width: int, height: int, alpha: int = 255) -> Sprite:
    return Sprite(label, Image.new("RGBA", (width, height), (200, 10, 10, alpha)), left, top)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def many() -> list[Scene]:
    return [render_scene(index, size=TINY) for index in range(400)]


# --- plans and backdrops


def test_themes_name_only_known_classes_and_backdrops() -> None:
    for theme in scenes.THEMES.values():
        assert set(theme.classes) <= set(CLASSES)
        assert set(theme.backdrops) <= set(backdrops.BACKDROPS)
    assert sum(theme.chance for theme in scenes.THEMES.values()) == pytest.approx(1.0)
    assert set(CLASSES) >= glyphs.PAINTED
    assert all(GLYPHS.values())


@given(seed=st.integers(0, 10**9))
@settings(max_examples=60, deadline=None)
def test_a_plan_fits_the_frame(seed: int) -> None:
    plan = scenes.plan_scene(np.random.default_rng(seed))
    actors, labelled = plan.actors, [actor for actor in plan.actors if actor.label is not None]
    assert 1 <= len({actor.label for actor in labelled}) <= len(scenes.LABEL_COUNTS)
    assert sum(actor.area for actor in labelled) <= scenes.LARGEST_SUM + 1e-9
    assert max(Counter(actor.label for actor in labelled).values()) <= len(scenes.INSTANCE_COUNTS)
    assert len(actors) - len(labelled) <= scenes.MOST_DISTRACTORS
    for actor in actors:
        assert 0 < actor.center[0] < 1
        assert 0 < actor.center[1] < 1
        assert actor.character in (DISTRACTORS if actor.label is None else GLYPHS[actor.label])


def test_backdrops_are_muted_and_seeded() -> None:
    for kind in backdrops.BACKDROPS:
        first, again, other = (
            np.asarray(backdrops.draw_backdrop(kind, np.random.default_rng(seed), 48)) for seed in (3, 3, 4)
        )
        assert first.shape == (48, 48, 3)
        assert (first == again).all()
        assert (first != other).any(), kind
        saturation = first.max(axis=2).astype(float) - first.min(axis=2)
        assert saturation.mean() < 128, kind


# --- what is visible


def test_a_later_sprite_hides_an_earlier_one() -> None:
    owners = scenes.owner_map([block("dog", 0, 0, 4, 4), block("cat", 2, 2, 4, 4)], 8)
    assert (owners == 0).sum() == 12
    assert (owners == 1).sum() == 16
    assert owners[3, 3] == 1
    assert owners[7, 7] == -1


def test_a_pixel_counts_from_half_opaque_on() -> None:
    assert (scenes.owner_map([block("dog", 0, 0, 4, 4, alpha=128)], 8) == 0).sum() == 16
    assert (scenes.owner_map([block("dog", 0, 0, 4, 4, alpha=127)], 8) == 0).sum() == 0


def test_what_lies_outside_of_the_frame_is_not_counted() -> None:
    inside = [(-2, 0, 8), (6, 6, 4), (-3, -3, 1)]
    for left, top, pixels in [*inside, (-4, 0, 0), (8, 0, 0), (0, 30, 0), (-9, 2, 0)]:
        assert (scenes.owner_map([block("dog", left, top, 4, 4)], 8) == 0).sum() == pixels


def test_hidden_and_tiny_objects_are_left_out_but_distractors_stay() -> None:
    hidden = block("dog", 10, 10, 10, 10)
    tiny = block("bird", 50, 50, 4, 4)  # 16 pixels, 16.4 are needed
    cover = block("bus", 10, 10, 10, 7)  # hides 70 of the dog's 100 pixels
    speck = block(None, 0, 0, 2, 2)
    assert scenes.keep_visible([hidden, tiny, speck, cover], SMALL) == [speck, cover]
    half = block("bus", 10, 10, 10, 5)
    assert scenes.keep_visible([hidden, half], SMALL) == [hidden, half]


def test_areas_and_boxes_of_a_scene_laid_out_by_hand() -> None:
    frame = Image.new("RGB", (10, 10))
    sprites = [
        block("dog", 0, 0, 4, 5),
        block("cat", 2, 0, 4, 2),
        block("dog", 8, 8, 5, 5),
        block(None, 0, 4, 9, 1),
    ]
    scene = scenes._describe(frame, sprites)
    assert scene.labels == ("cat", "dog")
    assert scene.areas == (0.08, (20 - 4 - 4 + 4) / 100)
    assert scene.boxes == {
        "cat": [[0.4, 0.1, 0.4, 0.2]],
        "dog": [[0.2, 0.2, 0.4, 0.4], [0.9, 0.9, 0.2, 0.2]],
    }


@pytest.mark.parametrize("index", [0, 7, 21])
def test_areas_equal_a_naive_walk_over_all_pixels(index: int) -> None:
    rng = np.random.default_rng([5, index, 0])
    plan = scenes.plan_scene(rng)
    sprites = scenes.keep_visible([scenes.draw_sprite(actor, SMALL) for actor in plan.actors], SMALL)
    counted: Counter[str] = Counter()
    for y in range(SMALL):
        for x in range(SMALL):
            for sprite in reversed(sprites):
                inside_x, inside_y = x - sprite.left, y - sprite.top
                if not (0 <= inside_x < sprite.image.width and 0 <= inside_y < sprite.image.height):
                    continue
                pixel = sprite.image.getpixel((inside_x, inside_y))
                assert isinstance(pixel, tuple)
                if pixel[3] >= 128:
                    counted.update([sprite.label] if sprite.label else [])
                    break
    scene = render_scene(index, seed=5, size=SMALL)
    assert dict(zip(scene.labels, scene.areas, strict=True)) == {
        label: count / SMALL**2 for label, count in counted.items()
    }


# --- scenes


@pytest.mark.slow
def test_scenes_keep_their_promises(many: list[Scene]) -> None:
    for scene in many:
        assert scene.image.mode == "RGB"
        assert scene.image.size == (TINY, TINY)
        assert 1 <= len(scene.labels) <= 3
        assert list(scene.labels) == [label for label in CLASSES if label in scene.labels]
        assert len(scene.areas) == len(scene.labels)
        assert min(scene.areas) >= MIN_AREA
        assert sum(scene.areas) <= 1
        assert tuple(scene.boxes) == scene.labels
        for label, area in zip(scene.labels, scene.areas, strict=True):
            assert 1 <= len(scene.boxes[label]) <= 2
            covered = 0.0
            for x, y, width, height in scene.boxes[label]:
                for centre, side in ((x, width), (y, height)):
                    assert side / 2 - 1e-4 <= centre <= 1 - side / 2 + 1e-4
                covered += width * height
            assert area <= covered + 1e-3


@pytest.mark.slow
def test_the_mixture_resembles_photographs(many: list[Scene]) -> None:
    counts = Counter(len(scene.labels) for scene in many)
    assert set(counts) == {1, 2, 3}
    assert 1.5 < sum(number * times for number, times in counts.items()) / len(many) < 2.0
    seen = Counter(label for scene in many for label in scene.labels)
    assert set(seen) == set(CLASSES)
    assert seen.most_common(1)[0][0] == "person"
    assert 0.2 < seen["person"] / len(many) < 0.45
    assert min(seen.values()) >= 5
    areas = np.array([area for scene in many for area in scene.areas])
    assert 0.03 < np.quantile(areas, 0.1) < 0.08
    assert np.quantile(areas, 0.9) > 0.2


@pytest.mark.slow
def test_classes_keep_company(many: list[Scene]) -> None:
    def together(first: str, second: str) -> int:
        return sum(first in scene.labels and second in scene.labels for scene in many)

    assert together("elephant", "zebra") > 2 * together("elephant", "laptop")
    assert together("car", "person") > 3 * max(1, together("car", "laptop"))


STORED = {  # (index, seed, size): results that are stored were made with these pixels
    (0, 0, 64): "25953089a009b2df",
    (1, 0, 64): "980459a31fb62d46",
    (7, 3, 64): "0d588f446fea69ff",
    (11, 0, 224): "64f21b75e75d0740",
    (5, 9, 96): "0931c961d8fad248",
}


@pytest.mark.parametrize("numbers", STORED)
def test_scenes_keep_their_pixels(numbers: tuple[int, int, int]) -> None:
    assert digest(render_scene(*numbers))[:16] == STORED[numbers]


def test_scenes_do_not_depend_on_the_order() -> None:
    forwards = [digest(render_scene(index, seed=2, size=SMALL)) for index in range(6)]
    glyphs.glyph.cache_clear()
    backwards = [digest(render_scene(index, seed=2, size=SMALL)) for index in reversed(range(6))]
    assert forwards == backwards[::-1]
    assert len(set(forwards)) == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"index": -1}, "index must be a whole number of at least 0, got -1"),
        ({"index": 0.5}, r"index must be .* got 0\.5"),
        ({"index": 0, "seed": -3}, "seed must be .* got -3"),
        ({"index": 0, "size": 8}, "size must be a whole number from 32 to 1,024, got 8"),
        ({"index": 0, "size": 4096}, "got 4096"),
        ({"index": 0, "size": True}, "got True"),
    ],
)
def test_impossible_numbers_are_refused(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        render_scene(**arguments)


# --- folders


def test_a_folder_holds_images_and_a_table(tmp_path: Path) -> None:
    calls: list[tuple[object, ...]] = []
    folder = write_scenes(
        tmp_path / "new" / "scenes", 5, seed=3, size=SMALL, progress=lambda *c: calls.append(c)
    )
    assert calls == [("scenes", number, 5) for number in range(1, 6)]
    with (folder / "labels.csv").open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0]) == ["file_name", "labels", "areas", "boxes"]
    for index, row in enumerate(rows):
        scene = render_scene(index, seed=3, size=SMALL)
        assert row["file_name"] == f"images/{index:06d}.jpg"
        assert row["labels"] == "|".join(scene.labels)
        assert [float(area) for area in row["areas"].split("|")] == pytest.approx(scene.areas, abs=1e-6)
        assert json.loads(row["boxes"]) == scene.boxes
        with Image.open(folder / row["file_name"]) as image:
            assert image.size == (SMALL, SMALL)
            difference = np.abs(np.asarray(image, dtype=float) - np.asarray(scene.image, dtype=float))
        assert difference.mean() < 8


def test_an_interrupted_run_goes_on_and_ends_the_same(tmp_path: Path) -> None:
    def stop(stage: str, done: int, total: int, note: str = "") -> None:
        if done == 3:
            raise KeyboardInterrupt

    whole = write_scenes(tmp_path / "whole", 8, size=SMALL)
    with pytest.raises(KeyboardInterrupt):
        write_scenes(tmp_path / "broken", 8, size=SMALL, progress=stop)
    broken = tmp_path / "broken"
    assert not (broken / "labels.csv").exists()
    kept = {path: path.stat().st_mtime_ns for path in sorted((broken / "images").iterdir())}
    assert len(kept) == 3
    damaged = broken / "images" / "000001.jpg"
    damaged.write_bytes(damaged.read_bytes()[:-40])
    write_scenes(broken, 8, size=SMALL)
    assert tree(broken) == tree(whole)
    for path, stamp in kept.items():
        assert (path.stat().st_mtime_ns == stamp) == (path != damaged)


@pytest.mark.parametrize("change", [{"count": 4}, {"seed": 1}, {"size": 48}])
def test_a_folder_with_other_settings_is_left_alone(tmp_path: Path, change: dict[str, int]) -> None:
    arguments = {"count": 3, "seed": 0, "size": 32}
    folder = write_scenes(tmp_path / "scenes", **arguments)
    before = tree(folder)
    with pytest.raises(DataError, match=r"other settings .*'count': 3"):
        write_scenes(folder, **{**arguments, **change})
    assert tree(folder) == before


def test_a_folder_of_other_images_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("file_name,labels\n")
    with pytest.raises(DataError, match=r"no scenes\.json.*choose another folder"):
        write_scenes(tmp_path, 2, size=32)
    assert [path.name for path in tmp_path.iterdir()] == ["labels.csv"]


def test_unreadable_settings_are_named(tmp_path: Path) -> None:
    (tmp_path / "scenes.json").write_text("{")
    with pytest.raises(DataError, match=r"scenes\.json' cannot be read"):
        write_scenes(tmp_path, 2, size=32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"count": 0}, "count must be a whole number from 1 to 1,000,000, got 0"),
        ({"count": 2, "workers": 0}, "workers must be"),
    ],
)
def test_impossible_folders_are_refused_before_writing(
    tmp_path: Path, arguments: dict[str, int], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        write_scenes(tmp_path / "scenes", **arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_several_processes_write_the_same_folder(tmp_path: Path) -> None:
    alone = write_scenes(tmp_path / "alone", 40, size=SMALL)
    together = write_scenes(tmp_path / "together", 40, size=SMALL, workers=2)
    assert tree(alone) == tree(together)
