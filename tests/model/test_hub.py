"""Models on a local hub: only the files of a model, cached by commit, offline, and one-line errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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
from tests.toys import WIDTH, cli, names, process_environment, refused
from tests.webserver import FileServer

FEATURES = np.random.default_rng(0).normal(size=(9, WIDTH)).astype(np.float32)
NOBODY = "http://127.0.0.1:9"
pytestmark = pytest.mark.usefixtures("kept_networks")


def use(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
    template = f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A hub, and an empty cache."""
    monkeypatch.setenv("CENTERHASH_CACHE", str(tmp_path / "cache"))
    with serving() as made:
        use(monkeypatch, made.url)
        yield made


def model_files(run: Path) -> dict[str, bytes]:
    return {name: (run / name).read_bytes() for name in ("model.json", "model.safetensors")}


def changed(run: Path, **fields: Any) -> bytes:
    spec = {**json.loads((run / "model.json").read_text()), **fields}
    del spec["checksum"]
    return json.dumps(with_checksum(spec)).encode()


def problem(source: str) -> str:
    with pytest.raises((DataError, ConfigError)) as caught:
        ch.load(source)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def commit_of(source: str) -> str:
    folder = ch.load(source).folder
    assert folder is not None
    return folder.name


# Downloading


def test_only_the_files_of_a_model_are_downloaded_once_per_commit(
    hub: Hub, feature_run: Path, tmp_path: Path
) -> None:
    files = {**model_files(feature_run), "README.md": b"# card", "evil.py": b"", "backbone.safetensors": b"x"}
    first = hub.put("jane/photos", files)
    hub.put("jane/photos", model_files(feature_run), branch="v1/old")
    model, expected = ch.load("hf:jane/photos"), HashModel.load(feature_run)
    assert np.array_equal(model.encode_features(FEATURES), expected.encode_features(FEATURES))
    assert model.folder is not None
    assert model.folder.is_relative_to(tmp_path / "cache" / "models")
    assert names(model.folder) == ["README.md", "model.json", "model.safetensors"]
    assert HashModel.load(model.folder).spec == model.spec
    before = len(hub.requests)
    assert commit_of("hf:jane/photos") == first
    files_looked_for = [f"HEAD /jane/photos/resolve/main/{name}" for name in ("model.onnx", "model.json")]
    assert hub.requests[before:] == files_looked_for
    assert commit_of(f"hf:jane/photos@{first}") == first
    assert len(hub.requests) == before + 3
    second = hub.put("jane/photos", {"README.md": b"new"})
    assert (commit_of("hf:jane/photos"), commit_of(f"hf:jane/photos@{first}")) == (second, first)
    assert ch.load("hf:jane/photos@v1/old").classes


