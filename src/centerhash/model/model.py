"""HashModel: from features or images to codes and explanations.

On disk it is a folder with `model.safetensors` (the head and the centers) and `model.json` (everything else);
nothing is ever unpickled.
"""

from __future__ import annotations

import operator
import shutil
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from centerhash.codes import Codes, binarize, hamming
from centerhash.core.checks import check_features
from centerhash.core.errors import ConfigError, DataError, InputError, UnknownMethodError
from centerhash.core.files import atomic, read_with_checksum, refuse_links, with_checksum, write_json
from centerhash.core.progress import Progress, silent
from centerhash.data.images import MAX_PIXELS, ImageSource, image_list
from centerhash.evaluation import Evaluation
from centerhash.methods.losses.base import CentralObjective, HeadOutput
from centerhash.methods.losses.central import center_similarities
from centerhash.methods.registry import METHODS, stored_method
from centerhash.methods.shallow.base import ShallowHash
from centerhash.methods.shallow.projections import Itq
from centerhash.model import hub
from centerhash.model.explanation import Explained, Explanation
from centerhash.model.spec import FILES, TUNED, ModelSpec
from centerhash.networks.backbones import Backbone, get_backbone
from centerhash.networks.encoder import Encoder
from centerhash.networks.heads import BatchInvariantHead, Head, build_head
from centerhash.networks.tensors import load_tensors, save_tensors

BUILTIN = ("coco",)  # models that come with the package, trained by benchmarks/builtin.py
PRESENT = 0.5  # probability from which a label is predicted
_CHUNK = 1024  # rows per pass through the head: bounds memory, does not affect results
_FEW = 256  # rows whose outputs are kept for the next call
_TINY = float(np.finfo(np.float32).tiny)  # a negative value must not round to 0, whose sign is +1


