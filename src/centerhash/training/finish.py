"""After the last epoch: rotation, label threshold, class sizes, general code.

    model = finished_model(dataset, config, head, objective, rows, features, backbone)

Training compares directions of logits with the centers, and a rotation of both keeps all angles. An image with several
labels lies between centers, where many logits are near 0 and their signs carry little information; a rotation spreads
it over all bits. ITQ (Gong and Lazebnik, 2011), started from the identity, finds the rotation. H2Q (Schwengber et al.,
Deep Hashing via Householder Quantization, 2023) also rotates the outputs of a trained network, by Householder
reflections; new here is that the centers are rotated too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from centerhash.codes import binarize
from centerhash.data import Dataset
from centerhash.data.splits import Splits
from centerhash.evaluation import evaluate
from centerhash.losses.base import CentralLoss, HashingLoss
from centerhash.losses.functional import center_similarities
from centerhash.losses.nested import NestedLoss
from centerhash.methods.shallow.base import ShallowHash
from centerhash.methods.shallow.projections import ITQ, iterative_quantization
from centerhash.model.model import HashModel
from centerhash.model.spec import ModelSpec
from centerhash.networks.backbones import Backbone
from centerhash.networks.heads import Head
from centerhash.training.config import TrainConfig
from centerhash.training.context import Measure
from centerhash.weights import class_sizes

# Codes of a validation split did not change after 60 rounds.
_ROTATION_IMAGES, _ROTATION_ROUNDS = 20_000, 60
# The rotation of a validation: the full one would cost more than an epoch.
_QUICK_IMAGES, _QUICK_ROUNDS = 2_000, 20
GENERAL_BITS, _GENERAL_IMAGES = 128, 10_000
# The penalty is small next to many images, and large next to few.
_GENERAL_RIDGE = 200
_MOST_SIMILARITIES = 20_000_000


class Fit(NamedTuple):
    """A trained model, features (N, D) of the dataset by its backbone, and the splits without broken images."""

    model: HashModel
    features: NDArray[Any]
    splits: Splits


def rotation_rows(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return those of the training rows (n,) that determine the rotation, sorted: fast for memory-mapped features."""
    return np.sort(rows)[:_ROTATION_IMAGES]


def code_rotation(
    logits: NDArray[Any], rounds: int = _ROTATION_ROUNDS, shorter: Sequence[int] = ()
) -> NDArray[np.float64]:
    """Find the rotation (K, K) that brings the directions of logits (n, K) nearest to binary codes.

    Of nested codes with `shorter` lengths, the bits between two lengths are rotated among themselves.
    """
    rotation, start = np.zeros((logits.shape[1], logits.shape[1])), 0
    for end in (*shorter, logits.shape[1]):
        block = logits[:, start:end].astype(np.float64)
        norms = np.linalg.norm(block, axis=1, keepdims=True)
        directions = block / np.where(norms > 0, norms, 1) * np.sqrt(end - start)
        rotation[start:end, start:end] = iterative_quantization(directions, rounds, np.eye(end - start))
        start = end
    return rotation


