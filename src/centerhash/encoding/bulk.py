"""Encode images, datasets or features: into one code file, or into shards by this process or by Ray.

With Ray, actors load the model once, here or on a cluster whose machines share the files. A row of the Ray dataset is
the number of a shard. An actor reads the shard's inputs from the shared folder, encodes them as the local runner does,
and writes the shard there, so nothing large passes through Ray, and a dead worker costs only its current shards.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import pack
from centerhash.core.errors import (
    CenterhashError,
    ConfigError,
    DataError,
    InputError,
    OutputError,
    first_line,
    first_reasons,
    unknown_name,
)
from centerhash.core.extras import require
from centerhash.core.files import atomic, make_folder, write_json, write_text
from centerhash.core.parallel import cpu_count
from centerhash.core.progress import Progress, silent
from centerhash.core.rendering import is_text
from centerhash.data import list_images, open_dataset
from centerhash.data.dataset import find_layout, is_described
from centerhash.data.layouts.contents import LABEL_COLUMNS, load_array, read_header
from centerhash.data.layouts.parquet import SUFFIX, find_parquet, open_parquet
from centerhash.encoding.code_files import CodeFile, write_codes
from centerhash.encoding.shards import (
    BROKEN,
    INPUTS,
    MANIFEST,
    Labels,
    LabelSource,
    Manifest,
    Shard,
    broken_in,
    read_manifest,
    shard_path,
    write_shard,
)
from centerhash.model.base import Model
from centerhash.model.loading import load
from centerhash.networks.encoder import Encoder
from centerhash.networks.engines import Engine

SHARD_SIZE = 4096  # images: minutes of work on a small machine; a crash loses at most one shard per worker
RUNNERS = ("local", "ray")
_SKIP = "The features of all others are kept. Repair these files, or pass `skip_broken=True` to skip them."
_STORE = 200 * 2**20  # bytes of shared memory of a local Ray: only shard numbers go through it
_MOST_BLOCKS = 1000  # of the list of shards: an actor processes a block at a time
_TIMEOUT = 10.0  # seconds for a cluster to answer
_QUIET = {  # of Ray: no usage reports, and nothing on the terminal
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",  # the priority of the local runner
}
_ERRORS = {kind.__name__: kind for kind in (InputError, ConfigError, DataError, OutputError)}

OnDone: TypeAlias = Callable[[int], None]  # called with how many more images are done


# Inputs in a fixed order: images by their paths, datasets and features in their own order


@dataclass(frozen=True, eq=False)
class Inputs:
    """N things to encode: their ids, and either image files or the rows of a features file; labels if given.

    An image may be in a parquet file: `photos.parquet/12` is the image of its row 12.
    """

    ids: Sequence[str] | range  # names, or the row numbers of a features file
    images: Sequence[Path] | None = None  # absolute
    features: Path | None = None  # absolute, with N rows
    labels: NDArray[np.bool_] | None = None  # (N, C)
    classes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    root: Path | None = None  # of a dataset

    def __post_init__(self) -> None:
        if isinstance(self.ids, range):
            return
        for text in (*self.ids, *map(str, self.images or ())):
            if not is_text(text):
                raise DataError(
                    f"the name {text!a} is not UTF-8 and cannot be stored: rename the file, or the folder."
                )
        if len(set(self.ids)) < len(self.ids):
            twice = Counter(self.ids).most_common(1)[0][0]
            raise DataError(f"'{twice}' occurs twice among the images: give each a distinct name.")

    def numbers(self) -> NDArray[np.int64] | None:
        """Return a number (N,) per item of a dataset, unique across folders: it identifies a query's own item."""
        if self.root is None:
            return None
        folder = str(self.root.resolve())
        digests = (hashlib.blake2b(f"{folder}/{name}".encode(), digest_size=8).digest() for name in self.ids)
        return np.array([int.from_bytes(digest, "big", signed=True) for digest in digests], dtype=np.int64)

    def labels_of(self, rows: slice) -> list[Labels] | None:
        """Return the given labels of some of the N; None if none are given."""
        if self.labels is None:
            return None
        return [
            tuple(self.classes[column] for column in np.flatnonzero(row).tolist())
            for row in self.labels[rows]
        ]

    def fingerprint(self) -> str:
        """Return a digest of ids, paths and labels; of files with many rows also size and time.

        The bytes of single images do not count, so that broken ones may be repaired in between.
        """
        digest = hashlib.sha256()
        for row in self._described():
            digest.update(repr(row).encode("utf-8", "surrogateescape"))
        return digest.hexdigest()

    def _described(self) -> Iterator[tuple[object, ...]]:
        for row, name in enumerate(self.ids):
            yield str(name), None if self.images is None else str(self.images[row])
        if self.labels is not None:
            yield "labels", self.classes, hashlib.sha256(np.packbits(self.labels).tobytes()).hexdigest()
        tables = {image.parent for image in self.images or () if image.parent.suffix == SUFFIX}
        for file in sorted(table for table in tables | {self.features} if table is not None):
            if file.is_file():
                status = file.stat()
                yield str(file), status.st_size, status.st_mtime_ns


