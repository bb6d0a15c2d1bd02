"""Evaluate fine-tuned runs with all photos of coco117k as the database:

    python -m benchmarks.full_database RUNS --data coco117k --subset coco29k --images DIR --weights FILE --frozen NEW

The arguments are folders of runs that `centerhash train --finetune last` wrote from one network. `--weights` is the file
of that network before training, whose features go to `--frozen` as a folder for `centerhash compare`. All of them share
their first stages, so these run once per photo. OpenVINO runs the networks in 16-bit arithmetic: `--subset` is a dataset
of some of the photos, coco29k, on which the runs are evaluated too, to see what this changes. Features are kept in
`--cache`, so a killed run resumes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import centerhash as ch
from benchmarks.reporting import arguments_of, store
from centerhash.cli import console
from centerhash.core.errors import ConfigError, DataError
from centerhash.core.files import atomic_folder
from centerhash.model.model import HashModel
from centerhash.networks.backbones import Backbone, get_backbone
from centerhash.networks.cache import default_cache
from centerhash.networks.encoder import Encoder
from centerhash.networks.engines import CompiledEngine, converted, openvino_runner, streams
from centerhash.networks.stages import stages_of
from reproduction.coco117k import image_ids


class SharedTrunk(nn.Module):
    """Networks that differ only in their family's last stages: images (B, H, W, 3) to all features (B, n D)."""

    def __init__(self, networks: Sequence[Any]) -> None:
        super().__init__()
        stages, trained = zip(*(stages_of(network.network) for network in networks), strict=True)
        self.trunk, first = networks[0], nn.Sequential(*stages[0][: -trained[0]])
        for own in stages[1:]:
            other = nn.Sequential(*own[: -trained[0]]).state_dict()
            if not all(torch.equal(tensor, other[name]) for name, tensor in first.state_dict().items()):
                raise ConfigError(
                    f"these networks differ before stage -{trained[0]}: runs must start from one weight file, and be "
                    "trained without --stages."
                )
        self.trunk.network = first
        self.tails = nn.ModuleList(nn.Sequential(*own[-trained[0] :]) for own in stages)

    def forward(self, pixels: Tensor) -> Tensor:
        maps = self.trunk(pixels)
        return torch.cat([tail(maps) for tail in self.tails], dim=1)


def features_of(
    backbones: Sequence[Backbone], paths: Sequence[Path], cache: Path
) -> list[NDArray[np.float32]]:
    """Features (N, D) of photos by every backbone."""
    first = backbones[0]
    network = SharedTrunk([backbone.load() for backbone in backbones]).eval()
    keys = "".join(backbone.key for backbone in backbones)
    name = f"{first.name}-{hashlib.blake2b(keys.encode(), digest_size=6).hexdigest()}"
    several = dataclasses.replace(first, name=name, width=len(backbones) * first.features, pool=None)
    runner = openvino_runner(converted(network, first.crop), streams(), precision="bf16")
    encoder = Encoder(several, device="cpu", engine=CompiledEngine("openvino", several, runner))
    with console.progress() as report:
        table = encoder.table(paths, cache, progress=report)
    table.raise_if_broken("Repair these files.")
    return np.split(table.features, len(backbones), axis=1)


def keep_frozen(features: NDArray[np.float32], data: Path, folder: Path) -> None:
    """Write features as a folder of the layout of coco117k, with its labels and splits."""
    with atomic_folder(folder) as target:
        for file in data.iterdir():
            if file.name != "features.npy":
                shutil.copy(file, target)
        np.save(target / "features.npy", features.astype(np.float16))


def scores(
    codes: NDArray[np.uint8],
    labels: NDArray[np.bool_],
    query: NDArray[np.int64],
    database: NDArray[np.int64],
    bits: int,
) -> dict[str, float]:
    """Evaluate packed codes of all photos with these rows as queries and database."""
    found = ch.evaluate_codes(codes[query], codes[database], labels[query], labels[database], bits=bits)
    return {
        "queries": len(query),
        "database": len(database),
        "map_peers": round(found.map_peers, 4),
        "map_textbook": round(found.map_textbook, 4),
    }


def main() -> None:
    """Encode all photos, evaluate every run, and write the frozen features."""
    parser = arguments_of(__doc__)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--frozen", type=Path, required=True)
    parser.add_argument("--subset", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=default_cache())
    chosen = parser.parse_args()
    data = ch.open_dataset(chosen.data)
    ids = np.load(chosen.data / "image_ids.npy")
    paths = [chosen.images / f"{number:012d}.jpg" for number in ids]
    smaller = ch.open_dataset(chosen.subset)
    wanted = image_ids(smaller.names)
    if not np.isin(wanted, ids).all():
        raise DataError(f"'{chosen.subset}' has photos that '{chosen.data}' does not have.")
    rows = np.searchsorted(ids, wanted)
    models = [HashModel.load(run) for run in chosen.runs]
    backbones = [model.backbone() for model in models]
    untrained = get_backbone(backbones[0].name, chosen.weights)
    *tuned, frozen = features_of([*backbones, untrained], paths, chosen.cache)
    figures: dict[str, Any] = {}
    for run, model, features in zip(chosen.runs, models, tuned, strict=True):
        codes = ch.pack(model.encode_features(features))
        sides = rows[smaller.splits.query], rows[smaller.splits.database]
        figures[run.name] = {
            "bits": model.bits,
            "seed": model.spec.seed,
            "all": scores(codes, data.labels, data.splits.query, data.splits.database, model.bits),
            "subset": scores(codes, data.labels, *sides, model.bits),
        }
        print(run.name, figures[run.name], flush=True)
    store(chosen.out, {"precision": "bf16", "trained": figures})
    keep_frozen(frozen, chosen.data, chosen.frozen)


if __name__ == "__main__":
    main()
