"""The interface of a model, whether PyTorch or ONNX Runtime runs it."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Codes, binarize, hamming
from centerhash.core.errors import ConfigError, InputError
from centerhash.core.progress import Progress, silent
from centerhash.data.images import MAX_PIXELS, ImageSource, image_list
from centerhash.model.spec import ModelSpec, PortableSpec
from centerhash.networks.backbones import Backbone
from centerhash.networks.encoder import Encoder, raise_if_broken
from centerhash.networks.engines import PortableNetwork

# Labels of at least this probability are predicted.
PREDICT_FROM = 0.5
# An image passes a filter by a label of at least this probability (see `benchmarks.quality`). If no label reaches
# PREDICT_FROM, the best one is predicted from this probability on.
FILTER_FROM = 0.28


@dataclass(frozen=True)
class LabelMatch:
    """A label whose center is near an image.

    The weights of predicted labels sum to 1, and those of others are 0. `similarity` is the cosine between the logits and
    the center as it was trained, and `distance` the Hamming distance between the code and the center.
    """

    label: str
    weight: float
    similarity: float
    distance: int


class Explanation(tuple[LabelMatch, ...]):
    """Labels of an image with their weights, the heaviest first, then the next nearest centers."""

    def __str__(self) -> str:
        return ", ".join(f"{match.label} {match.weight:.2f}" for match in self if match.weight > 0)


class Model(ABC):
    """A trained hash function with its classes and centers; `HashModel` or `PortableModel`.

    Images are files, bytes, PIL images or uint8 arrays. Features (N, D) are those that `features_of` returns.
    `general_bits` is V, the length of the general codes, or None for a model without them.
    """

    spec: ModelSpec | PortableSpec
    folder: Path | None
    general_bits: int | None
    has_probabilities: bool
    # (C, K), or None for a method without centers
    _centers: Any

    def __init__(self) -> None:
        self._encoders: dict[tuple[str, str, int], Encoder] = {}
        self._opening = threading.Lock()

    @property
    def bits(self) -> int:
        """K, the length of the codes."""
        return self.spec.bits

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the C classes."""
        return self.spec.classes

    @property
    def has_centers(self) -> bool:
        """Whether the model predicts labels and weights, as only central methods do."""
        return self._centers is not None

    @property
    def centers(self) -> Any:
        """Hash centers (C, K) of a central method."""
        if self._centers is None:
            raise ConfigError(
                f"a model of method '{self.spec.method}' has no hash centers, so it predicts neither labels nor "
                "weights: train a central method, such as ics-softmax."
            )
        return self._centers

    @property
    @abstractmethod
    def digest(self) -> str:
        """Digest of everything that determines the codes, which the path of a weight file does not."""

    @abstractmethod
    def backbone(self) -> Backbone | PortableNetwork:
        """Return the network that reads images; ConfigError for a model of features."""

    @abstractmethod
    def logits(self, features: NDArray[Any]) -> NDArray[np.float32]:
        """Compute logits (N, K) of features (N, D); their signs are the codes, independent of the batch."""

    @abstractmethod
    def similarities(self, features: NDArray[Any]) -> NDArray[np.float32]:
        """Compute the cosine (N, C) between the logits of features (N, D) and every center."""

    @abstractmethod
    def _general_codes(self, features: NDArray[Any]) -> Codes:
        """Compute `general_codes` of a model that has them."""

    @abstractmethod
    def _label_probabilities(self, features: NDArray[Any]) -> NDArray[np.float32]:
        """Compute `label_probabilities` of a model that predicts them."""

    @abstractmethod
    def _weights(self, features: NDArray[Any], labels: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Compute `weights` for labels of the right shape, of a model with centers."""

    @abstractmethod
    def save(self, folder: str | Path) -> None:
        """Write the files of the model into `folder`, each atomically."""

    @abstractmethod
    def save_portable(self, folder: str | Path) -> None:
        """Write model.onnx into `folder`, atomically."""

    def _without_backbone(self) -> ConfigError:
        return ConfigError(
            "this model was trained on precomputed features and has no backbone: pass features (N, "
            f"{self.spec.features}) as an array or .npy file, or train on images."
        )

    def general_codes(self, features: NDArray[Any]) -> Codes:
        """Encode features (N, D) into general codes (N, V), which were learned without labels."""
        if self.general_bits is None:
            raise ConfigError("this model has no general code: it was trained on too few images or features.")
        return self._general_codes(features)

    def label_probabilities(self, features: NDArray[Any]) -> NDArray[np.float32]:
        """Predict the probability (N, C) of each label."""
        if not self.has_probabilities:
            raise ConfigError(
                f"this model of method '{self.spec.method}' does not predict label probabilities: train with presence "
                "in its head."
            )
        return self._label_probabilities(features)

    def encoder(self, *, device: str = "auto", engine: str = "auto", max_pixels: int = MAX_PIXELS) -> Encoder:
        """Return the encoder of images to features, whose network is loaded once."""
        key = (device, engine, max_pixels)
        with self._opening:
            if key not in self._encoders:
                network = self.backbone()
                self._encoders[key] = Encoder(network, device=device, engine=engine, max_pixels=max_pixels)
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
        """Compute features (N, D) of images, or (D,) of one image.

        Broken images raise DataError. The folder `cache` keeps the features of files.
        """
        sources, single = image_list(images)
        encoder = self.encoder(device=device, engine=engine)
        paths = [Path(source) for source in sources if isinstance(source, str | Path)]
        if cache is None or len(paths) < len(sources):
            features = encoder.features(sources)
        else:
            table = encoder.table(paths, cache, progress=progress)
            raise_if_broken(table.broken, len(paths), "Repair or leave out these files.")
            features = table.features
        return features[0] if single else features

    def encode_features(self, features: NDArray[Any]) -> Codes:
        """Encode features (N, D) into codes (N, K)."""
        return binarize(self.logits(features))

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
        explanations = self.explain_features(np.atleast_2d(features), top)
        return explanations[0] if features.ndim == 1 else explanations

    def weights(self, features: NDArray[Any], labels: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Compute the weight (N, C) of each label of each image; zero outside the labels."""
        expected = (len(features), len(self.centers))
        if labels.shape != expected:
            raise InputError(f"labels must be of shape {expected}, got {labels.shape}.")
        return self._weights(features, labels)

    def predict_labels(self, features: NDArray[Any]) -> NDArray[np.bool_]:
        """Predict labels (N, C) by probability, or by similarity to the centers.

        The best label of an image is predicted even if none reaches the threshold, unless its probability is small.
        """
        if self.has_probabilities:
            scores, threshold, best_from = self.label_probabilities(features), PREDICT_FROM, FILTER_FROM
        else:
            scores, threshold = self.similarities(features), self.spec.label_threshold or 0.0
            best_from = -np.inf
        rows, best = np.arange(len(scores)), scores.argmax(axis=1)
        labels = scores >= threshold
        labels[rows, best] |= scores[rows, best] >= best_from
        return labels

    def label_names(self, features: NDArray[Any]) -> list[tuple[str, ...]]:
        """Return the names of the labels predicted for features (N, D); none for a method without centers."""
        if not len(features) or not self.has_centers:
            return [()] * len(features)
        names = np.array(self.classes, dtype=object)
        return [tuple(names[row].tolist()) for row in self.predict_labels(features)]

    def explain_features(self, features: NDArray[Any], top: int = 5) -> list[Explanation]:
        """Return the predicted labels by weight, then the next nearest centers, per row of features (N, D)."""
        labels = self.predict_labels(features)
        weights, similarities = self.weights(features, labels), self.similarities(features)
        distances = hamming(self.encode_features(features), np.asarray(self.centers))
        explanations = []
        for weight, similarity, distance in zip(weights, similarities, distances, strict=True):
            order = np.lexsort((-similarity, -weight))[: max(top, int((weight > 0).sum()))]
            matches = (
                LabelMatch(self.classes[j], float(weight[j]), float(similarity[j]), int(distance[j]))
                for j in order.tolist()
            )
            explanations.append(Explanation(matches))
        return explanations

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}('{self.spec.method}', {self.bits} bits, {len(self.classes)} classes, "
            f"{self.spec.backbone or 'features'})"
        )