def list_inputs(entries: Sequence[str], *, ordered: bool = False) -> Inputs:
    """List the inputs in `entries`: images, folders and globs, one labelled dataset, or one features .npy.

    `ordered` images are sorted by their paths, so that another order of the entries gives the same inputs.
    """
    single = Path(entries[0]) if len(entries) == 1 else None
    if single is not None and single.suffix == ".npy":
        shape = read_header(single).shape
        if len(shape) != 2:
            raise DataError(f"'{single}' must be of shape (N, D), one row per image, got {shape}.")
        return Inputs(range(shape[0]), features=single.absolute())
    if single is not None and is_described(single):
        listed = _parquet_inputs(single)
        if listed is not None:
            return listed
        found = open_dataset(single)
        images = None if found.features is not None else _absolute(found.image_paths or ())
        features = None if found.features is None else (single / "features.npy").absolute()
        return Inputs(found.names, images, features, found.labels, found.classes, found.warnings, found.root)
    paths = list_images(entries)
    if ordered:
        paths = sorted(paths, key=str)
    return Inputs([str(path) for path in paths], images=_absolute(paths))


def _parquet_inputs(root: Path) -> Inputs | None:
    """List the images of parquet files without a column of labels, which are not a dataset to train on."""
    layout = find_layout(root)
    if layout is None or layout.name != "parquet":
        return None
    images: list[Path] = []
    for file in find_parquet(root):
        opened = open_parquet(file)
        schema = opened.schema_arrow
        described = (schema.metadata or {}).get(b"huggingface", b"")
        if set(LABEL_COLUMNS) & set(schema.names) or b"ClassLabel" in described:
            return None
        images += [file / str(row) for row in range(opened.metadata.num_rows)]
    base = root if root.is_dir() else root.parent
    return Inputs([image.relative_to(base).as_posix() for image in images], images=_absolute(images))


def _absolute(paths: Iterable[Path]) -> list[Path]:
    return [path.absolute() for path in paths]


# One code file


@dataclass(frozen=True)
class Written:
    """The result of `encode_to_file`."""

    count: int
    warnings: tuple[str, ...]
    engine: Engine | None = None  # that computed features; None if all were known


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
) -> Written:
    """Encode images (files, folders, globs), a labelled dataset, or a features .npy into one code file."""
    inputs = list_inputs(entries)
    kept, encoder = np.arange(len(inputs.ids)), None
    if inputs.features is not None:
        features: NDArray[Any] = load_array(inputs.features)
    else:
        encoder = model.encoder(device=device, engine=engine)
        table = encoder.table(inputs.images or (), cache, progress=progress)
        if not skip_broken:
            table.raise_if_broken(_SKIP)
        features, kept = table.features[table.readable], table.readable
    labels, numbers = inputs.labels, inputs.numbers()
    codes = CodeFile(
        model.bits,
        pack(model.encode_features(features)),
        names=None if isinstance(inputs.ids, range) else [inputs.ids[int(row)] for row in kept],
        labels=None if labels is None else labels[kept],
        classes=None if labels is None else inputs.classes,
        ids=None if numbers is None else numbers[kept],
    )
    write_codes(out, codes)
    return Written(len(kept), inputs.warnings, None if encoder is None else encoder.used_engine)


