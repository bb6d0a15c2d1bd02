"""PortableModel: a whole model as one ONNX file, run by ONNX Runtime or OpenVINO and numpy, without PyTorch.

The file `model.onnx` takes `pixels` (B, H, W, 3) uint8, or `features` (B, D) float32 for a model without a backbone. Its
outputs are `logits` (B, K), `code` (B, ceil(K/8)) packed, and those that the model has of `visual` (B, 16) packed,
`probability` (B, C) and `share_logits` (B, C). All else is its metadata, `PortableSpec`: a json text at the end of the
file, which is read without reading the network.
"""

from __future__ import annotations

import io
import json
import math
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Codes, unpack
from centerhash.core.checks import check_features
from centerhash.core.errors import CenterhashError, DataError, first_line
from centerhash.core.files import (
    atomic,
    open_plain,
    parse_json,
    read_plain,
    refuse_links,
    verify_checksum,
    with_checksum,
)
from centerhash.model import hub
from centerhash.model.base import Model
from centerhash.model.shares import label_weights
from centerhash.model.spec import PORTABLE, PortableSpec
from centerhash.networks.engines import PortableNetwork, Runner, onnx_runner, streams

METADATA = "centerhash"  # the key of the metadata
_METADATA_FIELD = 14  # `metadata_props` of ONNX's ModelProto
_MOST_FIELDS = 10_000  # of a file, besides those inside its graph
_MOST_METADATA = 2**28  # bytes
_MOST_BYTES = 2**31  # of a file: protobuf allows no more
_CHUNK = 1024  # rows of features per pass


def _read_file(file: Path, spec: PortableSpec) -> bytes:
    """Read a model.onnx, or raise DataError if it is not the one that was written."""
    try:
        data = read_plain(file, _MOST_BYTES)
    except OSError as error:
        raise DataError(f"cannot read '{file}': {error.strerror or error}.") from None
    network = memoryview(data)[: spec.network_size]
    if len(network) != spec.network_size or crc32(network) != spec.network_checksum:
        raise DataError(f"the model '{file}' is damaged: its network does not match its checksum.")
    if data.find(b"location", 0, len(network)) >= 0:  # the key by which tensors name other files
        raise DataError(f"the model '{file}' refers to other files, which are not read.")
    return data


class PortableModel(Model):
    """A trained hash function in one file.

    The features of an image are its outputs side by side (`PortableSpec.outputs`), so that codes, labels and weights
    are read off them; those of a model without a backbone are the features (N, D) that it was trained on.
    """

    def __init__(self, spec: PortableSpec, file: Path) -> None:
        super().__init__()
        self.spec: PortableSpec = spec
        self.file, self.folder = file, file.parent
        self._columns: dict[str, slice] = {}
        start = 0
        for name, width in spec.outputs().items():
            self._columns[name] = slice(start, start + width)
            start += width
        self._centers, self._directions = spec.center_codes(), spec.center_directions()
        self._compiled: Runner | None = None
        self._compiling = threading.Lock()

    @classmethod
    def load(cls, folder: str | Path) -> PortableModel:
        """Load the model.onnx in a folder; the network itself is read on first use."""
        file = Path(folder) / PORTABLE
        if not file.is_relative_to(hub.cache_folder()):  # huggingface_hub links snapshots to blobs there
            refuse_links(file.parent, (PORTABLE,))
        return cls(read_spec(file), file)

    def content(self) -> bytes:
        """Read the file, or raise DataError if it is not the one that was written."""
        return _read_file(self.file, self.spec)

    @property
    def digest(self) -> str:
        """Digest of the PyTorch model that the file was made of."""
        return self.spec.digest

    @property
    def has_probabilities(self) -> bool:
        """Whether the model predicts label probabilities."""
        return self.spec.probabilities

    @property
    def visual_bits(self) -> int | None:
        """Length of the visual codes; None without a visual code."""
        return self.spec.visual_bits

    def backbone(self) -> PortableNetwork:
        """Return the network that reads images; ConfigError for a model of features."""
        spec = self.spec
        if spec.backbone is None or spec.preprocessing is None:
            raise self._without_backbone()
        how = spec.preprocessing
        return PortableNetwork(
            name=str(self.file),
            resize=how.resize,
            crop=how.crop,
            interpolation=how.interpolation,
            features=spec.features,
            key=f"portable-{spec.digest[:12]}-{spec.network_checksum:08x}",
            outputs=tuple(self._columns),
            # not a method: the model keeps encoders of this network, and a cycle would keep their threads
            content=partial(_read_file, self.file, spec),
        )

    def _outputs(self, features: NDArray[Any]) -> NDArray[np.float32]:
        """Return all outputs side by side, which the features of an image are already."""
        features = check_features(features, self.spec.features)
        if self.spec.backbone is not None:
            return np.asarray(features, np.float32)
        run, width = self._runner(), sum(self.spec.outputs().values())
        found = [np.zeros((0, width), np.float32)]
        for start in range(0, len(features), _CHUNK):
            chunk = np.ascontiguousarray(features[start : start + _CHUNK], dtype=np.float32)
            with self._explained_errors():
                found.append(run(chunk))
                if found[-1].shape != (len(chunk), width):
                    raise ValueError(f"outputs of shape {found[-1].shape}, not {(len(chunk), width)}")
        return np.concatenate(found)

    def _runner(self) -> Runner:
        """Compile the network of a model of features, once."""
        with self._compiling:
            if self._compiled is None:
                content = self.content()
                with self._explained_errors():
                    self._compiled = onnx_runner(content, streams(), tuple(self._columns))
            return self._compiled

    @contextmanager
    def _explained_errors(self) -> Iterator[None]:
        try:
            yield
        except CenterhashError:
            raise
        except Exception as error:  # ONNX Runtime's errors have no common class
            raise DataError(f"the model '{self.file}' cannot be run: {first_line(error)}.") from error

    def logits(self, features: NDArray[Any]) -> NDArray[np.float32]:
        """Compute logits (N, K) of features (N, D); their signs are the codes, independent of the batch."""
        return self._outputs(features)[:, self._columns["logits"]]

    def visual_codes(self, features: NDArray[Any]) -> Codes:
        """Encode features (N, D) into visual codes (N, V), which were learned without labels."""
        if self.visual_bits is None:
            raise self._without_visual_code()
        packed = self._outputs(features)[:, self._columns["visual"]].astype(np.uint8)
        return unpack(packed, self.visual_bits)

    def label_probabilities(self, features: NDArray[Any]) -> NDArray[np.float32]:
        """Predict the probability (N, C) of each label."""
        if not self.has_probabilities:
            raise self._without_probabilities()
        return self._outputs(features)[:, self._columns["probability"]]

    def similarities(self, features: NDArray[Any]) -> NDArray[np.float32]:
        """Compute the cosine (N, C) between the logits of features (N, D) and every center."""
        if self._directions is None:
            raise self._without_centers()
        logits = self.logits(features)
        lengths = np.maximum(np.linalg.norm(logits, axis=1, keepdims=True), 1e-12)
        found = logits / lengths @ self._directions.T / math.sqrt(self.bits)
        similarities: NDArray[np.float32] = found.astype(np.float32)
        return similarities

    def _weights(self, features: NDArray[Any], labels: NDArray[np.bool_]) -> NDArray[np.float32]:
        if self.spec.shares is None or self._directions is None:
            raise self._without_centers()
        rows = self._outputs(features)
        scores = rows[:, self._columns["share_logits"]] if "share_logits" in self._columns else None
        logits = rows[:, self._columns["logits"]]
        return label_weights(self.spec.shares, labels, logits, scores, self._directions)

    def save(self, folder: str | Path) -> None:
        """Write model.onnx into `folder`, atomically."""
        target, data = Path(folder) / PORTABLE, self.content()
        if target.resolve() != self.file.resolve():
            with atomic(target) as stream:
                stream.write(data)

    save_portable = save


