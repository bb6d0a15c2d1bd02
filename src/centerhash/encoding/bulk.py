"""Encode images, datasets or features: into one code file, or into shards by this process or by Ray.

    encode_to_file(model, ["photos"], Path("codes.npz"))
    encode_shards("run", ["photos"], "codes", runner="ray")

A shard is an independent task: all runners encode it by `encode_shard`, with the same batches, so their codes are equal.
A crash costs only the shards in progress.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import pack
from centerhash.core.errors import ConfigError, DataError, first_reasons, unknown_name
from centerhash.core.files import make_folder, utf8_text, write_json, write_text
from centerhash.core.progress import Progress, silent
from centerhash.data import list_images, open_dataset
from centerhash.data.layouts.common import load_array, open_array
from centerhash.data.layouts.detection import is_described
from centerhash.encoding import shards
from centerhash.encoding.code_files import CodeFile, write_codes
from centerhash.model.base import Model
from centerhash.model.loading import load
from centerhash.networks.encoder import raise_if_broken
from centerhash.networks.engines import Engine

# A shard of so many images is minutes of work on a small machine.
SHARD_SIZE = 4096
RUNNERS = ("local", "ray")


@dataclass(frozen=True, eq=False)
class BulkInputs:
    """N items to encode: their ids, image files or the rows of a features file, and labels if there are any.

    All paths are absolute. `root` is the folder of a dataset.
    """

    ids: Sequence[str]
    images: Sequence[Path] | None = None
    features: Path | None = None
    labels: NDArray[np.bool_] | None = None
    classes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    root: Path | None = None

    def __post_init__(self) -> None:
        for text in (*self.ids, *map(str, self.images or ())):
            if utf8_text(text) != text:
                raise DataError(
                    f"the name {text!a} is not UTF-8 and cannot be stored: rename the file or folder."
                )
        if len(set(self.ids)) < len(self.ids):
            ((duplicate, _),) = Counter(self.ids).most_common(1)
            raise DataError(f"'{duplicate}' occurs twice among the images: give each a distinct name.")

    def numbers(self) -> NDArray[np.int64] | None:
        """Return a number (N,) per item of a dataset, unique across folders, by which a query finds its own item."""
        if self.root is None:
            return None
        folder = str(self.root.resolve())
        digests = (hashlib.blake2b(f"{folder}/{name}".encode(), digest_size=8).digest() for name in self.ids)
        return np.array([int.from_bytes(digest, "big", signed=True) for digest in digests], dtype=np.int64)

    def fingerprint(self) -> str:
        """Return a digest of ids, paths and labels, and of size and time of a features file.

        It does not depend on the content of images, so that broken ones may be repaired.
        """
        labels = None if self.labels is None else np.packbits(self.labels).tobytes()
        status = None if self.features is None else self.features.stat()
        file = None if status is None else (str(self.features), status.st_size, status.st_mtime_ns)
        images = None if self.images is None else list(map(str, self.images))
        return hashlib.sha256(repr((list(self.ids), images, self.classes, labels, file)).encode()).hexdigest()

    def part(self, rows: slice) -> BulkInputs:
        """Return some of the inputs; `features` remains the whole file."""
        images = None if self.images is None else self.images[rows]
        labels = None if self.labels is None else self.labels[rows]
        return replace(self, ids=self.ids[rows], images=images, labels=labels, warnings=())


def list_inputs(entries: Sequence[str]) -> BulkInputs:
    """Return the inputs in `entries`: images, folders and globs, one labeled dataset, or one features .npy."""
    single = Path(entries[0]) if len(entries) == 1 else Path()
    if single.suffix == ".npy":
        shape = open_array(single).shape
        if len(shape) != 2:
            raise DataError(f"'{single}' must be of shape (N, D), one row per image, got {shape}.")
        return BulkInputs([str(row) for row in range(shape[0])], features=single.absolute())
    if len(entries) == 1 and is_described(single):
        data = open_dataset(single)
        images = None if data.features is not None else [path.absolute() for path in data.image_paths or ()]
        features = None if data.features is None else (single / "features.npy").absolute()
        return BulkInputs(data.names, images, features, data.labels, data.classes, data.warnings, data.root)
    paths = list_images(entries)
    return BulkInputs([str(path) for path in paths], [path.absolute() for path in paths])


@dataclass(frozen=True)
class EncodeResult:
    """The number of encoded items, and of shards, `existing` of which were not encoded again.

    `broken` has a reason by id. `engine` is None for shards, and if no features had to be computed.
    """

    count: int
    warnings: tuple[str, ...]
    engine: Engine | None = None
    shards: int = 0
    existing: int = 0
    broken: Mapping[str, str] = field(default_factory=dict)


def encode_to_file(
    model: Model,
    entries: Sequence[str],
    out: Path,
    *,
    cache: Path | None = None,
    device: str = "auto",
    engine: str = "auto",
    skip_broken: bool = False,
    progress: Progress = silent,
) -> EncodeResult:
    """Encode images (files, folders, globs), a labeled dataset, or a features .npy into one code file."""
    inputs, used_engine = list_inputs(entries), None
    labels, numbers, names = inputs.labels, inputs.numbers(), None
    if inputs.features is not None:
        features: NDArray[Any] = load_array(inputs.features)
        rows = np.arange(len(features))
    else:
        encoder = model.encoder(device=device, engine=engine)
        table = encoder.table(inputs.images or (), cache, progress=progress)
        if not skip_broken:
            advice = "Repair these files, or pass `skip_broken=True` to skip them."
            raise_if_broken(table.broken, len(table.features), advice)
        rows, used_engine = table.readable, encoder.used_engine
        features = table.features[rows]
    # The rows of a features file without a dataset have no names.
    if inputs.images is not None or inputs.root is not None:
        names = [inputs.ids[row] for row in rows.tolist()]
    codes = CodeFile(
        model.bits,
        pack(model.encode_features(features)),
        names=names,
        labels=None if labels is None else labels[rows],
        classes=None if labels is None else inputs.classes,
        ids=None if numbers is None else numbers[rows],
    )
    write_codes(out, codes)
    return EncodeResult(len(rows), inputs.warnings, used_engine)


def encode_shards(
    run: str | Path,
    entries: Sequence[str],
    out: str | Path,
    *,
    runner: str = "local",
    shard_size: int = SHARD_SIZE,
    device: str = "auto",
    engine: str = "auto",
    skip_broken: bool = False,
    ray_address: str | None = None,
    workers: int | None = None,
    progress: Progress = silent,
) -> EncodeResult:
    """Encode images, a dataset or features by the model in `run` into shards in the folder `out`.

    The same call resumes an interrupted one. Images that cannot be read are skipped and listed in broken.jsonl;
    without `skip_broken` they raise DataError after all others are encoded, and the next call tries them again.
    `ray_address` and `workers` are for the runner "ray".
    """
    if runner not in RUNNERS:
        raise unknown_name("runner", runner, RUNNERS)
    folder, model, inputs = Path(out), load(run), list_inputs(entries)
    if inputs.images is not None:
        # Models without a backbone and engines that are not installed are rejected before anything is written.
        model.encoder(device=device, engine=engine)
    manifest, parts = _open_folder(folder, inputs, model, shard_size), {}
    for number in range(manifest.shards):
        broken = shards.read_broken(shards.shard_path(folder, number))
        # Broken images are tried again, since they may have been repaired.
        if broken is None or (broken and not skip_broken):
            parts[number] = inputs.part(manifest.rows(number))
    if parts and runner == "ray":
        from centerhash.encoding.ray_runner import encode_by_ray

        counts = encode_by_ray(model.folder or Path(run), folder, parts, engine, device, ray_address, workers)
    else:
        tasks = (encode_shard(model, folder, number, parts[number], engine, device) for number in parts)
        counts = chain.from_iterable(tasks)
    done = manifest.count - sum(len(part.ids) for part in parts.values())
    for count in chain([0], counts):
        done += count
        progress("codes", done, manifest.count)
    broken = _write_broken(folder, manifest)
    if broken and not skip_broken:
        raise DataError(
            f"{broken_text(broken, manifest.count)}\nThe codes of all others are in '{folder}'. Repair these files "
            "and run the same command again, or pass `skip_broken=True` to skip them."
        )
    count, existing = manifest.count - len(broken), manifest.shards - len(parts)
    return EncodeResult(count, inputs.warnings, None, manifest.shards, existing, broken)


def encode_shard(
    model: Model, folder: Path, number: int, inputs: BulkInputs, engine: str, device: str
) -> Iterator[int]:
    """Encode and write one shard; yield the number of items of each batch."""
    manifest, broken = shards.read_manifest(folder), dict[str, str]()
    if inputs.features is not None:
        features: NDArray[Any] = open_array(inputs.features)[manifest.rows(number)]
        rows = list(range(len(inputs.ids)))
        yield len(rows)
    else:
        rows, parts = [], [np.zeros((0, model.spec.features), dtype=np.float32)]
        for batch in model.encoder(device=device, engine=engine).stream(inputs.images or ()):
            rows += batch.positions
            parts.append(batch.features)
            broken |= {inputs.ids[row]: str(error) for row, error in batch.broken.items()}
            yield batch.size
        features = np.concatenate(parts)
    if inputs.labels is None:
        labels = model.label_names(features)
    else:
        labels = [tuple(inputs.classes[j] for j in np.flatnonzero(inputs.labels[row])) for row in rows]
    ids, codes = [inputs.ids[row] for row in rows], pack(model.encode_features(features))
    shards.write_shard(folder, number, shards.Shard(ids, codes, labels, broken), manifest)


def _open_folder(folder: Path, inputs: BulkInputs, model: Model, shard_size: int) -> shards.Manifest:
    """Create a folder of shards, or check that an existing folder has the same model and inputs."""
    manifest = shards.Manifest(
        bits=model.bits,
        model=model.digest,
        inputs=inputs.fingerprint(),
        count=len(inputs.ids),
        shard_size=shard_size,
        labels="given" if inputs.labels is not None else "predicted" if model.has_centers else "none",
    )
    if (folder / shards.MANIFEST).exists():
        stored, fields = shards.read_manifest(folder), ("model", "inputs", "count", "shard_size")
        changes = [name for name in fields if getattr(stored, name) != getattr(manifest, name)]
        if changes:
            raise ConfigError(
                f"'{folder}' was created with another {', '.join(changes)}: name another folder, or repeat the same "
                "call to resume."
            )
        return manifest
    make_folder(folder)
    foreign = [path.name for path in folder.iterdir() if not path.name.startswith(".")]
    if foreign:
        raise ConfigError(f"'{folder}' holds other files ({min(foreign)}): name a new or an empty folder.")
    write_json(folder / shards.MANIFEST, manifest.model_dump())
    return manifest


def _write_broken(folder: Path, manifest: shards.Manifest) -> dict[str, str]:
    """Write broken.jsonl, and return the reasons of broken images by id."""
    broken, lines = dict[str, str](), []
    for number in range(manifest.shards):
        for id, reason in (shards.read_broken(shards.shard_path(folder, number)) or {}).items():
            broken[id] = reason
            lines.append(json.dumps({"shard": number, "id": id, "reason": reason}, ensure_ascii=False) + "\n")
    write_text(folder / shards.BROKEN, "".join(lines))
    return broken


def broken_text(broken: Mapping[str, str], count: int) -> str:
    """Return a text with the first broken images; broken.jsonl lists all of them."""
    reasons = first_reasons(broken.values(), f", see {shards.BROKEN}")
    return f"{len(broken):,} of {count:,} images cannot be read:\n{reasons}"