# Shards


@dataclass(frozen=True)
class Encoded:
    """The result of `encode_shards`."""

    count: int
    shards: int
    found: int  # shards that existed already
    broken: dict[str, str]  # reason by id
    warnings: tuple[str, ...]


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
) -> Encoded:
    """Encode images, a dataset or features by the model in `run` into shards in the folder `out`.

    The same call resumes an interrupted one. Images that cannot be read are skipped and listed in broken.jsonl;
    without `skip_broken` they raise DataError after all others are encoded, and the next call tries them again.
    `ray_address` and `workers` are for the runner "ray".
    """
    if runner not in RUNNERS:
        raise unknown_name("runner", runner, RUNNERS)
    if shard_size < 1:
        raise ConfigError(f"a shard holds at least 1 image, got {shard_size}.")
    folder, model, inputs = Path(out), load(run), list_inputs(entries, ordered=True)
    if inputs.images is not None:
        model.backbone()  # rejects models without one before anything is written
        if runner == "local":
            model.encoder(device=device, engine=engine)  # rejects engines that are not installed
    manifest = open_folder(folder, inputs, model, shard_size)
    todo = [number for number in range(manifest.shards) if not _is_done(folder, number, skip_broken)]
    done = manifest.count - sum(len(range(manifest.count)[manifest.rows(number)]) for number in todo)
    progress("codes", done, manifest.count)

    def on_done(more: int) -> None:
        nonlocal done
        done += more
        progress("codes", done, manifest.count)

    if todo and runner == "ray":
        _encode_by_ray(model.folder or Path(run), folder, todo, device, engine, ray_address, workers, on_done)
    elif todo:
        encoder = None if inputs.images is None else model.encoder(device=device, engine=engine)
        for number in todo:
            encode_shard(folder, number, model, encoder, on_done)
    broken = _write_broken(folder, manifest)
    if broken and not skip_broken:
        raise DataError(
            f"{broken_text(broken, manifest.count)}\nThe codes of all others are in '{folder}'. Repair these files "
            "and run the same command again, or pass `skip_broken=True` to skip them."
        )
    found = manifest.shards - len(todo)
    return Encoded(manifest.count - len(broken), manifest.shards, found, broken, inputs.warnings)


def _is_done(folder: Path, number: int, skip_broken: bool) -> bool:
    """Return whether a shard needs no work; broken images are tried again, they may have been repaired."""
    broken = broken_in(shard_path(folder, number))
    return broken is not None and (skip_broken or not broken)


def open_folder(folder: Path, inputs: Inputs, model: Model, shard_size: int) -> Manifest:
    """Create a folder of shards, or check that an existing one is of the same model and inputs."""
    predicted: LabelSource = "predicted" if model.has_centers else "none"
    wanted = Manifest(
        bits=model.bits,
        model=model.digest,
        inputs=inputs.fingerprint(),
        count=len(inputs.ids),
        shard_size=shard_size,
        labels=predicted if inputs.labels is None else "given",
        features=None if inputs.features is None else str(inputs.features),
    )
    if (folder / MANIFEST).exists():
        _check_same(folder, read_manifest(folder), wanted)
        return wanted
    make_folder(folder)
    others = [path.name for path in folder.iterdir() if path.name != INPUTS and not path.name.startswith(".")]
    if others:
        raise ConfigError(f"'{folder}' holds other files ({min(others)}): name a new or an empty folder.")
    _write_inputs(folder, inputs, wanted)
    write_json(folder / MANIFEST, wanted.model_dump())
    return wanted


