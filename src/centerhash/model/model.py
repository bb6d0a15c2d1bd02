"""HashModel: a model that PyTorch runs, from features or images to codes and explanations.

On disk it is a folder with `model.safetensors` (the head and the centers) and `model.json` (everything else);
nothing is ever unpickled. The same model as one file that runs without PyTorch is `model.onnx`, see `portable`.
"""

from __future__ import annotations

import hashlib
import json
import operator
import shutil
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialized
from torch import Tensor

from centerhash.codes import Codes, binarize
from centerhash.core.checks import check_features
from centerhash.core.errors import ConfigError, DataError, InputError, UnknownMethodError, first_line
from centerhash.core.files import (
    atomic,
    parse_json,
    refuse_links,
    verify_checksum,
    with_checksum,
    write_json,
)
from centerhash.losses.base import CentralLoss, HeadOutput
from centerhash.losses.functional import center_similarities
from centerhash.methods.registry import stored_method
from centerhash.methods.shallow.base import ShallowHash
from centerhash.methods.shallow.projections import ITQ
from centerhash.model import hub
from centerhash.model.base import Model
from centerhash.model.loading import model_folder
from centerhash.model.portable import PortableModel
from centerhash.model.spec import FILES, PORTABLE, TUNED, ModelSpec
from centerhash.networks.backbones import Backbone, get_backbone
from centerhash.networks.heads import BatchInvariantHead, Head, build_head

# This bounds the memory of a pass through the head, and does not affect its results.
_ROWS_PER_PASS = 1024
_CHECKSUMS_KEY = "checksums"


