"""Images to features: streams, tables, what is cached, what is broken."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from centerhash.core.errors import DataError, ImageError, InputError
from centerhash.core.progress import Progress, silent
from centerhash.networks import encoder as module
from centerhash.networks.backbones import BACKBONES
from centerhash.networks.encoder import Encoder, FeatureTable, raise_if_broken
from tests.toys import noise_image, started, wait_for_process, write_images

LITE0 = BACKBONES["efficientnet-lite0"]
pytestmark = pytest.mark.usefixtures("kept_networks")


def table(paths: Sequence[Path], cache: Path | None = None, progress: Progress = silent) -> FeatureTable:
    return Encoder(LITE0, device="cpu").table(paths, cache, progress=progress)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_images(tmp_path_factory.mktemp("pictures"), 5)


@pytest.fixture(scope="module")
def fresh(pictures: list[Path]) -> FeatureTable:
    """The features without any cache."""
    return table(pictures)


def shards(cache: Path) -> list[Path]:
    return sorted((cache / LITE0.key).glob("*.txt"))


def test_table_keeps_order(pictures: list[Path], fresh: FeatureTable) -> None:
    assert (fresh.features.shape, fresh.features.dtype) == ((5, LITE0.features), np.float32)
    assert np.isfinite(fresh.features).all()
    assert (fresh.computed, fresh.broken) == (5, {})
    np.testing.assert_allclose(table(pictures[::-1]).features[::-1], fresh.features, atol=1e-4)
    assert len(np.unique(fresh.features.round(2), axis=0)) == 5


def test_table_computes_missing(pictures: list[Path], fresh: FeatureTable, tmp_path: Path) -> None:
    computed = [table(images, tmp_path).computed for images in (pictures[1:3], pictures, pictures)]
    assert computed == [2, 3, 0]
    np.testing.assert_allclose(table(pictures, tmp_path).features, fresh.features, atol=1e-4)


def test_cached_features_need_no_network(
    pictures: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table(pictures[:1], tmp_path)
    monkeypatch.setattr(Encoder, "pixels", lambda *_: pytest.fail("a cached image was decoded"))
    monkeypatch.setattr(module, "open_engine", lambda *_: pytest.fail("the network was loaded"))
    assert table(pictures[:1], tmp_path).computed == 0


def test_cache_key_is_content(pictures: list[Path], tmp_path: Path) -> None:
    cache, copy = tmp_path / "cache", tmp_path / "another name.png"
    first = table(pictures[:1], cache)
    shutil.copy(pictures[0], copy)
    renamed = table([copy], cache)
    assert renamed.computed == 0
    assert np.array_equal(renamed.features, first.features)
    changed = noise_image(seed=0)
    changed.putpixel((3, 3), (0, 255, 0))
    changed.save(copy)
    assert table([copy], cache).computed == 1


def test_shards_outlive_an_error(
    pictures: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels = Encoder.pixels

    def fails_at_the_last(encoder: Encoder, path: Path) -> object:
        if path == pictures[4]:
            raise MemoryError
        return pixels(encoder, path)

    monkeypatch.setattr(module, "CACHE_SHARD_SIZE", 2)
    monkeypatch.setattr(module, "BATCH_SIZE", 2)
    with monkeypatch.context() as patched:
        patched.setattr(Encoder, "pixels", fails_at_the_last)
        with pytest.raises(MemoryError):
            table(pictures, tmp_path)
    assert table(pictures, tmp_path).computed == 1


def test_table_with_broken_images(pictures: list[Path], tmp_path: Path) -> None:
    empty, text, cut = tmp_path / "empty.jpg", tmp_path / "text.jpg", tmp_path / "cut.jpg"
    empty.write_bytes(b"")
    text.write_text("not a picture")
    noise_image(200).save(cut, quality=95)
    cut.write_bytes(cut.read_bytes()[:2000])
    mixed = [empty, pictures[0], text, cut, pictures[1], tmp_path / "gone.jpg"]
    for cache in (tmp_path / "cache", tmp_path / "cache", None):
        result = table(mixed, cache)
        assert sorted(result.broken) == [0, 2, 3, 5]
        assert result.features.any(axis=1).tolist() == [False, True, False, False, True, False]
        assert all(mixed[row].name in str(error) for row, error in result.broken.items())
    assert result.readable.tolist() == [1, 4]
    with pytest.raises(DataError, match=r"(?s)4 of 6 images.*Repair them\.$"):
        raise_if_broken(result.broken, len(mixed), "Repair them.")


def test_pictures_of_every_mode(tmp_path: Path) -> None:
    base, paths = noise_image(), []
    deep = Image.fromarray(np.asarray(base.convert("L")).astype(np.uint16) * 257)
    images = {"gray.jpg": base.convert("L"), "deep.png": deep, "cmyk.jpg": base.convert("CMYK")}
    for name, image in {**images, "p.png": base.convert("P"), "alpha.png": base.convert("RGBA")}.items():
        image.save(tmp_path / name)
        paths.append(tmp_path / name)
    result = table(paths)
    assert not result.broken
    assert result.features.any(axis=1).all()
    gray, deep_gray = result.features[:2]
    # 16 bits of gray differ from 8 bits only by the loss of the JPEG
    assert gray @ deep_gray / np.linalg.norm(gray) / np.linalg.norm(deep_gray) > 0.95


@pytest.mark.parametrize("cached", [0, 2, 5])
def test_table_progress(
    pictures: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cached: int
) -> None:
    monkeypatch.setattr(module, "BATCH_SIZE", 2)
    if cached:
        table(pictures[:cached], tmp_path)
    calls: list[tuple[int, int]] = []
    table(pictures, tmp_path, lambda stage, done, total, note="": calls.append((done, total)))
    assert (calls[0], calls[-1]) == ((cached, 5), (5, 5))
    assert calls == sorted(calls)


def test_table_without_images() -> None:
    result = table([])
    assert (result.features.shape, result.computed) == ((0, LITE0.features), 0)


@pytest.mark.slow
def test_killed_process_leaves_its_shards(tmp_path: Path) -> None:
    """What a killed process had stored is neither lost nor damaged."""
    paths, cache = write_images(tmp_path / "pictures", 60), tmp_path / "cache"
    script = (
        "import sys; from pathlib import Path; from centerhash.networks import encoder; "
        "from centerhash.networks.backbones import BACKBONES; encoder.CACHE_SHARD_SIZE, encoder.BATCH_SIZE = 4, 2; "
        "images = sorted(Path(sys.argv[1]).glob('*.png')); "
        "encoder.Encoder(BACKBONES['efficientnet-lite0']).table(images, Path(sys.argv[2]))"
    )
    with started("-c", script, tmp_path / "pictures", cache) as process:
        wait_for_process(process, lambda: len(shards(cache)) >= 2, "two shards are stored")
        assert process.signal(signal.SIGKILL) == -signal.SIGKILL
    finished = len(shards(cache))
    assert 2 <= finished < 15
    resumed = table(paths, cache)
    assert resumed.computed == 60 - 4 * finished
    np.testing.assert_allclose(resumed.features, table(paths).features, atol=1e-4)


# Single images and streams


def test_features_of_image_forms(pictures: list[Path], fresh: FeatureTable) -> None:
    path, image = pictures[0], Image.open(pictures[0])
    forms = [path, str(path), path.read_bytes(), image, np.asarray(image.convert("RGB"))]
    result = Encoder(LITE0, device="cpu").features(forms)
    np.testing.assert_allclose(result, np.repeat(fresh.features[:1], 5, axis=0), atol=1e-4)


def test_features_with_broken_images(pictures: list[Path], tmp_path: Path) -> None:
    encoder = Encoder(LITE0, device="cpu")
    with pytest.raises(ImageError):
        encoder.features([tmp_path / "gone.jpg"])
    with pytest.raises(DataError, match=r"(?s)2 of 3 images.*gone\.jpg"):
        encoder.features([pictures[0], tmp_path / "gone.jpg", b""])


@pytest.mark.parametrize(
    "array", [np.zeros((4, 4, 3), np.float32), np.zeros((4,), np.uint8), np.zeros((4, 4, 2), np.uint8)]
)
def test_pixels_rejects_arrays(array: object) -> None:
    with pytest.raises(InputError):
        Encoder(LITE0, device="cpu").pixels(array)  # type: ignore[arg-type]


def test_stream(pictures: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_SIZE", 3)
    images = [*pictures[:3], tmp_path / "gone.png", pictures[3]]
    steps = list(Encoder(LITE0, device="cpu").stream(images))
    assert [step.size for step in steps] == [3, 2]
    assert [step.positions for step in steps] == [[0, 1, 2], [4]]
    assert [list(step.broken) for step in steps] == [[], [3]]
    assert [step.features.shape for step in steps] == [(3, LITE0.features), (1, LITE0.features)]


def test_mirrored_stream(tmp_path: Path) -> None:
    noise_image().save(tmp_path / "plain.png")
    noise_image().transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(tmp_path / "mirrored.png")
    encoder = Encoder(LITE0, device="cpu")
    (step,) = encoder.stream([tmp_path / "plain.png"], mirrored=True)
    expected = encoder.features([tmp_path / "mirrored.png"])
    np.testing.assert_allclose(step.features, expected, atol=2e-2 * np.abs(expected).max())
    assert not np.allclose(encoder.features([tmp_path / "plain.png"]), expected, atol=2e-2)
