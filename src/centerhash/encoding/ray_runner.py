"""Encode shards by Ray Data, on this machine or on a cluster whose machines share the files.

A row of the Ray dataset is the task of one shard. Actors load the model once and write the shards into the shared
folder; the current shard of a dead actor goes to another one.
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
from centerhash.encoding.bulk import Inputs, encode_shard
from centerhash.encoding.shards import read_manifest
from centerhash.model.base import Model
from centerhash.model.loading import load

# Only the lists of images go through the shared memory of a local Ray.
_STORE_BYTES = 200 * 2**20
# An actor processes a block of the list of shards at a time.
_MOST_BLOCKS = 1000


class ShardActor:
    """An actor that writes the shards of the tasks it is called with."""

    def __init__(self, run: str, folder: str, parts: Mapping[int, Any], engine: str, device: str) -> None:
        self._run, self._folder, self._parts = Path(run), Path(folder), parts
        self._engine, self._device = engine, device

    @cached_property
    def _model(self) -> Model:
        model = load(self._run)
        if model.digest != read_manifest(self._folder).model:
            raise DataError(f"the model in '{self._run}' is another one on this machine: share the folder.")
        return model

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Write one shard; return its number of images, or the error, which Ray would bury in its own traces."""
        number = int(row["number"])
        try:
            inputs = require("ray").get(self._parts[number])
            done = sum(encode_shard(self._model, self._folder, number, inputs, self._engine, self._device))
        except CenterhashError as error:
            return {"done": 0, "error": str(error)}
        return {"done": done, "error": ""}


def encode_by_ray(
    run: Path,
    folder: Path,
    parts: Mapping[int, Inputs],
    engine: str,
    device: str,
    address: str | None,
    workers: int | None,
) -> Iterator[int]:
    """Encode and write shards by Ray actors: `workers`, else one per GPU if there are any, else per CPU.

    Yield how many items each shard has. `address` is of a cluster, else $RAY_ADDRESS, else Ray runs on this machine
    meanwhile.
    """
    with _connected(address) as ray:
        resources = ray.cluster_resources()
        gpus = 0 if device == "cpu" else int(resources.get("GPU", 0))
        if device.startswith("cuda") and not gpus:
            raise ConfigError(f"Ray found no GPU for the device '{device}': try 'cpu' or 'auto'.")
        actors = min(workers or gpus or int(resources.get("CPU", 1)), len(parts))
        device = "cuda" if gpus else "cpu" if device == "auto" else device
        stored = {number: ray.put(inputs) for number, inputs in parts.items()}
        rows = [{"number": number} for number in parts]
        results = ray.data.from_items(rows, override_num_blocks=min(len(parts), _MOST_BLOCKS)).map(
            ShardActor,
            compute=ray.data.ActorPoolStrategy(size=max(1, actors)),
            fn_constructor_args=(str(run.absolute()), str(folder.absolute()), stored, engine, device),
            num_cpus=1,
            num_gpus=1 if gpus else 0,
        )
        try:
            for row in results.iter_rows():
                if row["error"]:
                    raise DataError(row["error"])
                yield int(row["done"])
        except ray.exceptions.RayError as error:
            last = str(error).strip().splitlines()[-1]
            raise DataError(f"Ray stopped: {last} Repeat the same command to resume.") from error


@contextmanager
def _connected(address: str | None) -> Iterator[Any]:
    """Join or start Ray; leave it at the end unless it was running before."""
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