class HashModel(Model):
    """A trained hash function, its classes and centers, and the name of its backbone.

        model = centerhash.load("run")
        codes = model.encode(["a.jpg", "b.jpg"])        # (2, K) of -1 and +1
        print(model.explain("a.jpg"))

    `tensors` are named `encoder.*`, `general.*` (of general codes), and `centers` for the central methods, with
    `directions` if the logits were rotated after training. A fine-tuned backbone is stored in `folder`.
    """

    def __init__(self, spec: ModelSpec, tensors: Mapping[str, Tensor], folder: Path | None = None) -> None:
        super().__init__()
        self.spec: ModelSpec = spec
        self.folder = folder
        self._tensors = dict(tensors)
        self.method = method = stored_method(spec.method)
        self._options = method.options(spec.options, spec.bits)
        encoder = with_prefix(tensors, "encoder.")
        self._centers = tensors["centers"].float() if method.family == "central" else None
        if self._centers is not None and self._centers.shape != (len(spec.classes), spec.bits):
            raise InputError(
                f"centers of shape {tuple(self._centers.shape)} do not fit {len(spec.classes)} classes at "
                f"{spec.bits} bits."
            )
        self.network: Head | ShallowHash
        if method.family == "shallow":
            self.network = method.cls.from_arrays({name: tensor.numpy() for name, tensor in encoder.items()})
        else:
            self.network = build_head(spec.features, spec.bits, spec.head, len(spec.classes))
            self.network.load_state_dict(encoder)
            self._invariant_head = BatchInvariantHead(self.network)
        general = {name: tensor.numpy() for name, tensor in with_prefix(tensors, "general.").items()}
        self.general = ITQ.from_arrays(general) if general else None
        self.general_bits = None if self.general is None else int(self.general.offset.size)
        self.has_probabilities = bool(spec.head.presence)

    @property
    def directions(self) -> Tensor:
        """The centers (C, K), rotated as the logits were; their signs are the centers."""
        directions: Tensor = self._tensors.get("directions", self.centers)
        return directions

    @cached_property
    def objective(self) -> CentralLoss:
        """The loss of a central method, which computes the weights."""
        sizes = {"classes": len(self.classes), "bits": self.bits}
        create, seed = self.method.create, self.spec.seed
        loss: CentralLoss = create(self._options, centers=self.directions, seed=seed, **sizes)
        return loss

    def logits(self, features: NDArray[Any]) -> NDArray[np.float32]:
        """Compute logits (N, K) of features (N, D); their signs are the codes, independent of the batch."""
        logits: NDArray[np.float32] = self._outputs(features).logits.numpy()
        return logits

    def _outputs(self, features: NDArray[Any]) -> HeadOutput:
        """Compute all outputs of the head, float32."""
        features, chunks = check_features(features, self.spec.features), []
        # There is one empty chunk if there are no rows.
        for start in range(0, max(1, len(features)), _ROWS_PER_PASS):
            rows = features[start : start + _ROWS_PER_PASS]
            if isinstance(self.network, ShallowHash):
                output = HeadOutput(torch.from_numpy(self.network.transform(rows)))
            else:
                output = self._invariant_head.outputs(rows)
            chunks.append(output.each(signed_float32))
        parts = zip(*chunks, strict=True)
        return HeadOutput._make(None if part[0] is None else torch.cat(part) for part in parts)

    def _general_codes(self, features: NDArray[Any]) -> Codes:
        assert self.general is not None
        return binarize(self.general.transform(features))

    def _label_probabilities(self, features: NDArray[Any]) -> NDArray[np.float32]:
        log_odds = self._outputs(features).label_log_odds
        assert log_odds is not None
        probabilities: NDArray[np.float32] = log_odds.sigmoid().numpy()
        return probabilities

    @property
    def tuned_weights(self) -> Path | None:
        """The file of the fine-tuned backbone; None if the backbone was frozen."""
        return self.folder / TUNED if self.spec.tuned and self.folder is not None else None

    def backbone(self) -> Backbone:
        """Return the backbone; ConfigError if its weights are not those of the training run."""
        spec = self.spec
        if spec.backbone is None:
            raise self._without_backbone()
        weights = self.tuned_weights or spec.weights
        pretrained = spec.pretrained or weights is not None
        backbone = get_backbone(spec.backbone, weights, pretrained, spec.seed, spec.crop, spec.pool)
        if spec.backbone_key is not None and backbone.key != spec.backbone_key:
            raise ConfigError(
                f"this model was trained on features of {spec.backbone_key}, but the backbone is now "
                f"{backbone.key}: its weights ({spec.weights or 'the published ones'}) or its preprocessing have "
                "changed. Put the old weights back, or train again."
            )
        return backbone

    def _weights(self, features: NDArray[Any], labels: NDArray[np.bool_]) -> NDArray[np.float32]:
        output, chunks = self._outputs(features), []
        for start in range(0, len(features), _ROWS_PER_PASS):
            rows = slice(start, start + _ROWS_PER_PASS)
            batch = output.each(operator.itemgetter(rows))
            chunks.append(self.objective.weights(batch, torch.from_numpy(labels[rows].copy())).numpy())
        return np.concatenate(chunks) if chunks else np.zeros(labels.shape, dtype=np.float32)

    def similarities(self, features: NDArray[Any]) -> NDArray[np.float32]:
        """Compute the cosine (N, C) between the logits of features (N, D) and every center."""
        logits = torch.from_numpy(self.logits(features))
        similarities: NDArray[np.float32] = center_similarities(logits, self.directions).numpy()
        return similarities

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the model by name, as they are stored."""
        return dict(self._tensors)

    def at(self, bits: int) -> HashModel:
        """Return the model of a shorter nested code, whose codes are the first `bits` bits of this model's codes."""
        if bits == self.bits:
            return self
        codes = {code.bits: code for code in self.spec.shorter}
        if bits not in codes:
            lengths = ", ".join(map(str, (*codes, self.bits)))
            raise InputError(
                f"this model has codes of {lengths} bits, got {bits!r:.20}: train with `bits=16,32,64` for nested codes."
            )
        shorter = tuple(code for code in self.spec.shorter if code.bits < bits)
        spec = self.spec.model_copy(update={**dict(codes[bits]), "shorter": shorter})
        head = build_head(spec.features, bits, spec.head, len(spec.classes)).state_dict()
        shapes = {f"encoder.{name}": tensor.shape for name, tensor in head.items()}
        shapes |= {name: torch.Size((len(spec.classes), bits)) for name in ("centers", "directions")}
        tensors = {
            name: tensor[tuple(map(slice, shapes.get(name, tensor.shape)))].clone()
            for name, tensor in self._tensors.items()
        }
        return HashModel(spec, tensors, self.folder)

    @property
    def digest(self) -> str:
        """Digest of everything that determines the codes, which the path of a weight file does not."""
        tensors = {name: tensor.contiguous() for name, tensor in sorted(self._tensors.items())}
        spec = self.spec.model_dump_json(exclude={"weights"})
        return hashlib.sha256(spec.encode() + serialized(tensors)).hexdigest()

    def save(self, folder: str | Path) -> None:
        """Write model.safetensors, model.json and a fine-tuned backbone into `folder`, each atomically."""
        target = Path(folder) / TUNED
        if self.tuned_weights is not None and self.tuned_weights.resolve() != target.resolve():
            with self.tuned_weights.open("rb") as source, atomic(target) as stream:
                shutil.copyfileobj(source, stream)
        save_tensors(Path(folder) / "model.safetensors", self.tensors())
        write_json(Path(folder) / "model.json", with_checksum(self.spec.model_dump(mode="json")))

    def save_portable(self, folder: str | Path) -> None:
        """Write model.onnx into `folder`; it is exported unless the model's own folder holds it."""
        if self.folder is not None:
            # A damaged file is exported again.
            with suppress(DataError):
                stored = PortableModel.load(self.folder)
                if stored.digest == self.digest:
                    return stored.save(folder)
        from centerhash.model.export import export_model

        export_model(self, Path(folder) / PORTABLE)

    push_to_hub = hub.publish

    @classmethod
    def load(cls, folder: str | Path) -> HashModel:
        """Load a model from any source that `centerhash.load` accepts, if it holds PyTorch weights."""
        path = model_folder(folder)
        # huggingface_hub links the files of a snapshot to its blobs.
        is_downloaded = path.is_relative_to(hub.cache_folder())
        if not is_downloaded:
            refuse_links(path, FILES)
        try:
            text = (path / "model.json").read_text(encoding="utf-8")
            spec = ModelSpec.model_validate(verify_checksum(parse_json(text), "model.json"))
            if is_downloaded and spec.needs_local_weights:
                raise ValueError(f"it needs weights that were not published with it ('{spec.weights}')")
            tensors, _ = load_tensors(path / "model.safetensors")
            # Half precision is for storage, not for computing.
            wide = {name: t.float() if t.dtype == torch.float16 else t for name, t in tensors.items()}
            return cls(spec, wide, path)
        except (FileNotFoundError, NotADirectoryError):
            raise DataError(
                f"'{path}' holds no finished model (model.json, model.safetensors): pass the folder of a "
                "finished run, or train into it again to finish it."
            ) from None
        except UnknownMethodError:
            raise
        # Files that are not json or UTF-8, other fields and centers that do not fit raise ValueError.
        except (ValueError, TypeError, AttributeError, RuntimeError, KeyError) as error:
            reason = first_line(error)
            raise DataError(f"the model in '{path}' is damaged or of another version: {reason}.") from None


