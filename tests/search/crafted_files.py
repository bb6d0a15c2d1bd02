"""Crafted index.json and model.onnx, and other things in the place of files."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from centerhash.model.spec import encoded_directions
from centerhash.search.database import (
    COMMITS,
    FILE,
    FILES,
    LOCK,
)
from tests.search.sound_index import BITS, Case, metadata, model_file, network
from tests.toys import CLASSES


def deep(depth: int) -> str:
    """Lists within lists."""
    return "[" * depth + "]" * depth


def file_cases() -> Iterator[Case]:
    """Hostile index.json, and hostile metadata and networks of a model."""

    def spec(**changes: Any) -> Callable[[Path], object]:
        def craft(folder: Path) -> None:
            values = json.loads((folder / "index.json").read_text())
            (folder / "index.json").write_text(json.dumps({**values, **changes}))

        return craft

    for name, changes in {
        "bits that are huge": {"bits": 10**30},
        "bits that are text": {"bits": "x" * 10**6},
        "bits that are negative": {"bits": -1},
        "bits that are true": {"bits": True},
        "many classes": {"classes": ["x"] * 10**6},
        "classes that are numbers": {"classes": [1, 2]},
        "classes in classes": {"classes": [["x"]]},
        "no classes": {"classes": []},
        "a store elsewhere": {"store": "milvus:http://127.0.0.1:9#x"},
        "an unknown store": {"store": "x"},
        "a store that is a list": {"store": ["sqlite"]},
        "an unknown key": {"more": 1},
        "a later format": {"format": 3},
        "a format that is a list": {"format": [[]]},
        "an earlier format": {"format": 1},
    }.items():
        yield Case(f"index.json: {name}", spec(**changes))

    def text(content: str | bytes) -> Callable[[Path], object]:
        data = content if isinstance(content, bytes) else content.encode()
        return lambda folder: (folder / "index.json").write_bytes(data)

    for name, content in {
        "nothing": "",
        "a list": "[]",
        "deep lists": deep(100_000),
        "lists of depth 900": deep(900),
        "deep lists in a field": '{"format": 2, "store": "sqlite", "bits": 16, "classes": ' + deep(900) + "}",
        "a number of a million digits": '{"bits": ' + "9" * 10**6 + "}",
        "no UTF-8": b"\xff\xfe{}",
        "half a character": '{"store": "\\ud800"}',
        "NaN": '{"format": 2, "store": "sqlite", "bits": NaN, "classes": []}',
    }.items():
        yield Case(f"index.json: {name}", text(content))

    data = network()

    def model(values: object, content: bytes = data) -> Callable[[Path], object]:
        return lambda folder: (folder / "model" / "model.onnx").write_bytes(model_file(content, values))

    own = metadata(data)
    for key, value in (
        ("bits", 10**9),
        ("bits", 65_536),
        ("bits", 0),
        ("bits", 8),
        ("features", 10**12),
        ("classes", ["x"] * 300_000),
        ("classes", []),
        ("classes", [None]),
        ("classes", list(CLASSES[:1]) * 6),
        ("centers", "A" * 10**7),
        ("centers", "!"),
        ("centers", None),
        ("directions", "AAAA"),
        ("directions", encoded_directions(np.full((6, BITS), np.nan, np.float32))),
        ("directions", encoded_directions(np.full((6, BITS), np.inf, np.float32))),
        ("label_threshold", 1e308),
        ("visual_bits", 10**9),
        ("visual_bits", 64),
        ("visual_bits", None),
        ("shares", {"by": "ics", "beta": 1e-300, "entropy": 1e300, "scale": 1e300, "form": "joint"}),
        ("shares", {"by": "unknown"}),
        ("preprocessing", {**own["preprocessing"], "resize": 16_384, "crop": 16_384}),
        ("preprocessing", {**own["preprocessing"], "resize": 10**9}),
        ("preprocessing", {**own["preprocessing"], "crop": -1}),
        ("preprocessing", {**own["preprocessing"], "interpolation": "../x"}),
        ("preprocessing", None),
        ("backbone", None),
        ("network_size", 10**15),
        ("network_size", -1),
        ("network_checksum", 10**300),
        ("network_checksum", 0),
        ("seed", 10**300),
        ("method", "x" * 10**6),
        ("digest", "../../x"),
        ("more", {"x": json.loads(deep(300))}),
    ):
        changed = f"{json.dumps(value):.30}"
        harmless = key in ("label_threshold", "seed", "method", "digest")
        yield Case(f"model.onnx: {key} {changed}", model({**own, key: value}), harmless)
    yield Case("model.onnx: deep lists", model(deep(100_000)))
    yield Case("model.onnx: lists of depth 900", model(deep(900)))
    yield Case("model.onnx: no json", model(b"\xff\xff"))
    yield Case("model.onnx: many fields", model(own, b"\x08\x01" * 20_000 + data))
    yield Case(
        "model.onnx: a length of 2^63", lambda folder: _cut_model(folder, b"\x3a" + b"\xff" * 8 + b"\x7f")
    )
    yield Case("model.onnx: nothing", lambda folder: _cut_model(folder, b""))
    for name, made in networks().items():
        values = {**own, "network_size": len(made), "network_checksum": crc32(made)}
        yield Case(f"network: {name}", model(values, made), harmless=True)


def _cut_model(folder: Path, content: bytes) -> None:
    (folder / "model" / "model.onnx").write_bytes(content)


def networks() -> dict[str, bytes]:
    """Networks that do not do what the metadata announce; `verify` does not run them."""
    import onnx
    from onnx import TensorProto, helper

    def changed(change: Callable[[Any], object]) -> bytes:
        found = onnx.load_from_string(network())
        change(found)
        return bytes(found.SerializeToString())

    def elsewhere(found: Any) -> None:
        tensor = found.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.ClearField("float_data")
        tensor.data_location = TensorProto.EXTERNAL
        entry = tensor.external_data.add()
        entry.key, entry.value = "location", "/etc/passwd"

    def values(name: str, number: float) -> Callable[[Any], None]:
        def change(found: Any) -> None:
            for tensor in found.graph.initializer:
                if tensor.name == name:
                    tensor.float_data[:] = [number] * len(tensor.float_data)

        return change

    def wide(found: Any) -> None:
        shape = helper.make_tensor("shape", TensorProto.INT64, (2,), [1, 40])
        found.graph.initializer.append(shape)
        found.graph.node[2].CopyFrom(helper.make_node("Expand", ["w_logits", "shape"], ["logits"]))

    def announced(found: Any) -> None:
        found.graph.initializer[0].dims[:] = [3_000_000_000, 3_000_000_000]

    return {
        "no ONNX": b"\x08\x01" * 50,
        "without a graph": changed(lambda found: found.ClearField("graph")),
        "external data": changed(elsewhere),
        "logits that are not numbers": changed(values("w_logits", float("nan"))),
        "probabilities that are not numbers": changed(values("w_probability", float("nan"))),
        "shares that are not numbers": changed(values("w_share_logits", float("inf"))),
        "infinite logits": changed(values("w_logits", float("inf"))),
        "other outputs": changed(lambda found: found.graph.output.pop()),
        "an output of another width": changed(wide),
        "a tensor of 3e9 x 3e9": changed(announced),
        "an unknown operator": changed(lambda found: setattr(found.graph.node[0], "op_type", "Nothing")),
        "a later opset": changed(lambda found: setattr(found.opset_import[0], "version", 10_000)),
        "a text as the first input": changed(
            lambda found: setattr(found.graph.input[0].type.tensor_type, "elem_type", TensorProto.STRING)
        ),
    }


# --- other things in the place of files


def place_cases() -> Iterator[Case]:
    """A folder, a link, a pipe, a device, or a huge file with nothing in it, in the place of each file."""
    names = ["index.json", "model", "model/model.onnx", "images", *FILES]
    for name in names:
        for kind, make in _KINDS.items():
            if (kind == "a folder" and name in ("model", "images")) or (
                kind == "a huge file" and name == f"{LOCK}.pid"
            ):
                continue
            # the lock and its neighbor are overwritten, and SQLite makes its -shm and -wal again
            harmless = kind == "a huge file" and name in (LOCK, f"{FILE}-shm", f"{FILE}-wal", COMMITS)
            yield Case(f"{kind} as {name}", _replaced(name, make), harmless)
    for kind, make in _KINDS.items():
        yield Case(f"{kind} as an upload", _replaced("images/*.png", make))


def _replaced(name: str, make: Callable[[Path], object]) -> Callable[[Path], None]:
    def craft(folder: Path) -> None:
        place = next(folder.glob(name)) if "*" in name else folder / name
        if place.is_dir():
            shutil.rmtree(place)
        place.unlink(missing_ok=True)
        make(place)

    return craft


def _sparse(place: Path) -> None:
    with place.open("wb") as stream:
        stream.truncate(5 * 10**9)


_KINDS: dict[str, Callable[[Path], object]] = {
    "a folder": lambda place: place.mkdir(),
    "a link": lambda place: place.symlink_to("/etc/passwd"),
    "a link to itself": lambda place: place.symlink_to(place),
    "a pipe": os.mkfifo,
    "a huge file": _sparse,
}


def _device(place: Path) -> None:
    os.mknod(place, 0o600 | 0o020000, os.makedev(1, 5))  # /dev/zero


if os.geteuid() == 0:
    _KINDS["a device"] = _device
