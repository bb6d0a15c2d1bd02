"""PortableModel: a whole model as one ONNX file, run by ONNX Runtime or OpenVINO and numpy, without PyTorch.

The input of `model.onnx` is `pixels` (B, H, W, 3) uint8, or `features` (B, D) float32 without a backbone. The outputs are
`logits` (B, K) and the packed `code` (B, ceil(K/8)). Some models also have the packed `general` code (B, V/8),
`probability` (B, C) and `share_logits` (B, C). The metadata are a `PortableSpec` as json.
"""

from __future__ import annotations

import math
import re
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Codes, unpack
from centerhash.core.checks import check_features
from centerhash.core.errors import CenterhashError, DataError, first_line
from centerhash.core.files import atomic, parse_json, read_plain, refuse_links, verify_checksum
from centerhash.model import hub
from centerhash.model.base import Model
from centerhash.model.shares import label_weights
from centerhash.model.spec import METADATA_KEY, PORTABLE, PortableSpec
from centerhash.networks.engines import PortableNetwork, Runner, onnx_runner

# Protobuf, the format of ONNX files, allows no more.
_MOST_BYTES = 2**31
_ROWS_PER_PASS = 1024
# ONNX names a file of external data under the key "location". The length before it, 8 in one or more bytes, ends in one
# of these, which a json text cannot contain.
_EXTERNAL_DATA = re.compile(rb"[\x00\x08]location")


class PortableModel(Model):
    """A trained hash function in one file, which needs no PyTorch.

        model = centerhash.load("coco")
        codes = model.encode(["a.jpg", "b.jpg"])        # (2, K) of -1 and +1
        print(model.explain("a.jpg"))

    The features of an image are all outputs side by side (`PortableSpec.outputs`), which contain logits and
    probabilities. The features of a model without a backbone are those that it was trained on.
    """

    def __init__(self, spec: PortableSpec, file: Path) -> None:
        super().__init__()
        self.spec: PortableSpec = spec
        self.file, self.folder = file, file.parent
        # A method would refer to this object, in a cycle with its encoders that would keep their threads alive.
        self.content = partial(read_content, file, spec)
        self._columns: dict[str, slice] = {}
        start = 0
        for name, width in spec.outputs().items():
            self._columns[name] = slice(start, start + width)
            start += width
        self._centers, self._directions = spec.center_codes(), spec.center_directions()
        self.general_bits, self.has_probabilities = spec.general_bits, spec.probabilities

    @classmethod
    def load(cls, folder: str | Path) -> PortableModel:
        """Load the model.onnx in a folder; its network is compiled when it is first used."""
        file = Path(folder) / PORTABLE
        # huggingface_hub links the files of a snapshot to its blobs.
        if not file.is_relative_to(hub.cache_folder()):
            refuse_links(file.parent, (PORTABLE,))
        return cls(read_spec(file), file)

    @property
    def digest(self) -> str:
        """Digest of the PyTorch model that was exported to this file."""
        return self.spec.digest

    @property
    def directions(self) -> NDArray[np.float32]:
        """The centers (C, K), rotated as the logits were; their signs are the centers."""
        return self.centers if self._directions is None else self._directions

    def backbone(self) -> PortableNetwork:
        """Return the network that reads images; ConfigError for a model of features."""
        spec = self.spec
        if spec.backbone is None or spec.preprocessing is None:
            raise self._without_backbone()
        return PortableNetwork(
            name=str(self.file),
            resize=spec.preprocessing.resize,
            crop=spec.preprocessing.crop,
            interpolation=spec.preprocessing.interpolation,
            features=spec.features,
            key=f"portable-{spec.digest[:12]}-{spec.network_checksum:08x}",
            outputs=tuple(self._columns),
            content=self.content,
        )

    def _outputs(self, features: NDArray[Any]) -> NDArray[np.float32]:
        """Return all outputs side by side, which the features of an image are already."""
        features = check_features(features, self.spec.features)
        if self.spec.backbone is not None:
            return np.asarray(features, np.float32)
        width = sum(self.spec.outputs().values())
        parts = [np.zeros((0, width), np.float32)]
        try:
            for start in range(0, len(features), _ROWS_PER_PASS):
                rows = np.ascontiguousarray(features[start : start + _ROWS_PER_PASS], dtype=np.float32)
                parts.append(self._runner(rows))
                if parts[-1].shape != (len(rows), width):
                    raise ValueError(f"outputs of shape {parts[-1].shape}, not {(len(rows), width)}")
        except CenterhashError:
            raise
        # ONNX Runtime's errors have no common class.
        except Exception as error:
            raise DataError(f"the model '{self.file}' cannot be run: {first_line(error)}.") from error
        return np.concatenate(parts)

    @cached_property
    def _runner(self) -> Runner:
        """The compiled network of a model of features."""
        return onnx_runner(self.content(), tuple(self._columns))

    def logits(self, features: NDArray[Any]) -> NDArray[np.float32]:
        """Compute logits (N, K) of features (N, D); their signs are the codes, independent of the batch."""
        return self._outputs(features)[:, self._columns["logits"]]

    def similarities(self, features: NDArray[Any]) -> NDArray[np.float32]:
        """Compute the cosine (N, C) between the logits of features (N, D) and every center."""
        logits = self.logits(features)
        lengths = np.maximum(np.linalg.norm(logits, axis=1, keepdims=True), 1e-12)
        cosines = logits / lengths @ self.directions.T / math.sqrt(self.bits)
        return np.asarray(cosines, np.float32)

    def _general_codes(self, features: NDArray[Any]) -> Codes:
        assert self.general_bits is not None
        packed = self._outputs(features)[:, self._columns["general"]].astype(np.uint8)
        return unpack(packed, self.general_bits)

    def _label_probabilities(self, features: NDArray[Any]) -> NDArray[np.float32]:
        return self._outputs(features)[:, self._columns["probability"]]

    def _weights(self, features: NDArray[Any], labels: NDArray[np.bool_]) -> NDArray[np.float32]:
        assert self.spec.shares is not None
        outputs = self._outputs(features)
        scores = outputs[:, self._columns["share_logits"]] if "share_logits" in self._columns else None
        logits = outputs[:, self._columns["logits"]]
        return label_weights(self.spec.shares, labels, logits, scores, self.directions)

    def save(self, folder: str | Path) -> None:
        """Write model.onnx into `folder`, atomically."""
        target, data = Path(folder) / PORTABLE, self.content()
        if target.resolve() != self.file.resolve():
            with atomic(target) as stream:
                stream.write(data)

    save_portable = save


