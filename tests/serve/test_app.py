"""How a server is started: settings, factory, command line."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from centerhash.core.errors import ConfigError
from centerhash.photos import PhotoIndex
from centerhash.serve import Settings, create_app
from centerhash.serve.app import serve_index
from centerhash.serve.settings import listen
from tests.serve.toys import BEARER, PASSWORD
from tests.toys import cli, refused


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("INDEX", "PASSWORD", "PASSWORD_FILE", "HOSTS", "MAX_UPLOAD_MB"):
        monkeypatch.delenv(f"CENTERHASH_{name}", raising=False)


def test_factory(photos: PhotoIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CENTERHASH_INDEX", str(photos.folder))
    monkeypatch.setenv("CENTERHASH_PASSWORD", PASSWORD)
    monkeypatch.setenv("CENTERHASH_HOSTS", "photos.example, localhost")
    monkeypatch.setenv("CENTERHASH_MAX_UPLOAD_MB", "3.5")
    with TestClient(create_app(), base_url="http://photos.example") as client:
        assert client.get("/health").json()["max_upload_mb"] == 3.5
        assert client.get("/items", headers=BEARER).json()["total"] == len(photos)
        assert client.get("/items").status_code == 401
        assert client.get("/health", headers={"host": "evil.example"}).status_code == 400


@pytest.mark.parametrize("name", ["CENTERHASH_INDEX", "CENTERHASH_PASSWORD"])
def test_factory_needs(photos: PhotoIndex, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CENTERHASH_INDEX", str(photos.folder))
    monkeypatch.setenv("CENTERHASH_PASSWORD", PASSWORD)
    monkeypatch.delenv(name)
    with pytest.raises(ConfigError, match=name):
        create_app()


def test_settings_of_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CENTERHASH_PASSWORD_FILE", str(tmp_path / "password"))
    with pytest.raises(ConfigError, match="password"):
        Settings.from_environment()
    (tmp_path / "password").write_text(f"{PASSWORD}\nsecond line\n")
    settings = Settings.from_environment({"max_upload_mb": 2.0})
    assert settings.password is not None
    assert settings.password.get_secret_value() == PASSWORD
    assert PASSWORD not in repr(settings)
    assert settings.max_upload_mb == 2.0


@pytest.mark.parametrize("changes", [{"MAX_UPLOAD_MB": "0"}, {"WORKERS": "many"}, {"MAX_MEGAPIXELS": "-1"}])
def test_bad_settings(changes: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in changes.items():
        monkeypatch.setenv(f"CENTERHASH_{name}", value)
    with pytest.raises(ConfigError, match=next(iter(changes)).lower()):
        Settings.from_environment()


def test_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(ConfigError, match="port"):
        listen("127.0.0.1", other.getsockname()[1])
    with pytest.raises(ConfigError):
        listen("no.such.host.invalid", 0)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "photos.example"])
def test_public_needs_password(photos: PhotoIndex, host: str) -> None:
    refused(cli("serve", photos.folder, "--host", host))
    with pytest.raises(ConfigError, match="password"):
        serve_index(photos, Settings(), host, 0, print)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("nowhere",), "nowhere"),
        ((".",), "."),
        (("{index}", "--password-file", "nowhere"), "nowhere"),
        (("{index}", "--max-upload-mb", "-1"), "upload"),
        (("{index}", "--engine", "onx"), "onx"),
        (("{index}", "--port", "70000"), "port"),
    ],
)
def test_command_errors(
    photos: PhotoIndex, words: tuple[str, ...], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert name in refused(cli("serve", *(word.format(index=photos.folder) for word in words)))


def test_command_options(photos: PhotoIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Any] = []
    monkeypatch.setattr("centerhash.serve.app.serve_index", lambda *all, **named: served.append((all, named)))
    (tmp_path / "password").write_text(PASSWORD)
    words = ["--password-file", tmp_path / "password", "--allow-host", "a.example"]
    done = cli("serve", photos.folder, "--host", "0.0.0.0", "--max-upload-mb", "7", *words)
    assert done.code == 0, done.err
    ((index, settings, host, port, _, syncing), named) = served[0]
    assert (host, port, named) == ("0.0.0.0", 8000, {"log_requests": False})
    assert index.index.read_only
    assert syncing is None
    assert settings.password.get_secret_value() == PASSWORD
    assert settings.hosts == ("a.example",)
    assert settings.max_upload_mb == 7
