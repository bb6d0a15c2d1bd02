"""Models on a local hub: only the files of a model, cached by commit, offline, and one-line errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import centerhash as ch
from centerhash.core.errors import ConfigError, DataError
from centerhash.core.files import with_checksum
from centerhash.model.model import HashModel
from centerhash.model.portable import PortableModel
from tests.hub import Hub, serving
from tests.toys import WIDTH, cli, names, python_process, refused

FEATURES = np.random.default_rng(0).normal(size=(9, WIDTH)).astype(np.float32)
NO_SERVER = "http://127.0.0.1:9"
pytestmark = pytest.mark.usefixtures("kept_networks")


def use(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
    template = f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A hub, and an empty cache."""
    monkeypatch.setenv("CENTERHASH_CACHE", str(tmp_path / "cache"))
    with serving() as running:
        use(monkeypatch, running.url)
        yield running


def torch_files(run: Path) -> dict[str, bytes]:
    return {name: (run / name).read_bytes() for name in ("model.json", "model.safetensors")}


def changed_spec(run: Path, **fields: Any) -> bytes:
    spec = {**json.loads((run / "model.json").read_text()), **fields}
    del spec["checksum"]
    return json.dumps(with_checksum(spec)).encode()


def error_of(source: str) -> str:
    with pytest.raises((DataError, ConfigError)) as caught:
        ch.load(source)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def commit_of(source: str) -> str:
    folder = ch.load(source).folder
    assert folder is not None
    return folder.name


# Downloading


def test_download_model_files_only(hub: Hub, feature_run: Path, tmp_path: Path) -> None:
    other = {"README.md": b"# card", "evil.py": b"", "evil/model.json": b"{}", "model.pt": b""}
    hub.put("jane/photos", {**torch_files(feature_run), **other})
    model, expected = ch.load("hf:jane/photos"), HashModel.load(feature_run)
    assert np.array_equal(model.encode_features(FEATURES), expected.encode_features(FEATURES))
    assert model.folder is not None
    assert model.folder.is_relative_to(tmp_path / "cache" / "models")
    assert names(model.folder) == ["model.json", "model.safetensors"]


def test_revisions(hub: Hub, feature_run: Path) -> None:
    first = hub.put("jane/photos", torch_files(feature_run))
    hub.put("jane/photos", torch_files(feature_run), branch="v1/old")
    second = hub.put("jane/photos", {"README.md": b"new"})
    assert commit_of("hf:jane/photos") == second
    assert commit_of(f"hf:jane/photos@{first}") == first
    assert ch.load("hf:jane/photos@v1/old").classes