def read_spec(file: Path) -> PortableSpec:
    """Read the metadata of a model.onnx; DataError if the file is not a model, or is damaged."""
    import onnxruntime

    data = _read(file)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    try:
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        metadata: dict[str, str] = session.get_modelmeta().custom_metadata_map
        value = parse_json(metadata.get(METADATA_KEY, "null"))
        spec = PortableSpec.model_validate(verify_checksum(value, "its metadata"))
    # The errors of pydantic, of json and of ONNX Runtime have no common class.
    except Exception as error:
        raise DataError(
            f"the model '{file}' is damaged or of another version: {first_line(error)}."
        ) from None
    _check_network(file, data, spec)
    return spec


def _read(file: Path) -> bytes:
    """Read the bytes of a model.onnx, which must not refer to other files."""
    try:
        data = read_plain(file, _MOST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(
            f"'{file.parent}' holds no finished model ({file.name}): pass the folder of a finished run or of a "
            "model, or train into it again to finish it."
        ) from None
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read '{file}': {first_line(error)}.") from None
    if _EXTERNAL_DATA.search(data):
        raise DataError(f"the model '{file}' refers to other files, which are not read.")
    return data


def read_content(file: Path, spec: PortableSpec) -> bytes:
    """Read a model.onnx, or raise DataError if it is not the file with these metadata."""
    data = _read(file)
    _check_network(file, data, spec)
    return data


def _check_network(file: Path, data: bytes, spec: PortableSpec) -> None:
    network = memoryview(data)[: spec.network_size]
    if len(network) != spec.network_size or crc32(network) != spec.network_checksum:
        raise DataError(f"the model '{file}' is damaged: its network does not match its checksum.")