def _check_same(folder: Path, stored: Manifest, wanted: Manifest) -> None:
    found = ["another model"] if stored.model != wanted.model else []
    if stored.inputs != wanted.inputs:
        found.append(f"other images ({stored.count:,} of them, now {wanted.count:,})")
    if stored.shard_size != wanted.shard_size:
        found.append(f"shards of {stored.shard_size:,} images, now {wanted.shard_size:,}")
    if found:
        raise ConfigError(
            f"'{folder}' was created with {' and '.join(found)}: name another folder, or repeat the same call to "
            "resume."
        )


def _write_inputs(folder: Path, inputs: Inputs, manifest: Manifest) -> None:
    """Write ids, images and given labels, a row group per shard, so that any machine can process any shard."""
    pyarrow, parquet = require("pyarrow"), require("pyarrow.parquet")

    text = pyarrow.string()
    schema = pyarrow.schema([("id", text), ("image", text), ("labels", pyarrow.list_(text))])
    with atomic(folder / INPUTS) as stream, parquet.ParquetWriter(stream, schema) as writer:
        for number in range(manifest.shards):
            rows = manifest.rows(number)
            ids = [str(name) for name in inputs.ids[rows]]
            empty = [None] * len(ids)
            images = empty if inputs.images is None else [str(image) for image in inputs.images[rows]]
            columns = {"id": ids, "image": images, "labels": inputs.labels_of(rows) or empty}
            writer.write_table(pyarrow.table(columns, schema=schema), row_group_size=manifest.shard_size)


def _read_inputs(folder: Path, number: int) -> tuple[list[str], list[str], list[Labels]]:
    pyarrow, parquet = require("pyarrow"), require("pyarrow.parquet")

    try:
        table: Any = parquet.ParquetFile(folder / INPUTS).read_row_group(number)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"'{folder / INPUTS}' cannot be read ({error}): name another folder.") from error
    ids, images, labels = (table.column(name).to_pylist() for name in ("id", "image", "labels"))
    return ids, images, [tuple(names or ()) for names in labels]


def encode_shard(
    folder: Path, number: int, model: Model, encoder: Encoder | None, on_done: OnDone = lambda more: None
) -> int:
    """Encode and write one shard; return its number of images.

    All runners use this function, with the same batches, so their codes are equal.
    """
    manifest = read_manifest(folder)
    ids, images, labels = _read_inputs(folder, number)
    broken: dict[str, str] = {}
    if manifest.features is None and encoder is not None:
        kept: list[int] = []
        parts = [np.zeros((0, model.spec.features), dtype=np.float32)]
        for step in encoder.stream([Path(image) for image in images]):
            kept += step.places
            parts.append(step.features)
            broken |= {ids[position]: str(error) for position, error in step.broken.items()}
            on_done(step.seen)
        features: NDArray[Any] = np.concatenate(parts)
    else:
        file = Path(manifest.features or "")
        read_header(file)  # raises for a missing or truncated file
        features = np.load(file, mmap_mode="r", allow_pickle=False)[manifest.rows(number)]
        kept = list(range(len(ids)))
        on_done(len(ids))
    named = [labels[row] for row in kept] if manifest.labels == "given" else model.label_names(features)
    codes = pack(model.encode_features(features))
    write_shard(folder, number, Shard([ids[row] for row in kept], codes, named, broken), manifest)
    return len(ids)


def _write_broken(folder: Path, manifest: Manifest) -> dict[str, str]:
    """Write broken.jsonl, and return why images could not be read, by id."""
    broken, lines = {}, []
    for number in range(manifest.shards):
        for id, reason in (broken_in(shard_path(folder, number)) or {}).items():
            broken[id] = reason
            lines.append(json.dumps({"shard": number, "id": id, "reason": reason}, ensure_ascii=False))
    write_text(folder / BROKEN, "".join(f"{line}\n" for line in lines))
    return broken


def broken_text(broken: dict[str, str], count: int) -> str:
    """List the first images that could not be read; broken.jsonl lists them all."""
    shown = first_reasons(broken.values(), f", see {BROKEN}")
    return f"{len(broken):,} of {count:,} images cannot be read:\n{shown}"


