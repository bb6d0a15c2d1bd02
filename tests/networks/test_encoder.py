from __future__ import annotations

import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from centerhash.core.errors import DataError, ImageError, InputError, OutputError
from centerhash.core.progress import Progress, silent
from centerhash.networks import encoder as module
from centerhash.networks.backbones import BACKBONES, Backbone
from centerhash.networks.cache import default_cache
from centerhash.networks.encoder import Encoder, FeatureTable
from tests.toys import noise_image, started, wait_for_process, write_images

LITE0 = BACKBONES["efficientnet-lite0"]
pytestmark = pytest.mark.usefixtures("kept_networks")


def image_features(
    paths: Sequence[Path],
    backbone: Backbone,
    cache: Path | None = None,
    batch: int = 32,
    progress: Progress = silent,
) -> FeatureTable:
    return Encoder(backbone, device="cpu").table(paths, cache, batch=batch, progress=progress)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_images(tmp_path_factory.mktemp("pictures"), 5)


@pytest.fixture(scope="module")
def fresh(pictures: list[Path]) -> FeatureTable:
    """The features without any cache."""
    return image_features(pictures, LITE0)


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHARD", 2)


def shards(cache: Path) -> list[Path]:
    return sorted((cache / LITE0.key).glob("*.npz"))


def test_features_are_finite_different_and_in_order(pictures: list[Path], fresh: FeatureTable) -> None:
    assert fresh.features.shape == (5, LITE0.features)
    assert fresh.features.dtype == np.float32
    assert np.isfinite(fresh.features).all()
    assert fresh.computed == 5
    assert not fresh.broken
    back = image_features(pictures[::-1], LITE0).features[::-1]
    np.testing.assert_allclose(back, fresh.features, atol=1e-4)
    assert len(np.unique(fresh.features.round(2), axis=0)) == 5


def test_a_second_call_computes_nothing(pictures: list[Path], fresh: FeatureTable, tmp_path: Path) -> None:
    first = image_features(pictures, LITE0, tmp_path)
    second = image_features(pictures, LITE0, tmp_path)
    assert (first.computed, second.computed) == (5, 0)
    assert np.array_equal(first.features, second.features)
    np.testing.assert_array_equal(first.features, fresh.features)


@pytest.mark.usefixtures("small_shards")
def test_shards_that_begin_with_the_same_picture_are_kept_apart(
    pictures: list[Path], fresh: FeatureTable, tmp_path: Path
) -> None:
    one, two, three, *_ = pictures
    image_features([one, two, one, three], LITE0, tmp_path, batch=2)
    again = image_features([two, three], LITE0, tmp_path)
    assert again.computed == 0
    np.testing.assert_allclose(again.features, fresh.features[1:3], atol=1e-4)


