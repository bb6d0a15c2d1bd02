"""The work on a folder of parts: begin or resume, do one part, say at the end what is there and what was broken."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import save

from centerhash.codes import pack
from centerhash.core.errors import ConfigError, DataError, first_reasons, unknown_name
from centerhash.core.extras import require
from centerhash.core.files import atomic, make_folder, write_json, write_text
from centerhash.core.progress import Progress, silent
from centerhash.data.npy import read_header
from centerhash.encoding.inputs import Inputs, list_inputs
from centerhash.encoding.parts import (
    BROKEN,
    INPUTS,
    MANIFEST,
    Labels,
    LabelSource,
    Manifest,
    Part,
    broken_in,
    part_path,
    read_manifest,
    write_part,
)
from centerhash.model.model import HashModel
from centerhash.networks.backbones import choose_device
from centerhash.networks.encoder import Encoder
from centerhash.networks.engines import choose_engine

PART_SIZE = 4096  # images: minutes of work on a small machine; a kill loses no more than one part per worker
RUNNERS = ("local", "ray")

Seen: TypeAlias = Callable[[int], None]  # called with how many more images are done


def model_digest(model: HashModel) -> str:
    """A digest of all that decides a model's codes; the place of its weight file does not."""
    tensors = {name: tensor.contiguous() for name, tensor in sorted(model.tensors().items())}
    spec = model.spec.model_dump_json(exclude={"weights"})
    return sha256(spec.encode() + save(tensors)).hexdigest()


@dataclass(frozen=True)
class Encoded:
    """What `encode_parts` leaves behind: how many codes and parts, what was done before, what could not be read."""

    count: int
    parts: int
    found: int  # parts that were there already
    broken: dict[str, str]  # reason by id
    warnings: tuple[str, ...]


def encode_parts(
    run: str | Path,
    entries: Sequence[str],
    out: str | Path,
    *,
    runner: str = "local",
    part_size: int = PART_SIZE,
    device: str = "auto",
    engine: str = "auto",
    skip_broken: bool = False,
    ray_address: str | None = None,
    workers: int | None = None,
    progress: Progress = silent,
) -> Encoded:
    """Encode images, a data set or features by the model in `run` into parts in the folder `out`.

    The same call resumes where a killed one stopped. Images that cannot be read are left out and listed in
    broken.jsonl; without `skip_broken` they raise DataError when all else is done, and are tried again by the next
    call. `ray_address` and `workers` are for the runner "ray".
    """
    if runner not in RUNNERS:
        raise unknown_name("runner", runner, RUNNERS)
    if part_size < 1:
        raise ConfigError(f"a part holds at least 1 image, got {part_size}.")
    folder, model, inputs = Path(out), HashModel.load(run), list_inputs(entries, ordered=True)
    if inputs.images is not None:
        model.backbone()  # refuses models without one before anything is written
        if runner == "local":
            choose_engine(engine, choose_device(device))
    manifest = open_folder(folder, inputs, model, part_size)
    todo = [number for number in range(manifest.parts) if not _is_done(folder, number, skip_broken)]
    done = manifest.count - sum(len(range(manifest.count)[manifest.rows(number)]) for number in todo)
    progress("codes", done, manifest.count)

    def seen(more: int) -> None:
        nonlocal done
        done += more
        progress("codes", done, manifest.count)

    if todo and runner == "ray":
        from centerhash.encoding.ray_runner import finish_parts

        finish_parts(model.folder or Path(run), folder, todo, device, engine, ray_address, workers, seen)
    elif todo:
        encoder = None if inputs.images is None else model.encoder(device=device, engine=engine)
        for number in todo:
            finish_part(folder, number, model, encoder, seen)
    return _concluded(folder, manifest, inputs.warnings, manifest.parts - len(todo), skip_broken)


def _is_done(folder: Path, number: int, skip_broken: bool) -> bool:
    """Whether a part needs no work; one with broken images is tried again, they may have been repaired."""
    broken = broken_in(part_path(folder, number))
    return broken is not None and (skip_broken or not broken)


