"""Places for an index of every engine; those that start processes of their own are slow."""

from __future__ import annotations

import importlib.util
import itertools
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from centerhash.core.errors import ConfigError
from centerhash.search.engines.table import ENGINES, create_store
from tests.search.engines.places import KINDS, Place, use_small_segments

_numbers = itertools.count()


def written_engines() -> list[Any]:
    """One parameter per kind of every engine whose module is there."""
    return [
        pytest.param(kind, marks=[pytest.mark.slow] if name == "milvus" else [])
        for name, engine in ENGINES.items()
        if importlib.util.find_spec("centerhash." + engine.home.split(":")[0])
        for kind in KINDS[name]
    ]


# both compute while nobody asks them: they end when another folder's tests begin
@pytest.fixture(scope="package")
def lite_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A milvus-lite file that stays open, so that its child process is started once for all tests."""
    file = tmp_path_factory.mktemp("milvus") / "shared.db"
    try:
        index = create_store(f"milvus:{file}#keeper", file.parent, 8)
    except ConfigError as error:
        pytest.skip(f"milvus-lite cannot be used here: {error}")
    yield file
    index.close()


@pytest.fixture(scope="package")
def milvus_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real Milvus server with its data in a temporary folder."""
    milvus = pytest.importorskip("milvus", reason="the package 'milvus' (the server) is not installed")
    server = milvus.default_server
    folder = tmp_path_factory.mktemp("server")
    server.set_base_dir(str(folder))
    server.config.set("proxy.timeTickInterval", 20)  # what strong consistency waits for
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # of sockets that it tries on ports in use
            server.start()
    except (OSError, RuntimeError) as error:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
        pytest.skip(f"the Milvus server does not start here: {error}")
    yield f"http://{server.server_address}:{server.listen_port}"
    server.server_proc.kill()  # nothing of it is kept, and `stop` has no patience with a busy machine
    server.server_proc.wait()
    server.stop()
    shutil.rmtree(folder, ignore_errors=True)  # the server unpacks hundreds of megabytes


@pytest.fixture(params=written_engines())
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A place for an index of each engine."""
    kind: str = request.param
    if kind == "milvus-lite":
        file, number = request.getfixturevalue("lite_file"), next(_numbers)
        return Place(kind, lambda bits: f"milvus:{file}?consistency=Strong#c{number}_{bits}", tmp_path)
    if kind == "milvus-server":
        server = request.getfixturevalue("milvus_server")
        return Place(
            kind, lambda bits: f"milvus:{server}?consistency=Strong#shared_{bits}", tmp_path, again=True
        )
    if kind != "flat-journal":
        use_small_segments(monkeypatch, tables=kind == "flat-tables")
    return Place(kind, lambda bits: "flat", tmp_path)