class HashModel:
    """A trained hash function, its classes and centers, and the name of the backbone before it.

    `tensors` are named `encoder.*`, `visual.*` (of visual codes), and `centers` for the central methods, with
    `directions` if the logits were rotated after training. A fine-tuned backbone is stored in `folder`.
    """

    def __init__(self, spec: ModelSpec, tensors: Mapping[str, Tensor], folder: Path | None = None) -> None:
        self.spec, self.folder = spec, folder
        self._encoders: dict[tuple[str, str, int], Encoder] = {}
        self._opening = threading.Lock()
        self._tensors = dict(tensors)
        self.method = method = stored_method(spec.method)
        options = method.options(spec.options, spec.bits)
        own = {k.removeprefix("encoder."): v for k, v in tensors.items() if k.startswith("encoder.")}
        self._centers = tensors["centers"].float() if method.family == "central" else None
        if self._centers is not None and self._centers.shape != (len(spec.classes), spec.bits):
            raise InputError(
                f"centers of shape {tuple(self._centers.shape)} do not fit {len(spec.classes)} classes at "
                f"{spec.bits} bits."
            )
        self.network: Head | ShallowHash  # from features to logits
        if method.family == "shallow":
            self.network = method.shallow_class().from_arrays({k: v.numpy() for k, v in own.items()})
        else:
            self.network = build_head(spec.features, spec.bits, spec.head, len(spec.classes))
            self.network.load_state_dict(own)
        self._steady = BatchInvariantHead(self.network) if isinstance(self.network, Head) else None
        visual = {k.removeprefix("visual."): v.numpy() for k, v in tensors.items() if k.startswith("visual.")}
        self._visual = Itq.from_arrays(visual) if visual else None
        self._last: tuple[NDArray[Any], HeadOutput] = np.empty(0), HeadOutput(torch.empty(0))
        self._objective = (
            method.objective(len(spec.classes), spec.bits, self.directions, options, spec.seed)
            if self._centers is not None
            else None
        )

    @property
    def centers(self) -> Tensor:
        """Hash centers (C, K) of a central method."""
        if self._centers is None:
            raise self._without_centers()
        return self._centers

    @property
    def has_centers(self) -> bool:
        """Whether the method is a central one: only those predict labels and weights."""
        return self._centers is not None

    @property
    def has_presence(self) -> bool:
        """Whether the head predicts label probabilities."""
        return bool(self.spec.head.presence)

    @property
    def visual_bits(self) -> int | None:
        """Length of the visual codes; None without a visual code."""
        return None if self._visual is None else int(self._visual.offset.size)

    @property
    def directions(self) -> Tensor:
        """The centers (C, K), rotated as the logits were; their signs are the centers."""
        return self._tensors.get("directions", self.centers)

    @property
    def objective(self) -> CentralObjective:
        """The loss of a central method, which computes the weights."""
        if not isinstance(self._objective, CentralObjective):
            raise self._without_centers()
        return self._objective

    def _without_centers(self) -> ConfigError:
        central = ", ".join(name for name, row in METHODS.items() if row.family == "central")
        return ConfigError(
            f"a model of method '{self.spec.method}' has no hash centers, so it predicts neither labels nor weights: "
            f"train one of {central}."
        )

    @property
    def bits(self) -> int:
        """K, the length of the codes."""
        return self.spec.bits

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the C classes."""
        return self.spec.classes

    def logits(self, features: NDArray[Any]) -> NDArray[np.float32]:
        """Compute logits (N, K) of features (N, D); their signs are the codes, independent of the batch."""
        logits: NDArray[np.float32] = self._outputs(features).logits.numpy()
        return logits

    def _outputs(self, features: NDArray[Any]) -> HeadOutput:
        """Compute all outputs of the head, float32."""
        features = check_features(features, self.spec.features)
        known, output = self._last  # a query by image reads codes, labels, weights and similarities in a row
        if np.array_equal(known, features):
            return output.each(Tensor.clone)
        parts = zip(*map(self._chunk, _chunks(features)), strict=True)
        output = HeadOutput._make(None if part[0] is None else torch.cat(part) for part in parts)
        if 0 < len(features) <= _FEW:
            self._last = features.copy(), output.each(Tensor.clone)
        return output

    def _chunk(self, features: NDArray[Any]) -> HeadOutput:
        if isinstance(self.network, ShallowHash):
            output = HeadOutput(torch.from_numpy(self.network.values(features)))
        else:
            assert self._steady is not None
            output = self._steady.outputs(features)
        return output.each(lambda part: torch.where(part < 0, part.clamp_max(-_TINY), part).float())

    def encode_features(self, features: NDArray[Any]) -> Codes:
        """Encode features (N, D) into codes (N, K)."""
        return binarize(self.logits(features))

    def visual_codes(self, features: NDArray[Any]) -> Codes:
        """Encode features (N, D) into visual codes (N, V), which were learned without labels."""
        if self._visual is None:
            raise ConfigError("this model has no visual code: it was trained on too few images or features.")
        features = check_features(features, self.spec.features)
        return np.concatenate([binarize(self._visual.values(chunk)) for chunk in _chunks(features)])

    def presence(self, features: NDArray[Any]) -> NDArray[np.float32]:
        """Predict the probability (N, C) of each label."""
        found = self._outputs(features).label_log_odds
        if found is None:
            raise ConfigError(
                f"this model of method '{self.spec.method}' does not predict label probabilities: train with presence in "
                "its head."
            )
        presence: NDArray[np.float32] = found.sigmoid().numpy()
        return presence

    @property
    def tuned_weights(self) -> Path | None:
        """The file of the fine-tuned backbone; None if the backbone was frozen."""
        return self.folder / TUNED if self.spec.tuned and self.folder is not None else None

    def backbone(self) -> Backbone:
        """Return the backbone; ConfigError if its weights are not those of the training run."""
        spec = self.spec
        if spec.backbone is None:
            raise ConfigError(
                "this model was trained on precomputed features and has no backbone: pass features (N, "
                f"{spec.features}) as an array or .npy file, or train on images."
            )
        weights = spec.weights if self.tuned_weights is None else self.tuned_weights
        pretrained = spec.pretrained or weights is not None
        backbone = get_backbone(spec.backbone, weights, pretrained, spec.seed, spec.crop, spec.pool)
        if spec.backbone_key is not None and backbone.key != spec.backbone_key:
            raise ConfigError(
                f"this model was trained on features of {spec.backbone_key}, but the backbone here is "
                f"{backbone.key}: its weights ({spec.weights or 'the published ones'}) or its preprocessing have "
                "changed. Put the old weights back, or train again."
            )
        return backbone

    def encoder(self, *, device: str = "auto", engine: str = "auto", max_pixels: int = MAX_PIXELS) -> Encoder:
        """Return the backbone, ready to read images; it is loaded once."""
        key = (device, engine, max_pixels)
        with self._opening:
            if key not in self._encoders:
                backbone = self.backbone()
                self._encoders[key] = Encoder(backbone, device=device, engine=engine, max_pixels=max_pixels)
            return self._encoders[key]

    def features_of(
        self,
        images: ImageSource | Iterable[ImageSource],
        *,
        cache: Path | None = None,
        device: str = "auto",
        engine: str = "auto",
        progress: Progress = silent,
    ) -> NDArray[np.float32]:
        """Compute features (N, D) of images, or (D,) of one: files, bytes, PIL images, uint8 arrays.

        Broken ones raise DataError. Features of files are kept in the folder `cache`, if given.
        """
        sources, single = image_list(images)
        encoder = self.encoder(device=device, engine=engine)
        if cache is None or not all(isinstance(source, str | Path) for source in sources):
            found = encoder.features(sources)
        else:
            paths = [Path(source) for source in sources if isinstance(source, str | Path)]
            table = encoder.table(paths, cache, progress=progress)
            table.raise_if_broken("Repair or leave out these files.")
            found = table.features
        return found[0] if single else found

    def encode(self, images: ImageSource | Iterable[ImageSource], **settings: Any) -> Codes:
        """Encode images into codes (N, K), or one into (K,); `settings` as for `features_of`."""
        features = self.features_of(images, **settings)
        codes = self.encode_features(np.atleast_2d(features))
        return codes[0] if features.ndim == 1 else codes

    @overload
    def explain(self, images: ImageSource, top: int = 5, **settings: Any) -> Explanation: ...

    @overload
    def explain(self, images: Iterable[ImageSource], top: int = 5, **settings: Any) -> list[Explanation]: ...

    def explain(
        self, images: ImageSource | Iterable[ImageSource], top: int = 5, **settings: Any
    ) -> Explanation | list[Explanation]:
        """Explain one image, or several, by labels with weights; `settings` as for `features_of`."""
        features = self.features_of(images, **settings)
        answers = self.explain_features(np.atleast_2d(features), top)
        return answers[0] if features.ndim == 1 else answers

    def weights(self, features: NDArray[Any], labels: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Compute the weight (N, C) of each label of each image; zero outside the labels."""
        if labels.shape != (len(features), len(self.classes)):
            expected = (len(features), len(self.classes))
            raise InputError(f"labels must be of shape {expected}, got {labels.shape}.")
        output, chunks = self._outputs(features), []
        for start in range(0, len(features), _CHUNK):
            rows = slice(start, start + _CHUNK)
            batch = output.each(operator.itemgetter(rows))
            chunks.append(self.objective.weights(batch, torch.from_numpy(labels[rows].copy())).numpy())
        return np.concatenate(chunks) if chunks else np.zeros(labels.shape, dtype=np.float32)

    def similarities(self, features: NDArray[Any]) -> NDArray[np.float32]:
        """Compute the cosine (N, C) between the logits of features (N, D) and every center."""
        similarities: NDArray[np.float32] = center_similarities(
            torch.from_numpy(self.logits(features)), self.directions
        ).numpy()
        return similarities

    def predict_labels(self, features: NDArray[Any]) -> NDArray[np.bool_]:
        """Predict labels (N, C) by probability, or by similarity to the centers; at least one per image."""
        if self.has_presence:
            scores, cut = self.presence(features), PRESENT
        else:
            scores, cut = self.similarities(features), self.spec.label_threshold or 0.0
        labels = scores >= cut
        labels[np.arange(len(labels)), scores.argmax(axis=1)] = True
        return labels

    def label_names(self, features: NDArray[Any]) -> list[tuple[str, ...]]:
        """Name the labels predicted for features (N, D); none for a method without centers."""
        if not len(features) or not self.has_centers:
            return [()] * len(features)
        names = np.array(self.classes, dtype=object)
        return [tuple(names[row].tolist()) for row in self.predict_labels(features)]

    def explain_features(self, features: NDArray[Any], top: int = 5) -> list[Explanation]:
        """List the predicted labels by weight, then the next nearest centers, per row of features (N, D)."""
        labels = self.predict_labels(features)
        weights, similarities = self.weights(features, labels), self.similarities(features)
        distances = hamming(self.encode_features(features), self.centers.numpy())
        answers = []
        for weight, similarity, distance in zip(weights, similarities, distances, strict=True):
            order = np.lexsort((-similarity, -weight))[: max(top, int((weight > 0).sum()))]
            answers.append(
                Explanation(
                    Explained(self.classes[j], float(weight[j]), float(similarity[j]), int(distance[j]))
                    for j in order.tolist()
                )
            )
        return answers

    def __repr__(self) -> str:
        made, classes = f"'{self.spec.method}', {self.bits} bits", f"{len(self.classes)} classes"
        return f"HashModel({made}, {classes}, {self.spec.backbone or 'features'})"

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the model by name, as they are stored."""
        return dict(self._tensors)

    def save(self, folder: str | Path) -> None:
        """Write model.safetensors, model.json and a fine-tuned backbone into `folder`, each atomically."""
        target = Path(folder) / TUNED
        if self.tuned_weights is not None and self.tuned_weights.resolve() != target.resolve():
            with self.tuned_weights.open("rb") as source, atomic(target) as stream:
                shutil.copyfileobj(source, stream)
        save_tensors(Path(folder) / "model.safetensors", self.tensors())
        write_json(Path(folder) / "model.json", with_checksum(self.spec.model_dump(mode="json")))

    def push_to_hub(
        self,
        repository: str,
        *,
        evaluation: Evaluation | None = None,
        license: str | None = None,
        private: bool | None = None,
    ) -> str:
        """Upload the model to "owner/name" on the Hugging Face hub, with a card; return its address there.

        The card lists data, command, labels, `license` (such as "apache-2.0"), and the metrics of an `evaluation`.
        """
        text = hub.model_card(self.spec, self.folder, repository, evaluation, license)
        return hub.push(self.spec, self.save, text, repository, private)

    @classmethod
    def load(cls, folder: str | Path) -> HashModel:
        """Load a model from any source that `load` accepts."""
        path = model_folder(folder)
        if not path.is_relative_to(hub.cache_folder()):  # huggingface_hub links snapshots to blobs there
            refuse_links(path, FILES)
        try:
            spec = ModelSpec.model_validate(read_with_checksum(path / "model.json"))
            tensors, _ = load_tensors(path / "model.safetensors")
            # half precision is for storage, not for computing
            wide = {name: t.float() if t.dtype == torch.float16 else t for name, t in tensors.items()}
            return cls(spec, wide, path)
        except (FileNotFoundError, NotADirectoryError):
            raise DataError(
                f"'{path}' holds no finished model (model.json, model.safetensors): pass the folder of a "
                "finished run, or train into it again to finish it."
            ) from None
        except UnknownMethodError:
            raise
        # ValueError: not json, not UTF-8, other fields, an unknown option, centers that do not fit
        except (ValueError, TypeError, AttributeError, RuntimeError, KeyError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise DataError(f"the model in '{path}' is damaged or of another version: {reason}") from None


def _chunks(features: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield features (N, D) in blocks of rows; one empty block if there are none."""
    return (features[start : start + _CHUNK] for start in range(0, max(1, len(features)), _CHUNK))


def load(source: str | Path) -> HashModel:
    """Load a trained model: "coco", which comes with the package; the folder of a run or of `HashModel.save`;
    or "hf:owner/name" or "hf:owner/name@revision" on the Hugging Face hub.
    """
    if not isinstance(source, str | Path):
        raise InputError(f"a model is named by its run's folder, or 'coco', got {type(source).__name__}.")
    return HashModel.load(source)


def model_folder(source: str | Path) -> Path:
    """Return the folder of a model; a folder here takes precedence over a built-in model of the same name."""
    if str(source).startswith(hub.PREFIX):
        return hub.download(str(source))
    if str(source) in BUILTIN and not (Path(source) / "model.json").exists():
        return Path(__file__).parents[1] / "builtin" / str(source)
    return Path(source)