def signed_float32(values: Tensor) -> Tensor:
    """Round values to float32; a negative one does not become 0, whose sign is +1."""
    least = torch.finfo(torch.float32).tiny
    return torch.where(values < 0, values.clamp_max(-least), values).float()


def with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with `prefix`, by the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _checksums(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> dict[str, int]:
    """Compute checksums of tensors by name, and of other metadata by "#" and their name."""
    checksums = {f"#{name}": crc32(metadata[name].encode()) for name in metadata.keys() - {_CHECKSUMS_KEY}}
    for name, tensor in tensors.items():
        header = f"{name} {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
        content: Any = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
        checksums[name] = crc32(content, crc32(header.encode()))
    return dict(sorted(checksums.items()))


def save_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors by name, and texts as metadata, atomically."""
    plain = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    texts = dict(metadata or {})
    with atomic(path) as stream:
        stream.write(serialized(plain, {**texts, _CHECKSUMS_KEY: json.dumps(_checksums(plain, texts))}))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the tensors and the metadata that `save_tensors` wrote; ValueError if one does not match its checksum."""
    try:
        with safe_open(path, framework="pt") as stored:
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118  # not a mapping
            metadata = dict(stored.metadata() or {})
    except SafetensorError as error:
        raise ValueError(str(error)) from None
    if parse_json(metadata.get(_CHECKSUMS_KEY, "null")) != _checksums(tensors, metadata):
        raise ValueError(f"the numbers in {path.name} do not match their checksums")
    return tensors, metadata
