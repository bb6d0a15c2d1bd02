"""A bare folder of images, at any depth, without labels: for methods that need none, and for indexes."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from centerhash.data.images import is_picture_name
from centerhash.data.layouts.arrays import no_labels
from centerhash.data.layouts.contents import Contents, named_splits
from centerhash.data.listing import list_images


def sign_of_bare(root: Path) -> str | None:
    """Return a picture at the top of the folder, or a folder that holds some, such as `2024/`; else None."""
    for place, below, files in os.walk(root):
        below[:] = [name for name in below if not name.startswith(".")]
        picture = next((name for name in files if is_picture_name(name)), None)
        if picture is not None:
            inside = Path(place, picture).relative_to(root).parts
            return inside[0] if len(inside) == 1 else f"{inside[0]}/"
    return None


def read_bare(root: Path) -> Contents:
    """All images in a folder and below it, without labels: (N, 0)."""
    paths = tuple(list_images([root]))
    names = tuple(path.relative_to(root).as_posix() for path in paths)
    splits, source = named_splits(root, names)
    return Contents(names, *no_labels(len(names)), splits, source, paths)


def unlabelled(contents: Contents) -> Contents:
    """The same images or features, as if nobody had said what they show."""
    classes, labels = no_labels(len(contents.names))
    return replace(contents, classes=classes, labels=labels, areas=None)
