"""How well a model ranks a data set: its queries and database encoded and evaluated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from centerhash.codes import Packed, binarize, pack, packed_width
from centerhash.core.errors import InputError
from centerhash.core.progress import Progress, resolve_progress, silent
from centerhash.data import Dataset
from centerhash.evaluation import Evaluation
from centerhash.evaluation import evaluate as evaluate_codes
from centerhash.model.model import HashModel
from centerhash.training.distributed import Team
from centerhash.training.features import as_dataset, cache_folder, dataset_features

_CHUNK = 8192  # rows encoded at a time: bounds memory, decides no result


def evaluate(
    model: HashModel,
    data: Dataset | str | Path,
    *,
    k: int = 5000,
    precision_at: Iterable[int] = (1, 10, 100, 1000, 5000),
    exclude_self: bool = False,
    seed: int = 0,
    cache: str | Path | None = "auto",
    device: str = "auto",
    skip_broken: bool = False,
    progress: bool | Progress = True,
) -> Evaluation:
    """Encode a data set's queries and database by `model`, rank the database for every query, and measure it.

    Args:
        model: of `train` or `load`.
        data: a data set, or the path of one; splits that it does not name are those of the training.
        k: number of places that mAP, NDCG, ACG and WAP look at; more than the database means all.
        precision_at: the numbers of places for precision.
        exclude_self: leave a query's own item out of its ranking, where it is in the database too.
        seed: of the permutation of the database that breaks ties.
        cache: folder where features of images are kept; "auto" is the user's cache folder, None keeps none.
        device: to compute features on, such as "cpu" or "cuda"; "auto" takes a GPU where there is one.
        skip_broken: leave out images that cannot be read instead of refusing the data.
        progress: True shows bars in a terminal or notebook, False nothing; or a callback (stage, done, total, note).

    """
    if not isinstance(model, HashModel):
        raise InputError(
            f"evaluate takes a model and a data set, got {type(model).__name__}: `evaluate_codes` takes codes and labels."
        )
    dataset = as_dataset(data, model.spec.seed)
    dataset.check_labels("scoring")
    with resolve_progress(progress) as tell:
        if dataset.features is not None:
            features, splits = dataset.features, dataset.splits
        else:
            features, splits = dataset_features(
                dataset,
                model.backbone(),
                cache=cache_folder(cache),
                team=Team(device),
                skip_broken=skip_broken,
                progress=tell,
            )
        query, database = packed_codes(model, features, (splits.query, splits.database), tell)
    return evaluate_codes(
        query,
        database,
        dataset.labels[splits.query],
        dataset.labels[splits.database],
        bits=model.bits,
        query_ids=splits.query,
        database_ids=splits.database,
        k=k,
        precision_at=precision_at,
        exclude_self=exclude_self,
        seed=seed,
    )


def packed_codes(
    model: HashModel,
    features: NDArray[Any],
    sides: Sequence[NDArray[np.int64]],
    progress: Progress = silent,
) -> list[Packed]:
    """Packed codes of `features[rows]` for the rows of each side (query, database), a few thousand rows at a time."""
    total, done = sum(map(len, sides)), 0
    codes = []
    for rows in sides:
        packed = np.empty((len(rows), packed_width(model.bits)), dtype=np.uint8)
        for part, logits in logits_in_parts(model, features, rows):
            packed[part] = pack(binarize(logits))
            done += len(logits)
            progress("encoding", done, total)
        codes.append(packed)
    return codes


def logits_in_parts(
    model: HashModel, features: NDArray[Any], rows: NDArray[np.int64]
) -> Iterator[tuple[slice, NDArray[np.float32]]]:
    """Logits (n, K) of `features[rows]`, a few thousand rows at a time, each part with its place among the rows."""
    for start in range(0, len(rows), _CHUNK):
        part = slice(start, start + _CHUNK)
        yield part, model.logits(features[rows[part]])