def test_of_a_portable_model_only_the_one_file_is_downloaded(
    hub: Hub, feature_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    portable = {"model.onnx": (feature_run / "model.onnx").read_bytes(), "README.md": b"# card"}
    hub.put("jane/whole", {**model_files(feature_run), **portable})
    hub.put("jane/photos", portable)
    for name in ("jane/whole", "jane/photos"):
        model = ch.load(f"hf:{name}")
        assert isinstance(model, PortableModel)
        assert names(model.folder) == ["model.onnx"]
        expected = HashModel.load(feature_run).encode_features(FEATURES)
        assert np.array_equal(model.encode_features(FEATURES), expected)
    use(monkeypatch, NOBODY)
    assert ch.load("hf:jane/photos").digest == model.digest
    with pytest.raises(DataError, match=r"model\.json"):
        HashModel.load("hf:jane/photos")


def test_cached_models_load_offline(hub: Hub, feature_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = hub.put("jane/photos", model_files(feature_run))
    ch.load("hf:jane/photos")
    use(monkeypatch, NOBODY)
    assert commit_of("hf:jane/photos") == commit_of(f"hf:jane/photos@{commit}") == commit
    assert f"cannot reach the hub ({NOBODY}) for 'hf:jane/photos@other'" in problem("hf:jane/photos@other")
    with FileServer() as other:  # a server, but not a hub
        use(monkeypatch, other.url)
        assert f"cannot reach the hub ({other.url})" in problem("hf:jane/new")


def test_repositories_and_revisions_that_do_not_exist_or_are_private(hub: Hub, feature_run: Path) -> None:
    for name in ("photos", "secret"):
        hub.put(f"jane/{name}", model_files(feature_run))
    hub.private.add("jane/secret")
    for name in ("gone", "secret"):
        assert f"there is no model 'hf:jane/{name}' on {hub.url}, or you have no access" in problem(
            f"hf:jane/{name}"
        )
    assert "'hf:jane/photos@v9' names no branch" in problem("hf:jane/photos@v9")


def test_invalid_names_and_revisions_are_rejected_without_a_request(hub: Hub, toy_model: HashModel) -> None:
    model, owned = toy_model, ("photos/more", "..", "a b", "a--b", "é")
    for name in ("photos", "../photos", "/photos", "", *(f"jane/{rest}" for rest in owned)):
        assert "owner/name" in problem(f"hf:{name}")
        with pytest.raises(ConfigError, match="owner/name"):
            model.push_to_hub(name)
    for revision in ("", "../../x", "a/../b", "-x", "a b"):
        assert f"got '{revision}'" in problem(f"hf:jane/photos@{revision}")
    assert hub.requests == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model.json": None}, "nor model.json"),
        ({"model.safetensors": None}, "has no model.safetensors"),
        ({"model.json": b"{}"}, ""),
        ({"model.json": b"[1]"}, "json object"),
        ({"model.json": b"\xff"}, ""),
    ],
)
def test_what_is_not_a_model(
    hub: Hub, feature_run: Path, changes: dict[str, bytes | None], reason: str
) -> None:
    files = {**model_files(feature_run), **changes}
    hub.put("jane/photos", {name: content for name, content in files.items() if content is not None})
    text = problem("hf:jane/photos")
    assert "'hf:jane/photos' is no model of centerhash" in text
    assert reason in text
    if reason != "has no model.safetensors":
        assert not any("safetensors" in request for request in hub.requests), "weights were downloaded"


def test_a_model_that_names_files_of_this_machine_is_rejected(hub: Hub, feature_run: Path) -> None:
    spec = changed(feature_run, backbone="resnet50", weights="/home/jane/weights.pth")
    hub.put("jane/photos", {**model_files(feature_run), "model.json": spec})
    assert "weights" in problem("hf:jane/photos")


def test_a_fine_tuned_backbone_belongs_to_the_model(hub: Hub, feature_run: Path) -> None:
    files = {**model_files(feature_run), "model.json": changed(feature_run, tuned=True)}
    hub.put("jane/photos", files)
    assert "has no backbone.safetensors" in problem("hf:jane/photos")
    hub.put("jane/photos", {"backbone.safetensors": b"weights"})
    tuned = ch.load("hf:jane/photos").tuned_weights
    assert tuned is not None
    assert tuned.read_bytes() == b"weights"


def test_a_download_that_breaks_off_is_completed_by_the_next_call(
    hub: Hub, feature_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)  # before it retries
    hub.put("jane/photos", model_files(feature_run))
    hub.cut = "model.safetensors"
    assert "cannot reach the hub" in problem("hf:jane/photos")
    hub.cut = None
    assert ch.load("hf:jane/photos").spec == HashModel.load(feature_run).spec


# Uploading


def test_a_published_model_is_the_same_one_with_its_card(
    hub: Hub, feature_run: Path, feature_folder: Path, tmp_path: Path
) -> None:
    done = cli("publish", feature_run, "jane/photos", "--license", "apache-2.0")
    assert done.code == 0, done.err
    assert f"{hub.url}/jane/photos" in done.text
    assert sorted(hub.latest("jane/photos")) == ["README.md", "model.json", "model.onnx", "model.safetensors"]
    found, expected = ch.load("hf:jane/photos"), HashModel.load(feature_run)
    assert np.array_equal(found.encode_features(FEATURES), expected.encode_features(FEATURES))
    assert found.digest == expected.digest
    card = hub.latest("jane/photos")["README.md"].decode()
    assert card.startswith("---\nlicense: apache-2.0\nlibrary_name: centerhash\n")
    scored = ch.evaluate(expected, feature_folder, progress=False)
    assert f"| {scored.map_peers:.4f} | {scored.chance_peers:.4f} |" in card
    assert f"`{feature_folder.name}`, 160 images" in card
    assert f"centerhash train {feature_folder.name} --method ics-softmax --bits 16" in card
    assert "    ant\n    bee\n" in card
    assert str(tmp_path) not in card