def test_a_second_call_does_not_even_load_the_network(
    pictures: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image_features(pictures[:1], LITE0, tmp_path)
    monkeypatch.setattr(Encoder, "pixels", lambda *_: pytest.fail("a cached image was decoded"))
    monkeypatch.setattr(module, "open_engine", lambda *_: pytest.fail("the network was loaded"))
    assert image_features(pictures[:1], LITE0, tmp_path).computed == 0


def test_the_cache_goes_by_bytes_not_by_name(pictures: list[Path], tmp_path: Path) -> None:
    cache, copy = tmp_path / "cache", tmp_path / "another name.png"
    first = image_features(pictures[:1], LITE0, cache)
    shutil.copy(pictures[0], copy)
    renamed = image_features([copy], LITE0, cache)
    assert renamed.computed == 0
    assert np.array_equal(renamed.features, first.features)

    changed = noise_image(seed=0)
    changed.putpixel((3, 3), (0, 255, 0))
    changed.save(copy)
    again = image_features([copy], LITE0, cache)
    assert again.computed == 1
    assert not np.array_equal(again.features, first.features)


def test_only_what_is_missing_is_computed(pictures: list[Path], tmp_path: Path) -> None:
    image_features(pictures[1:3], LITE0, tmp_path)
    found = image_features(pictures, LITE0, tmp_path)
    assert found.computed == 3
    assert image_features(pictures, LITE0, tmp_path).computed == 0


@pytest.mark.slow
def test_another_backbone_has_features_of_its_own(pictures: list[Path], tmp_path: Path) -> None:
    import dataclasses

    image_features(pictures[:1], LITE0, tmp_path)
    smaller = dataclasses.replace(LITE0, resize=200, crop=160)
    assert image_features(pictures[:1], smaller, tmp_path).computed == 1


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("damage", ["cut", "empty", "text", "flipped", "lacks"])
def test_a_damaged_shard_is_computed_again(
    pictures: list[Path], fresh: FeatureTable, tmp_path: Path, damage: str
) -> None:
    image_features(pictures[:4], LITE0, tmp_path, batch=2)
    victim, spared = shards(tmp_path)
    content = bytearray(victim.read_bytes())
    if damage == "cut":
        victim.write_bytes(content[: len(content) // 2])
    elif damage == "empty":
        victim.write_bytes(b"")
    elif damage == "text":
        victim.write_text("no archive at all")
    elif damage == "flipped":
        content[len(content) // 2] ^= 0xFF  # in the middle of the features
        victim.write_bytes(content)
    else:
        np.savez(victim, keys=np.load(victim)["keys"])
    before = spared.read_bytes()
    found = image_features(pictures[:4], LITE0, tmp_path)
    np.testing.assert_allclose(found.features, fresh.features[:4], atol=1e-4)
    assert found.computed == 2
    assert spared.read_bytes() == before
    assert image_features(pictures[:4], LITE0, tmp_path).computed == 0


@pytest.mark.usefixtures("small_shards")
def test_finished_shards_outlive_an_error(
    pictures: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Encoder.pixels

    def fails_at_the_last(encoder: Encoder, path: Path) -> object:
        if path == pictures[4]:
            raise MemoryError
        return real(encoder, path)

    monkeypatch.setattr(Encoder, "pixels", fails_at_the_last)
    with pytest.raises(MemoryError):
        image_features(pictures, LITE0, tmp_path, batch=2)
    monkeypatch.setattr(Encoder, "pixels", real)
    assert image_features(pictures, LITE0, tmp_path).computed == 1


def test_broken_images_are_listed_and_their_rows_are_zero(pictures: list[Path], tmp_path: Path) -> None:
    empty, text, cut = tmp_path / "empty.jpg", tmp_path / "text.jpg", tmp_path / "cut.jpg"
    empty.write_bytes(b"")
    text.write_text("not a picture")
    noise_image(200).save(cut, quality=95)
    cut.write_bytes(cut.read_bytes()[:2000])
    gone = tmp_path / "gone.jpg"
    mixed = [empty, pictures[0], text, cut, pictures[1], gone]
    for cache in (tmp_path / "cache", tmp_path / "cache", None):
        found = image_features(mixed, LITE0, cache)
        assert sorted(found.broken) == [0, 2, 3, 5]
        assert not found.features[[0, 2, 3, 5]].any()
        assert found.features[[1, 4]].any(axis=1).all()
        for row, words in {0: "0 bytes", 2: "known format", 3: "truncated", 5: "no such file"}.items():
            assert mixed[row].name in str(found.broken[row])
            assert words in str(found.broken[row])
    with pytest.raises(DataError) as caught:
        found.raise_if_broken("Repair them.")
    lines = str(caught.value).splitlines()
    assert lines[0] == "4 of 6 images cannot be read:"
    assert lines[-1] == "Repair them."
    assert len(lines) == 6


def test_pictures_of_every_mode_have_features(tmp_path: Path) -> None:
    base, paths = noise_image(), []
    deep = Image.fromarray(np.asarray(base.convert("L")).astype(np.uint16) * 257)
    for name, image in {
        "cmyk.jpg": base.convert("CMYK"),
        "grey.jpg": base.convert("L"),
        "palette.png": base.convert("P"),
        "deep.png": deep,
        "alpha.png": base.convert("RGBA"),
    }.items():
        image.save(tmp_path / name)
        paths.append(tmp_path / name)
    found = image_features(paths, LITE0)
    assert not found.broken
    assert found.features.any(axis=1).all()
    # 16 bits of grey say the same as 8 bits, up to the JPEG's own loss
    same = found.features[1] @ found.features[3]
    assert same / np.linalg.norm(found.features[1]) / np.linalg.norm(found.features[3]) > 0.95


@pytest.mark.parametrize("cached", [0, 2, 5])
def test_progress_rises_to_the_total(pictures: list[Path], tmp_path: Path, cached: int) -> None:
    if cached:
        image_features(pictures[:cached], LITE0, tmp_path)
    calls: list[tuple[int, int]] = []
    image_features(
        pictures,
        LITE0,
        tmp_path,
        batch=2,
        progress=lambda stage, done, total, note="": calls.append((done, total)),
    )
    done = [call[0] for call in calls]
    assert calls[0] == (cached, 5)
    assert calls[-1] == (5, 5)
    assert done == sorted(done)
    assert {call[1] for call in calls} == {5}


def test_no_images_are_no_work() -> None:
    found = image_features([], LITE0)
    assert found.features.shape == (0, LITE0.features)
    assert found.computed == 0


def test_a_cache_that_cannot_be_written_is_named(pictures: list[Path], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError):
        image_features(pictures[:1], LITE0, tmp_path / "file" / "cache")


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CENTERHASH_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert default_cache() == Path.home() / ".cache" / "centerhash"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "centerhash"
    monkeypatch.setenv("CENTERHASH_CACHE", str(tmp_path / "named"))
    assert default_cache() == tmp_path / "named"


@pytest.mark.slow
def test_a_killed_process_leaves_its_finished_shards(tmp_path: Path) -> None:
    """A process is killed while it works; what it had stored is neither lost nor damaged."""
    paths, cache = write_images(tmp_path / "pictures", 60), tmp_path / "cache"
    script = (
        "import sys; from pathlib import Path; from centerhash.networks import encoder; "
        "from centerhash.networks.backbones import BACKBONES; encoder.SHARD = 4; "
        "images = sorted(Path(sys.argv[1]).glob('*.png')); "
        "encoder.Encoder(BACKBONES['efficientnet-lite0']).table(images, Path(sys.argv[2]), batch=2)"
    )
    with started("-c", script, tmp_path / "pictures", cache) as process:
        wait_for_process(process, lambda: len(shards(cache)) >= 2, "two shards are stored")
        assert process.signal(signal.SIGKILL) == -signal.SIGKILL
    finished = len(shards(cache))
    assert 2 <= finished < 15
    resumed = image_features(paths, LITE0, cache)
    assert resumed.computed == 60 - 4 * finished
    np.testing.assert_allclose(resumed.features, image_features(paths, LITE0).features, atol=1e-4)


# --- single images and streams


def test_files_bytes_images_and_arrays_have_the_same_features(
    pictures: list[Path], fresh: FeatureTable
) -> None:
    path = pictures[0]
    image = Image.open(path)
    forms = [path, str(path), path.read_bytes(), image, np.asarray(image.convert("RGB"))]
    found = Encoder(LITE0, device="cpu").features(forms)
    np.testing.assert_allclose(found, np.repeat(fresh.features[:1], 5, axis=0), atol=1e-4)


def test_broken_images_of_a_list_are_named(pictures: list[Path], tmp_path: Path) -> None:
    encoder = Encoder(LITE0, device="cpu")
    with pytest.raises(ImageError):
        encoder.features([tmp_path / "gone.jpg"])
    with pytest.raises(DataError, match=r"(?s)2 of 3 images.*gone\.jpg.*0 bytes"):
        encoder.features([pictures[0], tmp_path / "gone.jpg", b""])


@pytest.mark.parametrize(
    "wrong", [np.zeros((4, 4, 3), np.float32), np.zeros((4,), np.uint8), np.zeros((4, 4, 2), np.uint8)]
)
def test_arrays_that_are_no_image_are_refused(wrong: object) -> None:
    with pytest.raises(InputError):
        Encoder(LITE0, device="cpu").pixels(wrong)  # type: ignore[arg-type]


def test_a_stream_leaves_out_what_is_known_and_names_what_is_broken(
    pictures: list[Path], tmp_path: Path
) -> None:
    images = [*pictures[:3], tmp_path / "gone.png", pictures[3]]

    def key(image: object) -> str | None:
        return None if image == pictures[1] else Path(str(image)).stem

    steps = list(Encoder(LITE0, device="cpu").stream(images, key, batch=3))
    assert [step.seen for step in steps] == [3, 2]
    assert [step.places for step in steps] == [[0, 2], [4]]
    assert [step.keys for step in steps] == [[pictures[0].stem, pictures[2].stem], [pictures[3].stem]]
    assert [step.known for step in steps] == [1, 0]
    assert [list(step.broken) for step in steps] == [[], [3]]
    assert [step.features.shape for step in steps] == [(2, LITE0.features), (1, LITE0.features)]