def validation_measure(
    dataset: Dataset,
    rows: NDArray[np.int64],
    validation: NDArray[np.int64],
    batches: Callable[[NDArray[np.int64]], Iterable[Tensor]],
    config: TrainConfig,
    device: torch.device,
) -> Measure | None:
    """Return the measure of a network: mAP of validation rows (m,) that query training rows (n,); None without any.

    `batches` yields the network's input for rows of the dataset. The network is left in eval mode.
    """

    def logits(network: nn.Module, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        return np.concatenate(
            [network(batch.to(device)).logits.float().cpu().numpy() for batch in batches(rows)]
        )

    def measure(network: nn.Module) -> float:
        network.eval()
        with torch.no_grad():
            query, database = logits(network, validation), logits(network, rows)
        return validation_map(query, database, dataset.labels[validation], dataset.labels[rows], config)

    return measure if len(validation) else None


def validation_map(
    query: NDArray[Any],
    database: NDArray[Any],
    query_labels: NDArray[np.bool_],
    database_labels: NDArray[np.bool_],
    config: TrainConfig,
) -> float:
    """Estimate the mAP of held-out logits (m, K) that query training logits (n, K), rotated if the model will be."""
    if config.head.rotate:
        sample = database[:: -(-len(database) // _QUICK_IMAGES)]
        rotation = code_rotation(sample, _QUICK_ROUNDS, config.lengths[:-1])
        query, database = query @ rotation, database @ rotation
    sides = binarize(query), binarize(database), query_labels, database_labels
    return evaluate(*sides, precision_at=()).map_retrieved


def finished_model(
    dataset: Dataset,
    config: TrainConfig,
    head: nn.Module,
    objective: HashingLoss,
    rows: NDArray[np.int64],
    features: NDArray[Any],
    backbone: Backbone | None,
    folder: Path | None = None,
) -> HashModel:
    """Create the model of a trained head: rotate it, choose the label threshold, and set class sizes.

    Training rows (n,) of the features (N, D) determine these. A tuned backbone is stored in `folder`.
    """
    assert isinstance(head, Head)
    rows = rotation_rows(rows)
    features, labels, centers = features[rows], dataset.labels[rows], stored_centers(objective)
    spec = model_spec(dataset, config, features.shape[1], backbone, tuned=folder is not None)
    tensors = {} if centers is None else {"centers": centers}

    def model() -> HashModel:
        return HashModel(spec, {**encoder_tensors(head), **tensors}, folder)

    if spec.head.rotate:
        shorter = config.lengths[:-1]
        rotation = torch.from_numpy(code_rotation(model().logits(features), shorter=shorter)).float()
        assert head.rotation is not None
        head.rotation.matrix.copy_(rotation)
        if centers is not None:
            directions = centers.float() @ rotation
            signs = torch.where(directions >= 0, 1, -1).to(torch.int8)
            tensors = {"centers": signs, "directions": directions}
    if tensors:
        logits, directions = model().logits(features), model().directions

        def threshold(bits: int) -> dict[str, float]:
            return {"label_threshold": label_threshold(logits[:, :bits], labels, directions[:, :bits])}

        nested = tuple(code.model_copy(update=threshold(code.bits)) for code in spec.shorter)
        spec = spec.model_copy(update={**threshold(spec.bits), "shorter": nested})
    if dataset.areas is None or objective.size_scale is None or not (config.sizes and config.head.evidence):
        return model()
    return with_sizes(model(), features, labels, dataset.areas[rows])


def model_spec(
    dataset: Dataset, config: TrainConfig, features: int, backbone: Backbone | None, *, tuned: bool = False
) -> ModelSpec:
    """Return the specification of a model; without a backbone, it is one of precomputed features."""
    network: dict[str, Any] = {}
    if backbone is not None:
        network = {
            "backbone": backbone.name,
            "weights": None if config.weights is None else str(Path(config.weights).resolve()),
            "crop": backbone.crop,
            "pool": backbone.pool,
            "backbone_key": backbone.key if backbone.is_local else None,
        }
    return ModelSpec(
        method=config.method,
        options=config.options,
        bits=config.bits,
        shorter=config.shorter,
        features=features,
        classes=dataset.classes,
        head=config.head,
        pretrained=config.pretrained,
        tuned=tuned,
        seed=config.seed,
        **network,
    )


def stored_centers(objective: HashingLoss) -> Tensor | None:
    """Return the centers (C, K) that a model stores, as they are after training; None without centers."""
    if isinstance(objective, NestedLoss):
        return stored_centers(objective.longest)
    return objective.trained_centers().cpu() if isinstance(objective, CentralLoss) else None


def encoder_tensors(network: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a head under the names that a model stores them by."""
    return {f"encoder.{name}": tensor for name, tensor in network.state_dict().items()}


def array_tensors(kind: str, fitted: ShallowHash) -> dict[str, Tensor]:
    """Return the arrays of a shallow method under the names that a model stores them by."""
    return {f"{kind}.{name}": torch.from_numpy(np.array(value)) for name, value in fitted.arrays().items()}


def label_threshold(logits: NDArray[np.float32], labels: NDArray[np.bool_], centers: Tensor) -> float:
    """Return the cosine to a center from which its label is predicted: the cut with the best F1 on these images.

    Of many classes, only the first images are used, which bounds the memory.
    """
    rows = min(len(logits), max(1, _MOST_SIMILARITIES // max(1, labels.shape[1])))
    similarities = center_similarities(torch.from_numpy(logits[:rows]), centers).numpy().ravel()
    order = np.argsort(-similarities, kind="stable")
    hits = np.cumsum(labels[:rows].ravel()[order])
    predicted = np.arange(1, len(order) + 1)
    scores = 2 * hits / (predicted + max(1, int(hits[-1])))
    return float(similarities[order[int(scores.argmax())]])


def with_sizes(
    model: HashModel, features: NDArray[Any], labels: NDArray[np.bool_], areas: NDArray[np.float32]
) -> HashModel:
    """Add the typical size of each class to a model's evidence, from images (n, D) with labels and areas (n, C)."""
    weights = torch.from_numpy(model.weights(features, labels))
    sizes = class_sizes(weights, torch.from_numpy(labels), torch.from_numpy(areas))
    scale, head = model.objective.size_scale, copy.deepcopy(model.network)
    assert scale is not None
    assert isinstance(head, Head)
    head.add_to_evidence(scale * sizes)
    return HashModel(model.spec, {**model.tensors(), **encoder_tensors(head)}, model.folder)


def general_sample(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return positions among the training rows (n,) of the images whose features determine the general code."""
    return np.argsort(rows)[:: max(1, len(rows) // _GENERAL_IMAGES)]


def with_general_code(
    model: HashModel,
    features: NDArray[Any],
    rows: NDArray[np.int64],
    untrained: NDArray[np.float32] | None = None,
) -> HashModel:
    """Add a general code of `GENERAL_BITS` bits: ITQ of the training features `features[rows]`, without labels.

    A network that was trained on labels loses information about everything else. Then `untrained` (n, D) are features
    of `rows[general_sample(rows)]` before training, and a regression on the trained features approximates their code.
    The model is unchanged if the features are too narrow, or too few.
    """
    positions = rows[general_sample(rows)]
    if len(positions) < 32 or features.shape[1] < GENERAL_BITS:
        return model
    sample = features[positions].astype(np.float32)
    if not (sample != sample[0]).any():
        return model
    source = sample if untrained is None else untrained
    general = ITQ(GENERAL_BITS, seed=model.spec.seed).fit(source)
    if untrained is not None:
        general = read_code(general.transform(untrained), sample)
    return HashModel(model.spec, {**model.tensors(), **array_tensors("general", general)}, model.folder)


def read_code(values: NDArray[np.float64], features: NDArray[np.float32]) -> ITQ:
    """Find the hyperplanes whose distances from features (n, D) are nearest to `values` (n, K): ridge regression."""
    mean, level = features.mean(axis=0, dtype=np.float64), values.mean(axis=0)
    scale = np.maximum(features.std(axis=0, dtype=np.float64), 1e-6)
    standard = (features - mean) / scale
    squares = standard.T @ standard
    squares[np.diag_indices_from(squares)] += _GENERAL_RIDGE
    projection = np.linalg.solve(squares, standard.T @ (values - level)) / scale[:, None]
    arrays = {"normalize": np.array(False), "projection": projection, "offset": mean @ projection - level}
    return ITQ.from_arrays(arrays)
