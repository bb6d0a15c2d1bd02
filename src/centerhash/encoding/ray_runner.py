"""Encode shards by Ray Data, on this machine or on a cluster whose machines share the files.

Each item of the Ray dataset is the number of a shard. Actors load the model once and write shards into the shared folder;
the current shard of a dead actor goes to another actor.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from centerhash.core.errors import CenterhashError, ConfigError, DataError, first_line
from centerhash.core.extras import require
from centerhash.core.parallel import cpu_count
from centerhash.encoding.bulk import BulkInputs, encode_shard
from centerhash.encoding.shards import read_manifest
from centerhash.model.base import Model
from centerhash.model.loading import load

# Only the lists of images are in the shared memory of a local Ray.
_STORE_BYTES = 200 * 2**20
# An actor encodes the shards of a block one after the other.
_MOST_BLOCKS = 1000


class ShardActor:
    """An actor that encodes and writes shards."""

    def __init__(self, run: str, folder: str, parts: Mapping[int, Any], *settings: str) -> None:
        self._run, self._folder, self._parts, self._settings = Path(run), Path(folder), parts, settings

    @cached_property
    def _model(self) -> Model:
        model = load(self._run)
        if model.digest != read_manifest(self._folder).model:
            raise DataError(f"the model in '{self._run}' is another one on this machine: share the folder.")
        return model

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Write one shard; return its number of images, or the error, which Ray would hide in its own traces."""
        number = int(row["item"])
        try:
            inputs = require("ray").get(self._parts[number])
            counts = encode_shard(self._model, self._folder, number, inputs, *self._settings)
            return {"count": sum(counts), "error": ""}
        except CenterhashError as error:
            return {"count": 0, "error": str(error)}


def encode_by_ray(
    run: Path,
    folder: Path,
    parts: Mapping[int, BulkInputs],
    engine: str,
    device: str,
    address: str | None,
    workers: int | None,
) -> Iterator[int]:
    """Encode and write shards by `workers` actors, by default one per GPU or CPU; yield the number of items per shard."""
    with _connected(address) as ray:
        resources = ray.cluster_resources()
        gpus = 0 if device == "cpu" else int(resources.get("GPU", 0))
        if device.startswith("cuda") and not gpus:
            raise ConfigError(f"Ray found no GPU for the device '{device}': try 'cpu' or 'auto'.")
        actors = max(1, min(workers or gpus or int(resources.get("CPU", 1)), len(parts)))
        device = "cuda" if gpus else "cpu" if device == "auto" else device
        stored = {number: ray.put(inputs) for number, inputs in parts.items()}
        numbers = ray.data.from_items(list(parts), override_num_blocks=min(len(parts), _MOST_BLOCKS))
        results = numbers.map(
            ShardActor,
            compute=ray.data.ActorPoolStrategy(size=actors),
            fn_constructor_args=(str(run.absolute()), str(folder.absolute()), stored, engine, device),
            num_cpus=1,
            num_gpus=1 if gpus else 0,
        )
        try:
            for row in results.iter_rows():
                if row["error"]:
                    raise DataError(row["error"])
                yield int(row["count"])
        except ray.exceptions.RayError as error:
            last = str(error).strip().splitlines()[-1]
            raise DataError(f"Ray stopped: {last} Repeat the same command to resume.") from error


@contextmanager
def _connected(address: str | None) -> Iterator[Any]:
    """Connect to Ray at `address` or $RAY_ADDRESS, else start it locally; disconnect at the end unless it was in use."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    require("ray.data")
    ray = require("ray")
    if ray.is_initialized():
        yield ray
        return
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == "local":
        settings |= {"num_cpus": cpu_count(), "object_store_memory": _STORE_BYTES, "include_dashboard": False}
    try:
        host, _, port = address.removeprefix("ray://").rpartition(":")
        if host and port.isdecimal():
            # Ray itself would try for minutes.
            socket.create_connection((host.strip("[]"), int(port)), timeout=10.0).close()
        ray.init(address=address, **settings)
    except (OSError, RuntimeError, ValueError) as error:
        reason = f"Ray at '{address}' cannot be used: {first_line(error)}."
        raise ConfigError(f"{reason} Start it by `ray start --head`, or omit the address.") from error
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        yield ray
    finally:
        ray.shutdown()
