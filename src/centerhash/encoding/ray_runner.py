"""Parts by Ray Data: actors that load the model once, here or on a cluster. All machines see the same files.

A row of the Ray data set is the number of a part. An actor reads that part's inputs from the shared folder, encodes
them as the local runner does, and writes the part there, so nothing large passes through Ray, and a dead worker costs
the parts in its hands.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from centerhash.core.errors import CenterhashError, ConfigError, DataError, InputError, OutputError
from centerhash.core.extras import require
from centerhash.core.parallel import cpu_count
from centerhash.encoding.parts import read_manifest
from centerhash.encoding.work import Seen, finish_part, model_digest
from centerhash.model.model import HashModel
from centerhash.networks.encoder import Encoder

_STORE = 200 * 2**20  # bytes of shared memory for a Ray of our own: only numbers of parts go through it
_MOST_BLOCKS = 1000  # of the list of parts: an actor takes a block at a time
_PATIENCE = 10.0  # seconds for a cluster to answer
_QUIET = {  # of Ray: no reports to its makers, and nothing on the terminal
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",  # as quick as the local runner, also beside other work
}
_ERRORS = {kind.__name__: kind for kind in (InputError, ConfigError, DataError, OutputError)}


class PartWorker:
    """An actor: called with numbers of parts, it writes those parts."""

    def __init__(self, run: str, folder: str, device: str, engine: str) -> None:
        self._run, self._folder, self._device, self._engine = Path(run), Path(folder), device, engine

    @cached_property
    def _loaded(self) -> tuple[HashModel, Encoder | None]:
        model, manifest = HashModel.load(self._run), read_manifest(self._folder)
        if model_digest(model) != manifest.model:
            raise DataError(f"the model in '{self._run}' is another one on this machine: share the folder.")
        images = manifest.features is None
        return model, model.encoder(device=self._device, engine=self._engine) if images else None

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """Write the parts `part`; return how many images they were of, or the error that stopped the work."""
        done, kind, message = 0, "", ""
        try:
            for number in batch["part"]:
                done += finish_part(self._folder, int(number), *self._loaded)
        except CenterhashError as error:  # as words: Ray would bury it in traces of its own
            kind, message = type(error).__name__, str(error)
        return {"done": [done], "kind": [kind], "message": [message]}


def finish_parts(
    run: Path,
    folder: Path,
    todo: Sequence[int],
    device: str = "auto",
    engine: str = "auto",
    address: str | None = None,
    workers: int | None = None,
    seen: Seen = lambda more: None,
) -> None:
    """Encode and write the parts `todo` of a folder that is begun, by actors of Ray.

    `address` is of a cluster, else $RAY_ADDRESS, else Ray runs here for as long as this takes. `workers` None: an
    actor per GPU where there are any, else per processor.
    """
    with _ray(address) as ray:
        gpus = 0 if device == "cpu" else int(ray.cluster_resources().get("GPU", 0))
        if device.startswith("cuda") and not gpus:
            raise ConfigError(
                f"device '{device}' cannot be used: Ray sees no GPU. Try device 'cpu' or 'auto'."
            )
        most = workers or gpus or int(ray.cluster_resources().get("CPU", 1))
        parts = ray.data.from_items(
            [{"part": number} for number in todo], override_num_blocks=min(len(todo), _MOST_BLOCKS)
        )
        rows = parts.map_batches(
            PartWorker,
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
                seen(int(row["done"]))
        except ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[-1]
            raise DataError(
                f"Ray stopped: {reason} The finished parts are kept: run the same command again."
            ) from error


@contextmanager
def _ray(address: str | None) -> Iterator[Any]:
    """Ray, joined or started, and quiet; left again unless it was there before."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    ray = require("ray")
    for part in ("ray.data", "ray.exceptions"):
        require(part)
    if ray.is_initialized():
        yield ray
        return
    try:
        _start(ray, address or os.environ.get("RAY_ADDRESS") or "local")
        yield ray
    finally:
        ray.shutdown()


def _start(ray: Any, address: str) -> None:
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == "local":
        quiet |= {"num_cpus": cpu_count(), "object_store_memory": _STORE, "include_dashboard": False}
    try:
        _reach(address)
        with _muted_stderr():
            ray.init(address=address, **quiet)
    except (OSError, RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"Ray at '{address}' cannot be used: {reason}. Start it by `ray start --head`, or leave the address out."
        ) from error
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)


def _reach(address: str) -> None:
    """Raise OSError where nobody answers at host:port, which Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE).close()


@contextmanager
def _muted_stderr() -> Iterator[None]:
    """Keep away what Ray's own libraries, which know nothing of Python's stderr, say as they start."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
