"""What the readers of the published data sets share: choosing rows, and finding files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from centerhash.core.errors import DataError
from centerhash.data.layouts.folder import ImageFolder
from centerhash.data.textfiles import first_few


def with_labels(folder: ImageFolder) -> ImageFolder:
    """Leave out the images without labels, as all published figures do."""
    rows = np.flatnonzero(folder.labels.any(axis=1))
    if rows.size == 0:
        raise DataError("none of the images carries a label: nothing can be learned from them.")
    return keep_rows(folder, rows)


def keep_rows(folder: ImageFolder, rows: NDArray[np.int64]) -> ImageFolder:
    """Return the folder with these rows only; its splits follow and lose the rows that are gone."""
    moved = np.full(len(folder.names), -1)
    moved[rows] = np.arange(len(rows))
    return ImageFolder(
        names=tuple(folder.names[row] for row in rows),
        paths=tuple(folder.paths[row] for row in rows),
        classes=folder.classes,
        labels=folder.labels[rows],
        areas=None if folder.areas is None else folder.areas[rows],
        splits={name: moved[old][moved[old] >= 0] for name, old in folder.splits.items()},
        source=folder.source,
        warnings=folder.warnings,
    )


def first_present(root: Path, candidates: Sequence[str]) -> Path:
    """Return the first of several places under `root` that is there."""
    for candidate in candidates:
        if (root / candidate).exists():
            return root / candidate
    raise DataError(f"'{root}' has none of {first_few(candidates)}: unpack the data set there.")


def check_present(names: Sequence[str], paths: Sequence[Path], listed_in: Path) -> None:
    """Refuse a data set some of whose images are not there."""
    missing = [name for name, path in zip(names, paths, strict=True) if not path.is_file()]
    if missing:
        place = paths[names.index(missing[0])].parent
        raise DataError(
            f"{len(missing):,} of {len(names):,} images of '{listed_in}' are not there, looked for in "
            f"'{place}': {first_few(missing)}. Unpack all of them."
        )