def test_portable_model_is_preferred(hub: Hub, feature_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    portable = {"model.onnx": (feature_run / "model.onnx").read_bytes()}
    hub.put("jane/photos", portable)
    model = ch.load("hf:jane/photos")
    assert isinstance(model, PortableModel)
    assert names(model.folder) == ["model.onnx"]
    hub.put("jane/both", {**torch_files(feature_run), **portable})
    assert "model.safetensors" not in names(Path(ch.load("hf:jane/both").folder or ""))
    use(monkeypatch, NO_SERVER)
    assert ch.load("hf:jane/photos").digest == model.digest


def test_cached_models_load_offline(hub: Hub, feature_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = hub.put("jane/photos", torch_files(feature_run))
    ch.load("hf:jane/photos")
    requests = len(hub.requests)
    ch.load(f"hf:jane/photos@{commit}")
    assert len(hub.requests) == requests
    use(monkeypatch, NO_SERVER)
    assert commit_of("hf:jane/photos") == commit_of(f"hf:jane/photos@{commit}") == commit
    assert NO_SERVER in error_of("hf:jane/photos@other")


def test_local_folder_first(
    hub: Hub, feature_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hf:jane").mkdir()
    (tmp_path / "hf:jane" / "photos").symlink_to(feature_run)
    assert ch.load("hf:jane/photos").bits == 16
    assert not hub.requests


@pytest.mark.parametrize("source", ["jane/gone", "jane/photos@v9"])
def test_unknown_repository_or_revision(hub: Hub, feature_run: Path, source: str) -> None:
    hub.put("jane/photos", torch_files(feature_run))
    assert f"'hf:{source}'" in error_of(f"hf:{source}")


@pytest.mark.parametrize(
    "address",
    ["photos", "../photos", "/photos", "", "jane/a/b", "jane/..", "jane/a b", "jane/a--b", "jane/é"]
    + [f"jane/photos@{revision}" for revision in ("", "../../x", "a/../b", "-x", "a b")],
)
def test_invalid_addresses(hub: Hub, toy_model: HashModel, address: str) -> None:
    assert f"got '{address}'" in error_of(f"hf:{address}")
    with pytest.raises(ConfigError, match="owner/name"):
        toy_model.push_to_hub(address)
    assert not hub.requests


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.json", None),
        ("model.safetensors", None),
        ("model.json", b"{}"),
        ("model.json", b"[1]"),
        ("model.json", b"\xff"),
        ("model.safetensors", b"no tensors"),
        ("model.onnx", b"no network"),
    ],
)
def test_repositories_without_model(hub: Hub, feature_run: Path, name: str, content: bytes | None) -> None:
    files = torch_files(feature_run)
    files.pop(name, None)
    hub.put("jane/photos", files if content is None else {**files, name: content})
    assert "model" in error_of("hf:jane/photos")


def test_local_weights_are_rejected(hub: Hub, feature_run: Path) -> None:
    spec = changed_spec(feature_run, backbone="resnet50", weights="/home/jane/weights.pth")
    hub.put("jane/photos", {**torch_files(feature_run), "model.json": spec})
    assert "weights.pth" in error_of("hf:jane/photos")


def test_fine_tuned_backbone(hub: Hub, feature_run: Path) -> None:
    files = {"model.json": changed_spec(feature_run, tuned=True), "backbone.safetensors": b"weights"}
    hub.put("jane/photos", {**torch_files(feature_run), **files})
    model = ch.load("hf:jane/photos")
    assert isinstance(model, HashModel)
    assert model.tuned_weights is not None
    assert model.tuned_weights.read_bytes() == b"weights"


def test_interrupted_download(hub: Hub, feature_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # huggingface_hub waits before it tries again.
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
    hub.put("jane/photos", torch_files(feature_run))
    hub.cut = "model.safetensors"
    assert "Try again" in error_of("hf:jane/photos")
    hub.cut = None
    assert ch.load("hf:jane/photos").digest == HashModel.load(feature_run).digest


# Uploading


def test_publish(hub: Hub, feature_run: Path, tmp_path: Path) -> None:
    done = cli("publish", feature_run, "jane/photos", "--license", "apache-2.0")
    assert done.code == 0, done.err
    assert f"{hub.url}/jane/photos" in done.text
    assert names_on(hub) == ["README.md", "model.json", "model.onnx", "model.safetensors"]
    assert ch.load("hf:jane/photos").digest == HashModel.load(feature_run).digest
    card = hub.latest("jane/photos")["README.md"].decode()
    assert card.startswith("---\nlibrary_name: centerhash\nlicense: apache-2.0\n")
    assert '"method": "ics-softmax"' in card
    assert "mAP@" in card
    assert "    ant\n    bee\n" in card
    assert str(tmp_path) not in card


def names_on(hub: Hub) -> list[str]:
    return sorted(hub.latest("jane/photos"))


def test_publish_without_run(hub: Hub, toy_model: HashModel) -> None:
    assert toy_model.push_to_hub("jane/photos", private=True) == f"{hub.url}/jane/photos"
    card = hub.latest("jane/photos")["README.md"].decode()
    assert "## Results\n\n    Not recorded." in card
    assert ch.load("hf:jane/photos").digest == toy_model.digest


def test_rejected_upload(hub: Hub, feature_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for status in (400, 401, 403):
        hub.rejecting = status
        assert "'jane/photos'" in refused(cli("publish", feature_run, "jane/photos"))
    use(monkeypatch, NO_SERVER)
    assert NO_SERVER in refused(cli("publish", feature_run, "jane/photos"))


def test_publish_rejects_local_weights(hub: Hub, image_run: Path) -> None:
    model = HashModel.load(image_run)
    spec = model.spec.model_copy(update={"weights": "/home/jane/weights.pth"})
    with pytest.raises(ConfigError, match=r"'weights.pth'"):
        HashModel(spec, model.tensors(), image_run).push_to_hub("jane/photos")
    assert not hub.requests


def test_paths_are_not_published(hub: Hub, feature_run: Path, tmp_path: Path) -> None:
    (tmp_path / "backbone.safetensors").write_bytes(b"weights")
    model = HashModel.load(feature_run)
    spec = model.spec.model_copy(update={"weights": "/home/jane/weights.pth", "tuned": True})
    HashModel(spec, model.tensors(), tmp_path).push_to_hub("jane/photos")
    files = hub.latest("jane/photos")
    assert "backbone.safetensors" in files
    for content in files.values():
        assert b"/home/jane" not in content


@pytest.mark.slow
def test_endpoint_from_environment(hub: Hub, feature_run: Path, tmp_path: Path) -> None:
    hub.put("jane/photos", torch_files(feature_run))
    program = "import centerhash; print(centerhash.load('hf:jane/photos').bits)"
    cache = str(tmp_path / "other")
    done = python_process("-c", program, HF_ENDPOINT=hub.url, CENTERHASH_CACHE=cache)
    assert (done.code, done.out.strip()) == (0, "16"), done.err