# Ray


class ShardWorker:
    """An actor: called with numbers of shards, it writes those shards."""

    def __init__(self, run: str, folder: str, device: str, engine: str) -> None:
        self._run, self._folder, self._device, self._engine = Path(run), Path(folder), device, engine

    @cached_property
    def _loaded(self) -> tuple[Model, Encoder | None]:
        model, manifest = load(self._run), read_manifest(self._folder)
        if model.digest != manifest.model:
            raise DataError(f"the model in '{self._run}' is another one on this machine: share the folder.")
        images = manifest.features is None
        return model, model.encoder(device=self._device, engine=self._engine) if images else None

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """Write the shards `shard`; return their number of images, or the error that stopped the work."""
        done, kind, message = 0, "", ""
        try:
            for number in batch["shard"]:
                done += encode_shard(self._folder, int(number), *self._loaded)
        except CenterhashError as error:  # as text: Ray would bury it in its own traces
            kind, message = type(error).__name__, str(error)
        return {"done": [done], "kind": [kind], "message": [message]}


def _encode_by_ray(
    run: Path,
    folder: Path,
    todo: Sequence[int],
    device: str,
    engine: str,
    address: str | None,
    workers: int | None,
    on_done: OnDone,
) -> None:
    """Encode and write the shards `todo` by Ray actors.

    `address` is of a cluster, else $RAY_ADDRESS, else Ray runs on this machine meanwhile. `workers` None: one per GPU
    if there are any, else per CPU.
    """
    with _ray(address) as ray:
        gpus = 0 if device == "cpu" else int(ray.cluster_resources().get("GPU", 0))
        if device.startswith("cuda") and not gpus:
            raise ConfigError(
                f"device '{device}' cannot be used: Ray found no GPU. Try device 'cpu' or 'auto'."
            )
        most = workers or gpus or int(ray.cluster_resources().get("CPU", 1))
        numbers = [{"shard": number} for number in todo]
        rows = ray.data.from_items(numbers, override_num_blocks=min(len(todo), _MOST_BLOCKS)).map_batches(
            ShardWorker,
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=max(1, min(most, len(todo)))),
            fn_constructor_args=(
                str(run.absolute()),
                str(folder.absolute()),
                "cuda" if gpus else device if device != "auto" else "cpu",
                engine,
            ),
            num_cpus=1,
            num_gpus=1 if gpus else 0,
        )
        try:
            for row in rows.iter_rows():
                if row["kind"]:
                    raise _ERRORS.get(row["kind"], DataError)(row["message"])
                on_done(int(row["done"]))
        except ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[-1]
            raise DataError(
                f"Ray stopped: {reason} The finished shards are kept: run the same command again."
            ) from error


@contextmanager
def _ray(address: str | None) -> Iterator[Any]:
    """Join or start Ray, quietly; leave it at the end unless it was running before."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    ray = require("ray")
    for module in ("ray.data", "ray.exceptions"):
        require(module)
    if ray.is_initialized():
        yield ray
        return
    try:
        _start_ray(ray, address or os.environ.get("RAY_ADDRESS") or "local")
        yield ray
    finally:
        ray.shutdown()


def _start_ray(ray: Any, address: str) -> None:
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == "local":
        quiet |= {"num_cpus": cpu_count(), "object_store_memory": _STORE, "include_dashboard": False}
    try:
        host, _, port = address.removeprefix("ray://").rpartition(":")
        if host and port.isdecimal():  # Ray itself would try for minutes if nothing answers
            socket.create_connection((host.strip("[]"), int(port)), timeout=_TIMEOUT).close()
        with _muted_stderr():
            ray.init(address=address, **quiet)
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"Ray at '{address}' cannot be used: {first_line(error)}. Start it by `ray start --head`, or leave the "
            "address out."
        ) from error
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)


@contextmanager
def _muted_stderr() -> Iterator[None]:
    """Mute what Ray's native libraries, which do not use Python's stderr, print as they start."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