def test_a_model_without_a_run_is_pushed_with_what_is_known(hub: Hub, toy_model: HashModel) -> None:
    assert toy_model.push_to_hub("jane/toy", private=True) == f"{hub.url}/jane/toy"
    card = hub.latest("jane/toy")["README.md"].decode()
    for section in ("## Data\n\nNot recorded.", "## Results\n\nNot recorded.", "## License\n\nNot stated"):
        assert section in card
    assert ch.load("hf:jane/toy").digest == toy_model.digest


def test_an_upload_that_fails_is_one_line(
    hub: Hub, feature_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for status, words in ((401, "hf auth login"), (403, "hf auth login"), (400, "rejected")):
        hub.refusing = status
        text = refused(cli("publish", feature_run, "jane/photos"))
        assert words in text
        assert "'jane/photos'" in text
    use(monkeypatch, NOBODY)
    assert "cannot reach the hub for 'jane/photos'" in refused(cli("publish", feature_run, "jane/photos"))


def test_what_cannot_be_published_is_rejected_without_a_request(hub: Hub, image_run: Path) -> None:
    model = HashModel.load(image_run)
    spec = model.spec.model_copy(update={"weights": "/home/jane/own.pth"})
    with pytest.raises(ConfigError, match=r"'own.pth'"):
        HashModel(spec, model.tensors(), image_run).push_to_hub("jane/photos")
    with pytest.raises(ConfigError, match=r"license.*got 'my\nown'"):
        model.push_to_hub("jane/photos", license="my\nown")
    assert hub.requests == []


def test_paths_of_this_machine_are_not_published(hub: Hub, feature_run: Path, tmp_path: Path) -> None:
    config = json.loads((feature_run / "config.json").read_text())
    config["config"] |= {"weights": "/home/jane/own.pth", "method": "C:\\jane\\mine.py:Hinge"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = HashModel.load(feature_run)
    spec = model.spec.model_copy(update={"weights": "/home/jane/own.pth", "tuned": True})
    (tmp_path / "backbone.safetensors").write_bytes(b"weights")
    HashModel(spec, model.tensors(), tmp_path).push_to_hub("jane/photos")
    files = hub.latest("jane/photos")
    assert sorted(files) == [
        "README.md",
        "backbone.safetensors",
        "model.json",
        "model.onnx",
        "model.safetensors",
    ]
    for name in ("README.md", "model.json"):
        assert b"own.pth" in files[name]
    assert not any(b"home" in content for content in files.values())
    assert b"--method mine.py:Hinge" in files["README.md"]
    assert b"jane\\" not in files["README.md"]


# Commands


@pytest.mark.slow
def test_index_encode_and_search_accept_a_model_of_the_hub(
    hub: Hub, image_run: Path, scene_folder: Path, feature_cache: Path, tmp_path: Path
) -> None:
    hub.put("jane/photos", model_files(image_run))
    index, images = tmp_path / "photos.index", scene_folder / "images"
    assert cli("index", "create", index, "--model", "hf:jane/photos").code == 0
    assert cli("index", "add", index, images, "--device", "cpu").code == 0
    found = cli("search", index, images / "000000.jpg", "--json", "--device", "cpu")
    assert found.json["results"][0]["distance"] == 0
    out = tmp_path / "codes.npz"
    done = cli("encode", "hf:jane/photos", images, "--out", out, "--cache", feature_cache, "--device", "cpu")
    assert done.code == 0, done.err
    assert "hf:jane/gone" in refused(cli("encode", "hf:jane/gone", images, "--out", out))


@pytest.mark.slow
def test_the_endpoint_is_that_of_the_environment(hub: Hub, feature_run: Path, tmp_path: Path) -> None:
    hub.put("jane/photos", model_files(feature_run))
    program = "import centerhash; print(centerhash.load('hf:jane/photos').bits)"
    environment = {**os.environ, **process_environment(), "HF_ENDPOINT": hub.url}
    environment["CENTERHASH_CACHE"] = str(tmp_path / "other")
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "16"), done.stderr
