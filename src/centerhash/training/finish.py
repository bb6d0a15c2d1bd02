"""The steps after the last epoch: rotation, label threshold, class sizes, visual code; and the run's result files.

Training compares directions of logits with the centers, and a rotation of both keeps all angles. An image with several
labels lies between centers, where many logits are near 0 and their signs carry little information; a rotation spreads
it over all bits. It is ITQ's, started from the identity (Gong and Lazebnik, 2011). To rotate the outputs of a trained
network is not new: H2Q (Schwengber et al., Deep Hashing via Householder Quantization, 2023) learns Householder
reflections for it. Different here are the way to the rotation and the centers, which are rotated along.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from centerhash.codes import Packed, binarize, first_bits, pack, packed_width
from centerhash.core.errors import OutputError, first_line
from centerhash.core.files import make_folder, write_npz
from centerhash.core.progress import Progress, silent
from centerhash.data import Dataset
from centerhash.data.splits import Splits
from centerhash.encoding.code_files import text_array
from centerhash.evaluation import evaluate
from centerhash.methods.losses.central import center_similarities
from centerhash.methods.shallow.projections import Itq, ItqOptions, iterative_quantisation
from centerhash.methods.weights import class_sizes
from centerhash.model.base import Model
from centerhash.model.model import HashModel
from centerhash.model.spec import PORTABLE, ModelSpec
from centerhash.networks.heads import Rotation
from centerhash.training.config import TrainConfig
from centerhash.training.run_folder import CODES, drop_checkpoints
from centerhash.training.session import Session

ROUNDS = 60  # of the rotation, after which a validation split saw no change
_SAMPLE = 20_000  # training images that a rotation is found from at most
_QUICK_SAMPLE, _QUICK_ROUNDS = 2_000, 20  # of validation: the full rotation would cost more than an epoch
VISUAL_BITS = 128
_VISUAL_SAMPLE = 10_000  # images that the visual code is fitted on at most, evenly over the training images
_RIDGE = 200  # of its regression: small next to many images, large next to few
_CHUNK = 8192  # rows encoded at a time: bounds memory, does not affect results


def rotation_sample(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return positions among the training rows (n,) of the images whose logits determine the rotation."""
    return np.argsort(rows)[:_SAMPLE]  # in the order of the file: fast for memory-mapped features


def code_rotation(
    logits: NDArray[Any], rounds: int = ROUNDS, shorter: Sequence[int] = ()
) -> NDArray[np.float64]:
    """Find the rotation (K, K) that brings the directions of logits (n, K) nearest to binary codes.

    Of nested codes with `shorter` lengths, the bits between two lengths are rotated among themselves.
    """
    rotation, start = np.zeros((logits.shape[1], logits.shape[1])), 0
    for end in (*shorter, logits.shape[1]):
        block = logits[:, start:end].astype(np.float64)
        norms = np.linalg.norm(block, axis=1, keepdims=True)
        directions = block / np.where(norms > 0, norms, 1) * np.sqrt(end - start)
        rotation[start:end, start:end], _ = iterative_quantisation(directions, rounds, np.eye(end - start))
        start = end
    return rotation


def rotate_head(head: nn.Module, logits: NDArray[Any], shorter: Sequence[int] = ()) -> Tensor:
    """Set the head's rotation (K, K) from its training logits (n, K), and return it."""
    rotation = torch.from_numpy(code_rotation(logits, shorter=shorter)).float()
    for layer in head.modules():
        if isinstance(layer, Rotation):
            layer.matrix.copy_(rotation)
    return rotation


def network_logits(
    network: nn.Module, batches: Iterable[Tensor], device: torch.device
) -> NDArray[np.float32]:
    """Compute logits (n, K) of batches; the network is left in eval mode."""
    network.eval()
    with torch.no_grad():
        return np.concatenate([network(batch.to(device)).logits.float().cpu().numpy() for batch in batches])