# --- the metadata, read and written without a library for ONNX


def with_metadata(network: bytes, values: Mapping[str, Any]) -> bytes:
    """Return an ONNX file without metadata, with `values` as its metadata and the checksum of the network."""
    spec = PortableSpec(**values, network_size=len(network), network_checksum=crc32(network))
    text = json.dumps(with_checksum(spec.model_dump(mode="json")), ensure_ascii=False).encode()
    entry = _written(1, METADATA.encode()) + _written(2, text)
    return network + _written(_METADATA_FIELD, entry)


def _written(number: int, content: bytes) -> bytes:
    """Return a field of protobuf's wire format: its number, length and content."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def read_spec(file: Path) -> PortableSpec:
    """Read the metadata of a model, skipping its network; DataError names the file."""
    try:
        with open_plain(file) as stream:
            start, text = _metadata(stream, os.fstat(stream.fileno()).st_size)
        spec = PortableSpec.model_validate(verify_checksum(parse_json(text.decode()), "its metadata"))
        if spec.network_size != start:
            raise ValueError(f"its network has {start} bytes, not {spec.network_size}")
        return spec
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(
            f"'{file.parent}' holds no finished model ({file.name}): pass the folder of a finished run or of a "
            "model, or train into it again to finish it."
        ) from None
    except OSError as error:
        raise DataError(f"cannot read '{file}': {error.strerror or error}.") from None
    except (ValueError, TypeError, RecursionError) as error:  # not protobuf, UTF-8 or json, other fields
        reason = first_line(error)
        raise DataError(f"the model '{file}' is damaged or of another version: {reason}.") from None


def _metadata(stream: IO[bytes], size: int) -> tuple[int, bytes]:
    """Return where the metadata begins, and its text; it is the last field of the file."""
    for number, before, content, end in _fields(stream, size):
        if number != _METADATA_FIELD or end != size:
            continue
        if end - content > _MOST_METADATA:
            raise ValueError(f"metadata of {end - content:,} bytes")
        stream.seek(content)
        entry = io.BytesIO(stream.read(end - content))
        parts = {
            part: entry.getbuffer()[start:stop].tobytes()
            for part, _, start, stop in _fields(entry, end - content)
        }
        if parts.get(1) == METADATA.encode() and 2 in parts:
            return before, parts[2]
    raise ValueError("it has no metadata of centerhash")


def _fields(stream: IO[bytes], size: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield number, position, start and end of the content of each field, without reading contents."""
    position = 0
    for _ in range(_MOST_FIELDS):
        if position == size:
            return
        stream.seek(position)
        head = stream.read(20)
        tag, used = _read_varint(head)
        kind, start = tag & 7, position + used
        if kind == 2:
            length, more = _read_varint(head[used:])
            start += more
        elif kind == 0:
            length = _read_varint(head[used:])[1]
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError(f"no ONNX file: a field of type {kind} at byte {position}")
        if start + length > size:
            raise ValueError(f"cut short: a field ends at byte {start + length} of {size}")
        yield tag >> 3, position, start, start + length
        position = start + length
    raise ValueError(f"more than {_MOST_FIELDS} fields")


def _read_varint(data: bytes) -> tuple[int, int]:
    """Return a number and how many bytes it takes."""
    value = 0
    for place, byte in enumerate(data[:10]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, place + 1
    raise ValueError("no ONNX file: a number without an end")
