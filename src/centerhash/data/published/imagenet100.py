"""ImageNet100: the images of 100 ImageNet classes that HashNet's list files name."""

from __future__ import annotations

from pathlib import Path

from centerhash.data.layouts.contents import Contents
from centerhash.data.published.listfiles import read_lists

LISTS = "lists"


def read_imagenet100(root: Path) -> Contents:
    """Read the lists in `lists/` and find their images anywhere below `root` by the end of their path."""
    listed = read_lists(root / LISTS, root)
    return Contents(
        names=listed.names or (),
        classes=listed.classes,
        labels=listed.labels,
        splits=dict(listed.splits.items()),
        source="list files",
        paths=listed.image_paths,
        warnings=listed.warnings,
    )
