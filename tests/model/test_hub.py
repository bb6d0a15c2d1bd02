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
from centerhash.model import remote
from centerhash.model.model import HashModel
from tests.hub import Hub, serving
from tests.toys import WIDTH, cli, names, process_environment, refused

FEATURES = np.random.default_rng(0).normal(size=(9, WIDTH)).astype(np.float32)
NOBODY = "http://127.0.0.1:9"
pytestmark = pytest.mark.usefixtures("kept_networks")


def use(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
    monkeypatch.setattr(
        "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
        f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}",
    )


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A hub, and an empty cache."""
    monkeypatch.setenv("CENTERHASH_CACHE", str(tmp_path / "cache"))
    with serving() as made:
        use(monkeypatch, made.url)
        yield made


def model_files(run: Path) -> dict[str, bytes]:
    return {name: (run / name).read_bytes() for name in ("model.json", "model.safetensors")}


def problem(source: str) -> str:
    with pytest.raises((DataError, ConfigError)) as caught:
        ch.load(source)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Fetching


def test_only_the_files_of_a_model_are_fetched_by_commit_and_once(
    hub: Hub, feature_run: Path, tmp_path: Path
) -> None:
    files = {**model_files(feature_run), "README.md": b"# card", "evil.py": b"", "backbone.safetensors": b"x"}
    commit = hub.put("jane/photos", files)
    model = ch.load("hf:jane/photos")
    expected = HashModel.load(feature_run)
    assert np.array_equal(model.encode_features(FEATURES), expected.encode_features(FEATURES))
    assert model.folder == tmp_path / "cache" / "models" / "hf" / "jane--photos" / commit
    assert names(model.folder) == ["README.md", "model.json", "model.safetensors"]
    assert not any(path.is_symlink() for path in model.folder.iterdir())
    before = len(hub.requests)
    ch.load("hf:jane/photos")
    assert hub.requests[before:] == ["HEAD /jane/photos/resolve/main/model.json"]
    ch.load(f"hf:jane/photos@{commit}")
    assert len(hub.requests) == before + 1


def test_a_new_commit_is_fetched_and_the_old_one_stays(hub: Hub, feature_run: Path) -> None:
    first = hub.put("jane/photos", model_files(feature_run))
    hub.put("jane/photos", model_files(feature_run), branch="v1/old")
    assert ch.load("hf:jane/photos").folder.name == first  # type: ignore[union-attr]
    second = hub.put("jane/photos", {"README.md": b"new"})
    for source, commit in (("hf:jane/photos", second), (f"hf:jane/photos@{first}", first)):
        assert ch.load(source).folder.name == commit  # type: ignore[union-attr]
    assert ch.load("hf:jane/photos@v1/old").classes


def test_what_is_in_the_cache_opens_without_a_network(
    hub: Hub, feature_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = hub.put("jane/photos", model_files(feature_run))
    ch.load("hf:jane/photos")
    use(monkeypatch, NOBODY)
    assert ch.load("hf:jane/photos").folder.name == commit  # type: ignore[union-attr]
    assert ch.load(f"hf:jane/photos@{commit}").folder.name == commit  # type: ignore[union-attr]
    text = problem("hf:jane/photos@other")
    assert "cannot reach the hub for 'hf:jane/photos@other', and it is not in the cache" in text
    assert "Try again with a connection." in text


def test_no_such_repository_or_revision(hub: Hub, feature_run: Path) -> None:
    assert f"there is no model 'hf:jane/gone' on {hub.url}, or it is not open to you" in problem(
        "hf:jane/gone"
    )
    hub.put("jane/photos", model_files(feature_run))
    assert "'hf:jane/photos@v9' names no branch, tag or commit" in problem("hf:jane/photos@v9")


def test_names_that_are_none_are_refused_before_anything_is_asked(hub: Hub) -> None:
    model, owned = HashModel.load("coco"), ("photos/more", "..", "a b", "a--b", "é")
    for name in ("photos", "../photos", "/photos", "", *(f"jane/{rest}" for rest in owned)):
        assert "is named owner/name" in problem(f"hf:{name}")
        with pytest.raises(ConfigError, match="is named owner/name"):
            model.push_to_hub(name)
    assert hub.requests == []


@pytest.mark.parametrize("revision", ["", "../../x", "a/../b", "-x", "a b"])
def test_revisions_that_are_none_are_refused(hub: Hub, revision: str) -> None:
    assert "a revision is a branch, a tag or a commit" in problem(f"hf:jane/photos@{revision}")
    assert hub.requests == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model.json": None}, "its repository has no model.json"),
        ({"model.safetensors": None}, "its repository has no model.safetensors"),
        ({"model.json": b"{}"}, "is no model of centerhash: "),
        ({"model.json": b"[1]"}, "model.json is no json object"),
        ({"model.json": b"\xff"}, "is no model of centerhash: "),
    ],
)
def test_what_is_no_model(
    hub: Hub, feature_run: Path, tmp_path: Path, changes: dict[str, bytes | None], reason: str
) -> None:
    files = {**model_files(feature_run), **changes}
    hub.put("jane/photos", {name: content for name, content in files.items() if content is not None})
    text = problem("hf:jane/photos")
    assert "'hf:jane/photos' is no model of centerhash" in text
    assert reason in text
    kept = list((tmp_path / "cache").rglob("*.json")) + list((tmp_path / "cache").rglob("*.safetensors"))
    assert kept == []


def changed(run: Path, **fields: Any) -> bytes:
    spec = {**json.loads((run / "model.json").read_text()), **fields}
    del spec["checksum"]
    return json.dumps(with_checksum(spec)).encode()


def test_a_model_that_names_files_of_this_machine_is_refused(hub: Hub, feature_run: Path) -> None:
    spec = changed(feature_run, backbone="resnet50", weights="/home/jane/weights.pth")
    hub.put("jane/photos", {**model_files(feature_run), "model.json": spec})
    assert "reads images by weights that stayed with its maker" in problem("hf:jane/photos")


def test_a_fine_tuned_backbone_belongs_to_the_model(hub: Hub, feature_run: Path) -> None:
    files = {**model_files(feature_run), "model.json": changed(feature_run, tuned=True)}
    hub.put("jane/photos", files)
    assert "has no backbone.safetensors" in problem("hf:jane/photos")
    hub.put("jane/photos", {"backbone.safetensors": b"weights"})
    tuned = ch.load("hf:jane/photos").tuned_weights
    assert tuned is not None
    assert tuned.read_bytes() == b"weights"


def test_what_is_too_large_is_not_fetched(
    hub: Hub, feature_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.put("jane/photos", model_files(feature_run))
    hub.sizes["model.safetensors"] = 2**40
    text = problem("hf:jane/photos")
    assert f"model.safetensors of 'hf:jane/photos' is too large: {2**40:,} bytes, at most {2**31:,}" in text
    assert "GET /jane/photos/resolve" not in " ".join(
        request for request in hub.requests if "tensors" in request
    )


def test_an_endpoint_that_is_no_hub(hub: Hub, feature_run: Path) -> None:
    hub.files["jane/photos"] = {"short": model_files(feature_run)}
    hub.branches["jane/photos"] = {"main": "short"}
    assert "but not as a Hugging Face hub does: see HF_ENDPOINT" in problem("hf:jane/photos")


# Pushing


def test_a_published_model_is_the_same_one_with_its_card(
    hub: Hub, feature_run: Path, feature_folder: Path, tmp_path: Path
) -> None:
    done = cli("publish", feature_run, "jane/photos", "--licence", "apache-2.0")
    assert done.code == 0, done.err
    assert f"published: {hub.url}/jane/photos" in done.text
    assert sorted(hub.latest("jane/photos")) == ["README.md", "model.json", "model.safetensors"]
    found, expected = ch.load("hf:jane/photos"), HashModel.load(feature_run)
    assert np.array_equal(found.encode_features(FEATURES), expected.encode_features(FEATURES))
    assert found.spec == expected.spec
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
    assert "## Data\n\nNot recorded." in card
    assert "## Figures\n\nNone were given." in card
    assert "## Licence\n\nNone was stated" in card
    assert ch.load("hf:jane/toy").spec == toy_model.spec


def test_who_may_not_write_is_told_how(hub: Hub, feature_run: Path) -> None:
    for status in (401, 403):
        hub.refusing = status
        words = refused(cli("publish", feature_run, "jane/photos"))
        assert "does not let you write 'jane/photos': log in by `hf auth login`" in words
    hub.refusing = 400
    assert "did not take 'jane/photos'" in refused(cli("publish", feature_run, "jane/photos"))


def test_a_push_without_a_network_is_told(
    hub: Hub, feature_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, NOBODY)
    words = refused(cli("publish", feature_run, "jane/photos"))
    assert "cannot reach the hub for 'jane/photos'" in words


def test_what_cannot_travel_is_not_pushed(hub: Hub, image_run: Path) -> None:
    model = HashModel.load(image_run)
    spec = model.spec.model_copy(update={"weights": "/home/jane/own.pth"})
    own = HashModel(spec, model.tensors(), image_run)
    with pytest.raises(ConfigError, match=r"weights of your own \('own.pth'\), which do not travel"):
        own.push_to_hub("jane/photos")
    with pytest.raises(
        ConfigError, match=r"a licence is named as on the hub, such as apache-2.0.*got 'my\nown'"
    ):
        model.push_to_hub("jane/photos", licence="my\nown")
    assert hub.requests == []


def test_paths_of_this_machine_stay_here(hub: Hub, feature_run: Path, tmp_path: Path) -> None:
    config = json.loads((feature_run / "config.json").read_text())
    config["config"] |= {"weights": "/home/jane/own.pth", "method": "C:\\jane\\mine.py:Hinge"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = HashModel.load(feature_run)
    spec = model.spec.model_copy(update={"weights": "/home/jane/own.pth", "tuned": True})
    (tmp_path / "backbone.safetensors").write_bytes(b"weights")
    HashModel(spec, model.tensors(), tmp_path).push_to_hub("jane/photos")
    files = hub.latest("jane/photos")
    assert sorted(files) == ["README.md", "backbone.safetensors", "model.json", "model.safetensors"]
    for name in ("README.md", "model.json"):
        assert b"own.pth" in files[name]
        assert b"home" not in files[name]
    assert b"--method mine.py:Hinge" in files["README.md"]
    assert b"jane\\" not in files["README.md"]
    assert ch.load("hf:jane/photos").spec.weights == "own.pth"


# Commands


@pytest.mark.slow
def test_an_index_encode_and_search_take_a_model_of_the_hub(
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
    assert "40 codes of 32 bits" in done.text
    assert "there is no model 'hf:jane/gone'" in refused(cli("encode", "hf:jane/gone", images, "--out", out))


@pytest.mark.slow
def test_the_endpoint_is_that_of_the_environment(hub: Hub, feature_run: Path, tmp_path: Path) -> None:
    hub.put("jane/photos", model_files(feature_run))
    program = "import centerhash; print(centerhash.load('hf:jane/photos').bits)"
    environment = {**os.environ, **(process_environment() or {}), "HF_ENDPOINT": hub.url}
    environment["CENTERHASH_CACHE"] = str(tmp_path / "other")
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "16"), done.stderr


def test_limits_are_of_the_files_of_a_model() -> None:
    assert set(remote.LARGEST) == {"model.json", "model.safetensors", "backbone.safetensors", "README.md"}