def validation_map(
    query: NDArray[np.float32],
    database: NDArray[np.float32],
    query_labels: NDArray[np.bool_],
    database_labels: NDArray[np.bool_],
    rotate: bool,
    shorter: Sequence[int] = (),
) -> float:
    """Estimate the mAP of held-out logits (m, K) that query training logits (n, K)."""
    sides: list[NDArray[Any]] = [query, database]
    if rotate:  # as the finished model will
        rotation = code_rotation(database[:: -(-len(database) // _QUICK_SAMPLE)], _QUICK_ROUNDS, shorter)
        sides = [side @ rotation for side in sides]
    codes, others = (pack(binarize(side)) for side in sides)
    bits = query.shape[1]
    return evaluate(codes, others, query_labels, database_labels, bits=bits, precision_at=()).map_peers


def finished_model(
    spec: ModelSpec,
    head: nn.Module,
    centers: Tensor | None,
    features: NDArray[Any],
    labels: NDArray[np.bool_],
    areas: NDArray[np.float32] | None,
    folder: Path | None = None,
) -> HashModel:
    """Make the model of a trained head: rotate it, choose the label threshold, and set class sizes.

    Features (n, D), labels (n, C) and, if known, areas (n, C) are of training images.
    """
    own = {} if centers is None else {"centers": centers}

    def model() -> HashModel:
        return HashModel(spec, {**{f"encoder.{k}": v for k, v in head.state_dict().items()}, **own}, folder)

    if spec.head.rotate:
        rotation = rotate_head(head, model().logits(features), [part.bits for part in spec.shorter])
        if centers is not None:
            directions = centers.float() @ rotation
            own = {"centers": torch.where(directions >= 0, 1, -1).to(torch.int8), "directions": directions}
    if own:
        logits, directions = model().logits(features), model().directions

        def threshold(bits: int) -> dict[str, float]:
            return {"label_threshold": label_threshold(logits[:, :bits], labels, directions[:, :bits])}

        shorter = tuple(part.model_copy(update=threshold(part.bits)) for part in spec.shorter)
        spec = spec.model_copy(update={**threshold(spec.bits), "shorter": shorter})
    return model() if areas is None else with_sizes(model(), features, labels, areas)


def label_threshold(
    logits: NDArray[np.float32], labels: NDArray[np.bool_], centers: Tensor, entries: int = 20_000_000
) -> float:
    """Return the cosine to a center from which its label is predicted: the cut with the best F1 on these images.

    At most `entries` similarities are used, which bounds the memory for many classes.
    """
    rows = min(len(logits), max(1, entries // max(1, labels.shape[1])))
    similarities = center_similarities(torch.from_numpy(logits[:rows]), centers).numpy().ravel()
    order = np.argsort(-similarities, kind="stable")
    hits = np.cumsum(labels[:rows].ravel()[order])
    predicted = np.arange(1, len(order) + 1)
    scores = 2 * hits / (predicted + max(1, int(hits[-1])))
    return float(similarities[order[int(scores.argmax())]])


def known_areas(dataset: Dataset, config: TrainConfig, rows: NDArray[np.int64]) -> NDArray[np.float32] | None:
    """Return areas (n, C) of the labels of some images, if the data has them and the weights can use them."""
    able = config.head.evidence and "share_lambda" in config.options  # a custom method may weigh otherwise
    return None if dataset.areas is None or not (config.sizes and able) else dataset.areas[rows]


def with_sizes(
    model: HashModel, features: NDArray[Any], labels: NDArray[np.bool_], areas: NDArray[np.float32]
) -> HashModel:
    """Add the typical size of each class to a model's evidence, from images (n, D) with labels and areas (n, C)."""
    weights = torch.from_numpy(model.weights(features, labels))
    sizes = class_sizes(weights, torch.from_numpy(labels), torch.from_numpy(areas))
    tensors = model.tensors()
    [bias] = [name for name in tensors if name.endswith(".evidence.bias")]
    entropy = float(model.spec.options["share_lambda"])  # weights are softmax(evidence / entropy)
    sized = tensors[bias] + (entropy * sizes).to(tensors[bias].dtype)
    return HashModel(model.spec, {**tensors, bias: sized}, model.folder)


def visual_sample(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return positions among the training rows (n,) of the images whose features determine the visual code."""
    return np.argsort(rows)[:: max(1, len(rows) // _VISUAL_SAMPLE)]


def with_visual_code(
    model: HashModel,
    features: NDArray[Any],
    rows: NDArray[np.int64],
    untrained: NDArray[np.float32] | None = None,
) -> HashModel:
    """Add a visual code of `VISUAL_BITS` bits: ITQ of the training features `features[rows]`, without labels.

    Training a network on labels makes its features say less about all else. Then `untrained` (n, D) are features of
    `rows[visual_sample(rows)]` by the network before it was trained: the code is theirs, as far as it can be read from
    the trained features. The model is unchanged if the features are too narrow, or too few.
    """
    chosen = rows[visual_sample(rows)]
    if len(chosen) < 32 or features.shape[1] < VISUAL_BITS:
        return model
    sample = features[chosen].astype(np.float32)
    if not (sample != sample[0]).any():
        return model
    no_labels = np.zeros((len(sample), 0), np.bool_)
    source = sample if untrained is None else untrained
    visual = Itq.fit(source, no_labels, VISUAL_BITS, ItqOptions(), model.spec.seed)
    if untrained is not None:
        visual = read_code(visual.values(untrained), sample)
    arrays = {f"visual.{name}": torch.from_numpy(np.array(value)) for name, value in visual.arrays().items()}
    return HashModel(model.spec, {**model.tensors(), **arrays}, model.folder)


def read_code(values: NDArray[np.float64], features: NDArray[np.float32]) -> Itq:
    """Find the hyperplanes whose distances from features (n, D) are nearest to `values` (n, K): ridge regression."""
    mean, level = features.mean(axis=0, dtype=np.float64), values.mean(axis=0)
    scale = np.maximum(features.std(axis=0, dtype=np.float64), 1e-6)
    standard = (features - mean) / scale
    squares = standard.T @ standard
    squares[np.diag_indices_from(squares)] += _RIDGE
    projection = np.linalg.solve(squares, standard.T @ (values - level)) / scale[:, None]
    return Itq(np.array(False), projection, mean @ projection - level)


def write_results(
    folder: Path,
    model: HashModel,
    features: NDArray[Any],
    dataset: Dataset,
    splits: Splits,
    session: Session,
) -> None:
    """Write splits, model, weights and codes, then delete the checkpoints."""
    train, validation = session.split_off(splits.train)
    splits = replace(splits, train=train)
    held_out = {"validation": validation} if len(validation) else {}
    write_npz(folder / "splits.npz", {**dict(splits.items()), **held_out})
    packed = packed_codes(model, features, (splits.query, splits.database), session.progress)
    for place, one in ((folder / str(part.bits), model.at(part.bits)) for part in model.spec.shorter):
        make_folder(place)
        one.save(place)
        _save_portable(one, place)
        write_code_files(place, one.bits, [first_bits(codes, one.bits) for codes in packed], dataset, splits)
    model.save(folder)
    _save_portable(model, folder)
    if model.has_centers:
        _write_weights(folder, model, features, dataset.labels, train)
    write_code_files(folder, model.bits, packed, dataset, splits)
    drop_checkpoints(folder)


def write_code_files(
    folder: Path, bits: int, packed: Sequence[Packed], dataset: Dataset, splits: Splits
) -> None:
    """Write query.npz and database.npz: codes with rows, labels, and names and paths of image files."""
    for name, rows, codes in zip(CODES, (splits.query, splits.database), packed, strict=True):
        arrays: dict[str, NDArray[Any]] = {"packed": codes, "bits": np.array(bits), "ids": rows}
        if dataset.has_labels:
            arrays |= {"labels": dataset.labels[rows], "classes": np.array(dataset.classes, dtype=str)}
        if dataset.kind == "images" and dataset.image_paths is not None:
            chosen = rows.tolist()
            arrays["paths"] = text_array([str(dataset.image_paths[row].absolute()) for row in chosen])
            arrays["names"] = text_array([dataset.names[row] for row in chosen])
        write_npz(folder / name, arrays)


def _save_portable(model: HashModel, folder: Path) -> None:
    """Write model.onnx; a model that cannot be converted is complete without it."""
    try:
        model.save_portable(folder)
    except OutputError:
        raise
    except Exception as error:  # the exporter raises nearly anything for operators that it does not know
        reason = first_line(error)
        warnings.warn(
            f"'{folder}' gets no {PORTABLE}, so the model needs PyTorch and cannot be stored in an index: {reason}.",
            stacklevel=2,
        )


def _write_weights(
    folder: Path, model: HashModel, features: NDArray[Any], labels: NDArray[np.bool_], rows: NDArray[np.int64]
) -> None:
    """Store the training images' weights as (row, class, weight) triplets: few labels of many classes are set."""
    triplets = []
    for start in range(0, len(rows), 4096):
        part = rows[start : start + 4096]
        weights = model.weights(features[part], labels[part])
        image, label = np.nonzero(labels[part])
        triplets.append((part[image], label, weights[image, label]))
    row, label, weight = (np.concatenate(column) for column in zip(*triplets, strict=True))
    write_npz(folder / "weights.npz", {"rows": row, "classes": label, "weights": weight})


def packed_codes(
    model: Model,
    features: NDArray[Any],
    sides: Sequence[NDArray[np.int64]],
    progress: Progress = silent,
) -> list[Packed]:
    """Encode `features[rows]` into packed codes for the rows of each side (query, database)."""
    total, done = sum(map(len, sides)), 0
    codes = []
    for rows in sides:
        packed = np.empty((len(rows), packed_width(model.bits)), dtype=np.uint8)
        for part, logits in logits_in_chunks(model, features, rows):
            packed[part] = pack(binarize(logits))
            done += len(logits)
            progress("encoding", done, total)
        codes.append(packed)
    return codes


def logits_in_chunks(
    model: Model, features: NDArray[Any], rows: NDArray[np.int64]
) -> Iterator[tuple[slice, NDArray[np.float32]]]:
    """Yield logits (n, K) of `features[rows]`, a few thousand rows at a time, each with its slice of the rows."""
    for start in range(0, len(rows), _CHUNK):
        part = slice(start, start + _CHUNK)
        yield part, model.logits(features[rows[part]])