def open_folder(folder: Path, inputs: Inputs, model: HashModel, part_size: int) -> Manifest:
    """Begin a folder of parts, or make sure that the one that is there is of the same model and inputs."""
    predicted: LabelSource = "predicted" if model.has_centers else "none"
    wanted = Manifest(
        bits=model.bits,
        model=model_digest(model),
        inputs=inputs.fingerprint(),
        count=len(inputs.ids),
        part_size=part_size,
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
    differences = {
        "another model": stored.model != wanted.model,
        f"other images ({stored.count:,} of them, now {wanted.count:,})": stored.inputs != wanted.inputs,
        f"parts of {stored.part_size:,} images, now {wanted.part_size:,}": stored.part_size
        != wanted.part_size,
    }
    found = [text for text, differs in differences.items() if differs]
    if found:
        raise ConfigError(
            f"'{folder}' was begun with {' and '.join(found)}: name another folder, or repeat the same "
            "call to resume."
        )


def _write_inputs(folder: Path, inputs: Inputs, manifest: Manifest) -> None:
    """Write ids, images and given labels, a row group per part, so that any machine can take up any part."""
    pyarrow, parquet = require("pyarrow"), require("pyarrow.parquet")

    text = pyarrow.string()
    schema = pyarrow.schema([("id", text), ("image", text), ("labels", pyarrow.list_(text))])
    with atomic(folder / INPUTS) as stream, parquet.ParquetWriter(stream, schema) as writer:
        for number in range(manifest.parts):
            rows = manifest.rows(number)
            ids = list(inputs.ids[rows])
            nothing = [None] * len(ids)
            images = nothing if inputs.images is None else [str(image) for image in inputs.images[rows]]
            columns = {"id": ids, "image": images, "labels": inputs.labels_of(rows) or nothing}
            writer.write_table(pyarrow.table(columns, schema=schema), row_group_size=manifest.part_size)


def _read_inputs(folder: Path, number: int) -> tuple[list[str], list[str], list[Labels]]:
    pyarrow, parquet = require("pyarrow"), require("pyarrow.parquet")

    try:
        table: Any = parquet.ParquetFile(folder / INPUTS).read_row_group(number)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"'{folder / INPUTS}' cannot be read ({error}): name another folder.") from error
    ids, images, labels = (table.column(name).to_pylist() for name in ("id", "image", "labels"))
    return ids, images, [tuple(names or ()) for names in labels]


def finish_part(
    folder: Path, number: int, model: HashModel, encoder: Encoder | None, seen: Seen = lambda more: None
) -> int:
    """Encode and write one part of a folder that `open_folder` began; return how many images it is of.

    All runners encode by this, with the same batches, so their codes are equal.
    """
    manifest = read_manifest(folder)
    ids, images, stored = _read_inputs(folder, number)
    labels = stored if manifest.labels == "given" else None
    if manifest.features is None and encoder is not None:
        part = _encode_images(ids, [Path(image) for image in images], labels, model, encoder, seen)
    else:
        features_file = Path(manifest.features or "")
        read_header(features_file)  # says what is wrong with a file that is gone or cut
        features = np.load(features_file, mmap_mode="r", allow_pickle=False)[manifest.rows(number)]
        part = _encode_features(ids, features, labels, model)
        seen(len(ids))
    write_part(folder, number, part, manifest)
    return len(ids)


def _encode_images(
    ids: Sequence[str],
    images: Sequence[Path],
    labels: Sequence[Labels] | None,
    model: HashModel,
    encoder: Encoder,
    seen: Seen,
) -> Part:
    """Encode n image files; those that cannot be read are left out and named."""
    kept: list[int] = []
    broken: dict[str, str] = {}
    features = [np.zeros((0, model.spec.features), dtype=np.float32)]
    for step in encoder.stream(images):
        kept += step.places
        features.append(step.features)
        broken |= {ids[place]: str(error) for place, error in step.broken.items()}
        seen(step.seen)
    given = None if labels is None else [labels[row] for row in kept]
    part = _encode_features([ids[row] for row in kept], np.concatenate(features), given, model)
    return replace(part, broken=broken)


def _encode_features(
    ids: Sequence[str], features: NDArray[Any], labels: Sequence[Labels] | None, model: HashModel
) -> Part:
    """Encode features (n, D). `labels` None: as the model predicts, where it does."""
    named = model.label_names(features) if labels is None else labels
    return Part(ids, pack(model.encode_features(features)), named, {})


def _concluded(
    folder: Path, manifest: Manifest, warnings: tuple[str, ...], found: int, skip_broken: bool
) -> Encoded:
    """Write broken.jsonl and say what there is; raise DataError for broken images that are not to be skipped."""
    rows = list(_all_broken(folder, manifest))
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    write_text(folder / BROKEN, "".join(f"{line}\n" for line in lines))
    broken = {row["id"]: row["reason"] for row in rows}
    if broken and not skip_broken:
        raise DataError(
            f"{broken_text(broken, manifest.count)}\nThe codes of all others are in '{folder}'. Repair these files "
            "and run the same command again, or pass `skip_broken=True` to leave them out."
        )
    return Encoded(manifest.count - len(broken), manifest.parts, found, broken, warnings)


def _all_broken(folder: Path, manifest: Manifest) -> Iterator[dict[str, Any]]:
    for number in range(manifest.parts):
        for id, reason in (broken_in(part_path(folder, number)) or {}).items():
            yield {"part": number, "id": id, "reason": reason}


def broken_text(broken: dict[str, str], count: int) -> str:
    """Name the first images that could not be read; broken.jsonl names them all."""
    shown = first_reasons(broken.values(), f", see {BROKEN}")
    return f"{len(broken):,} of {count:,} images cannot be read:\n{shown}"
