"""The sound index out of which the crafted ones are made, and what a crafted one is."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from centerhash.core.files import with_checksum
from centerhash.model.portable import METADATA, _written
from centerhash.model.spec import encoded_centers, encoded_directions
from centerhash.search import Index, verify_index
from centerhash.search.items import File, PhotoInfo
from tests.toys import CLASSES, noise_image

BITS, ITEMS = 16, 40


@dataclass(frozen=True)
class Case:
    """A way to craft an index."""

    name: str
    craft: Callable[[Path], object]  # changes a copy of the sound index
    harmless: bool = False


def network() -> bytes:
    """A network of pixels (1, 8, 8, 3) with all outputs, in a few hundred bytes."""
    from onnx import TensorProto, helper

    generator = np.random.default_rng(0)

    def constant(name: str, width: int) -> Any:
        values = generator.normal(size=3 * width).tolist()
        return helper.make_tensor(name, TensorProto.FLOAT, (3, width), values)

    widths = {"logits": BITS, "probability": len(CLASSES), "share_logits": len(CLASSES), "visual": 16}
    nodes = [
        helper.make_node("Cast", ["pixels"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["floats"], ["colors"], axes=[1, 2], keepdims=0),
        *(
            helper.make_node(
                "MatMul", ["colors", f"w_{name}"], [f"{name}_raw" if name in "probability visual" else name]
            )
            for name in widths
        ),
        helper.make_node("Sigmoid", ["probability_raw"], ["probability"]),
        helper.make_node("Sigmoid", ["visual_raw"], ["visual_unit"]),
        helper.make_node("Cast", ["visual_unit"], ["visual"], to=TensorProto.UINT8),
    ]
    outputs = [
        helper.make_tensor_value_info(
            name, TensorProto.UINT8 if name == "visual" else TensorProto.FLOAT, (1, width)
        )
        for name, width in widths.items()
    ]
    pixels = helper.make_tensor_value_info("pixels", TensorProto.UINT8, (1, 8, 8, 3))
    weights = [constant(f"w_{name}", width) for name, width in widths.items()]
    graph = helper.make_graph(nodes, "colors", [pixels], outputs, weights)
    return bytes(
        helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
        ).SerializeToString()
    )


def metadata(data: bytes) -> dict[str, Any]:
    """What the metadata of the network are."""
    centers = np.where(np.random.default_rng(1).random((len(CLASSES), BITS)) < 0.5, -1, 1).astype(np.int8)
    return {
        "format": 2,
        "version": "0",
        "method": "ics-softmax",
        "bits": BITS,
        "features": BITS + 2 * len(CLASSES) + 16,
        "classes": list(CLASSES),
        "centers": encoded_centers(centers),
        "directions": encoded_directions(centers.astype(np.float32)),
        "label_threshold": 0.3,
        "visual_bits": 128,
        "probabilities": True,
        "shares": {"by": "softmax", "beta": None, "entropy": None, "scale": None, "form": "joint"},
        "backbone": "colors",
        "backbone_key": None,
        "preprocessing": {
            "resize": 8,
            "crop": 8,
            "interpolation": "bilinear",
            "shift": [0.0, 0.0, 0.0],
            "scale": [1.0, 1.0, 1.0],
        },
        "seed": 0,
        "digest": "0" * 64,
        "network_size": len(data),
        "network_checksum": crc32(data),
    }


def model_file(data: bytes, values: object) -> bytes:
    """A model.onnx with any metadata, under a right checksum if they can have one."""
    if isinstance(values, dict):
        values = json.dumps(with_checksum(values))
    text = values if isinstance(values, bytes) else str(values).encode()
    return data + _written(14, _written(1, METADATA.encode()) + _written(2, text))


def sound_index(folder: Path) -> Path:
    """An index with items of all kinds, some of which were removed, and an upload."""
    model = folder.with_name(f"{folder.name}-model")
    model.mkdir(parents=True)
    data = network()
    (model / "model.onnx").write_bytes(model_file(data, metadata(data)))
    generator = np.random.default_rng(2)
    with Index.create(folder, model) as index:
        count = ITEMS + 5
        labels = [[CLASSES[row % 6], CLASSES[(row + 1) % 6]] for row in range(count)]
        index.store.add(
            generator.integers(0, 256, (count, 2), dtype=np.uint8),
            [f"{row:016x}" for row in range(count)],
            labels,
            [[File(f"/photos/{row % 3}/{row}.jpg", 100 + row, float(row % 7))] for row in range(count)],
            [
                None if row % 4 == 0 else generator.integers(0, 256, 16, dtype=np.uint8)
                for row in range(count)
            ],
            [dict.fromkeys(names, (200, 100)) if row % 5 else {} for row, names in enumerate(labels)],
            [PhotoInfo(1e9 + row, (None, "Canon")[row % 2], 640, 480) for row in range(count)],
        )
        index.store.remove([f"{row:016x}" for row in range(3, 40, 8)])
        index.store.note_removed(
            [("removed", File("/photos/a.jpg", 7, 7.5)), ("other", File("/photos/b.jpg"))]
        )
        noise_image(16).save(folder / "upload.png")
        index.add_bytes((folder / "upload.png").read_bytes())
        (folder / "upload.png").unlink()
        index.teach("Bella", like=[f"{1:016x}"], unlike=[f"{2:016x}"])
    assert verify_index(folder) == []
    return folder
