"""HashModel: what training leaves behind. Features or images in, codes and explanations out.

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
from centerhash.model import card, hub
from centerhash.model.explanation import Explained, Explanation
from centerhash.model.remote import REMOTE, fetched
from centerhash.model.spec import FILES, TUNED, ModelSpec
from centerhash.networks.backbones import Backbone, get_backbone
from centerhash.networks.encoder import Encoder
from centerhash.networks.heads import BatchInvariantHead, Head, build_head
from centerhash.networks.tensors import load_tensors, save_tensors

__all__ = ["BUILTIN", "TUNED", "HashModel", "ModelSpec", "load", "model_folder"]

BUILTIN = ("coco",)  # models that come with the package, trained by benchmarks/builtin.py
PRESENT = 0.5  # presence from which a label is predicted
_CHUNK = 1024  # rows per pass through the head: bounds memory, decides no result
_FEW = 256  # rows whose readings are kept until others are asked for
_TINY = float(np.finfo(np.float32).tiny)  # a negative value must not round to 0, whose sign is +1


class HashModel:
    """A trained hash function, its classes and centers, and the name of the backbone before it.

    `tensors` are named `encoder.*`, `visual.*` (what makes visual codes), and `centers` for the central methods, with
    `directions` where the logits were rotated after training. A backbone that was fine-tuned lies in `folder`, beside the
    stored model.
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
        look = {k.removeprefix("visual."): v.numpy() for k, v in tensors.items() if k.startswith("visual.")}
        self._look = Itq.from_arrays(look) if look else None
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
        """Whether the method is a central one: only those know labels and weights."""
        return self._centers is not None

    @property
    def has_presence(self) -> bool:
        """Whether the head reads which classes are there."""
        return bool(self.spec.head.presence)

    @property
    def visual_bits(self) -> int | None:
        """Length of the visual codes; None where the model has none."""
        return None if self._look is None else int(self._look.offset.size)

    @property
    def directions(self) -> Tensor:
        """What logits are compared with (C, K): the centers, rotated as the logits were; their signs are the centers."""
        return self._tensors.get("directions", self.centers)

    @property
    def objective(self) -> CentralObjective:
        """The loss of a central method, which knows the weights."""
        if not isinstance(self._objective, CentralObjective):
            raise self._without_centers()
        return self._objective

    def _without_centers(self) -> ConfigError:
        central = ", ".join(name for name, row in METHODS.items() if row.family == "central")
        return ConfigError(
            f"a model of method '{self.spec.method}' has no hash centers, so it knows neither labels nor weights: "
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
        """Logits (N, K) of features (N, D); their signs are the codes, whatever the batch they came in."""
        logits: NDArray[np.float32] = self._outputs(features).logits.numpy()
        return logits

    def _outputs(self, features: NDArray[Any]) -> HeadOutput:
        """Logits (N, K) and what else the head reads, float32."""
        features = check_features(features, self.spec.features)
        known, output = self._last  # a question by image asks for codes, labels, weights and centers in a row
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
        """Codes (N, K) of features (N, D)."""
        return binarize(self.logits(features))

    def visual_codes(self, features: NDArray[Any]) -> Codes:
        """Visual codes (N, V) of features (N, D): how an image looks, learned without labels."""
        if self._look is None:
            raise ConfigError(
                "this model has no visual code: it is of an earlier version, or saw too few images."
            )
        features = check_features(features, self.spec.features)
        return np.concatenate([binarize(self._look.values(chunk)) for chunk in _chunks(features)])

    def presence(self, features: NDArray[Any]) -> NDArray[np.float32]:
        """Probability (N, C) that each class is in an image."""
        found = self._outputs(features).label_log_odds
        if found is None:
            raise ConfigError(
                f"this model of method '{self.spec.method}' does not read presence: train with presence in its head."
            )
        presence: NDArray[np.float32] = found.sigmoid().numpy()
        return presence

    @property
    def tuned_weights(self) -> Path | None:
        """The file of the fine-tuned backbone; None where the backbone stayed as it was."""
        return self.folder / TUNED if self.spec.tuned and self.folder is not None else None

    def backbone(self) -> Backbone:
        """The network before the head; ConfigError where its weights are not those of the training."""
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
        """The backbone, ready to read images; it is loaded once, however often this is called."""
        wanted = (device, engine, max_pixels)
        with self._opening:
            if wanted not in self._encoders:
                self._encoders[wanted] = Encoder(
                    self.backbone(), device=device, engine=engine, max_pixels=max_pixels
                )
            return self._encoders[wanted]

    def features_of(
        self,
        images: ImageSource | Iterable[ImageSource],
        *,
        cache: Path | None = None,
        device: str = "auto",
        engine: str = "auto",
        progress: Progress = silent,
    ) -> NDArray[np.float32]:
        """Features (N, D) of images, or (D,) of one: files, bytes, PIL images, uint8 arrays.

        Broken ones raise DataError. Features of files are kept in the folder `cache` where one is given.
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
        """Codes (N, K) of images, or (K,) of one; `settings` as for `features_of`."""
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
        """The labels of an image with their weights, or a list of such answers; `settings` as for `features_of`."""
        features = self.features_of(images, **settings)
        answers = self.explain_features(np.atleast_2d(features), top)
        return answers[0] if features.ndim == 1 else answers

    def weights(self, features: NDArray[Any], labels: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Weight (N, C) of each label of each image, its share of the image; zero outside the labels."""
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
        """Cosine (N, C) between the logits of features (N, D) and every center."""
        similarities: NDArray[np.float32] = center_similarities(
            torch.from_numpy(self.logits(features)), self.directions
        ).numpy()
        return similarities

    def predict_labels(self, features: NDArray[Any]) -> NDArray[np.bool_]:
        """Labels (N, C) that are likely there, or whose centers are near enough; the likeliest one always."""
        if self.has_presence:
            scores, cut = self.presence(features), PRESENT
        else:
            scores, cut = self.similarities(features), self.spec.label_threshold or 0.0
        labels = scores >= cut
        labels[np.arange(len(labels)), scores.argmax(axis=1)] = True
        return labels

    def label_names(self, features: NDArray[Any]) -> list[tuple[str, ...]]:
        """Names of the labels predicted for features (N, D); none for a method without centers."""
        if not len(features) or not self.has_centers:
            return [()] * len(features)
        names = np.array(self.classes, dtype=object)
        return [tuple(names[row].tolist()) for row in self.predict_labels(features)]

    def explain_features(self, features: NDArray[Any], top: int = 5) -> list[Explanation]:
        """Per row of features (N, D), the predicted labels by weight, then the next nearest centers."""
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
        """The numbers of the model by name, as they are stored."""
        return dict(self._tensors)

    def save(self, folder: str | Path) -> None:
        """Write model.safetensors and model.json into `folder`, each whole or not at all, and a tuned backbone."""
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
        licence: str | None = None,
        private: bool | None = None,
    ) -> str:
        """Upload the model to "owner/name" on the Hugging Face hub, with a card; returns its address there.

        The card tells data, command, labels, `licence` (such as "apache-2.0"), and the figures of an `evaluation`.
        """
        text = card.model_card(self.spec, self.folder, repository, evaluation, licence)
        return hub.push(self.spec, self.save, text, repository, private)

    @classmethod
    def load(cls, folder: str | Path) -> HashModel:
        """Read a model that `save` or a training run wrote, or one of elsewhere; all that `load` takes."""
        path = model_folder(folder)
        refuse_links(path, FILES)
        try:
            spec = ModelSpec.model_validate(read_with_checksum(path / "model.json"))
            tensors, _ = load_tensors(path / "model.safetensors")
            # half precision is a way to store numbers, not to compute with them
            wide = {name: t.float() if t.dtype == torch.float16 else t for name, t in tensors.items()}
            return cls(spec, wide, path)
        except (FileNotFoundError, NotADirectoryError):
            raise DataError(
                f"'{path}' holds no finished model (model.json, model.safetensors): pass the folder of a "
                "finished run, or train into it again to finish it."
            ) from None
        except UnknownMethodError:
            raise
        # ValueError: no json, no UTF-8, other fields, an unknown method or option, centers that do not fit
        except (ValueError, TypeError, AttributeError, RuntimeError, KeyError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise DataError(f"the model in '{path}' is damaged or of another version: {reason}") from None


def _chunks(features: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Features (N, D) in blocks of rows; one of no rows where there are none."""
    return (features[start : start + _CHUNK] for start in range(0, max(1, len(features)), _CHUNK))


def load(source: str | Path) -> HashModel:
    """Open a trained model: "coco", which comes with the package, the folder of a run or of `HashModel.save`,
    "hf:owner/name" or "hf:owner/name@revision" of the Hugging Face hub, or "https://.../run.zip#sha256=...".
    """
    if not isinstance(source, str | Path):
        raise InputError(f"a model is named by its run's folder, or 'coco', got {type(source).__name__}.")
    return HashModel.load(source)


def model_folder(source: str | Path) -> Path:
    """The folder that holds a model: of a built-in one by its name, unless there is a model of that name here.

    A model of elsewhere is fetched first, unless it is in the cache.
    """
    if str(source).startswith(REMOTE):
        return fetched(str(source))
    if str(source) in BUILTIN and not (Path(source) / "model.json").exists():
        return Path(__file__).parents[1] / "builtin" / str(source)
    return Path(source)
