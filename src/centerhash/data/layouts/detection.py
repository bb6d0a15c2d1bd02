"""The table of layouts, and the detection of the layout of a folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from centerhash.core.errors import DataError, nearest_names
from centerhash.data.images import is_picture_name
from centerhash.data.layouts.arrays import read_features
from centerhash.data.layouts.class_folders import find_bare, find_class_folders, read_bare, read_class_folders
from centerhash.data.layouts.coco_json import find_instances, read_coco_folder
from centerhash.data.layouts.common import Contents, first_few, no_labels
from centerhash.data.layouts.tabular import METADATA, find_metadata, read_image_folder, read_imagefolder


@dataclass(frozen=True)
class Layout:
    """A way to store a dataset, `by_file` if a file describes the images; `detect` returns paths that identify it."""

    name: str
    detect: Callable[[Path], Sequence[Path]]
    read: Callable[[Path], Contents]
    description: str
    by_file: bool = True


def _has_file(name: str) -> Callable[[Path], Sequence[Path]]:
    return lambda root: [root / name] if (root / name).is_file() else []


_BARE = Layout("bare", find_bare, read_bare, "images without labels (for lsh, sh and itq)", False)
LAYOUTS = (
    Layout("images", _has_file("labels.csv"), read_image_folder, "images with labels.csv (file_name,labels)"),
    Layout("imagefolder", find_metadata, read_imagefolder, "images with metadata.csv or metadata.jsonl"),
    Layout("coco", find_instances, read_coco_folder, "images with COCO's annotations/instances_*.json"),
    Layout("features", _has_file("features.npy"), read_features, "features.npy, labels.npy, classes.txt"),
    Layout("classes", find_class_folders, read_class_folders, "a folder per class (photos/dog/1.jpg)", False),
    _BARE,
)


def read_layout(root: Path, labels: bool = True) -> Contents:
    """Read a dataset of any layout; without `labels`, drop its labels."""
    try:
        entries = sorted(path.name for path in root.iterdir())
    except OSError as error:
        raise DataError(
            f"cannot open the folder '{root}': {error.strerror or error}. See docs/reference/data-layouts.md."
        ) from None
    layout = find_layout(root)
    # An error is better than a training run that ignores the labels of a misspelled file.
    misspelled = _misspelled(entries) if layout is None or (labels and layout is _BARE) else ""
    if layout is None or misspelled:
        described = ",\n  or ".join(layout.description for layout in LAYOUTS)
        raise DataError(
            f"'{root}' is no dataset: it holds {first_few(entries) or 'nothing'}{misspelled}. Give a folder of "
            f"{described}. See docs/reference/data-layouts.md."
        )
    if labels:
        return layout.read(root)
    contents = (layout if layout.by_file else _BARE).read(root)
    classes, matrix = no_labels(len(contents.names))
    return replace(contents, classes=classes, labels=matrix, areas=None)


def find_layout(root: Path) -> Layout | None:
    """Return the layout of a folder, or None; two files that describe the images are an error.

    Folders of images count as classes only if no file describes them, and images that are neither described nor
    sorted have no labels.
    """
    detected = {layout: paths[0] for layout in LAYOUTS if (paths := layout.detect(root))}
    described = [layout for layout in detected if layout.by_file]
    if len(described) > 1:
        files = first_few([str(detected[layout].relative_to(root)) for layout in described])
        raise DataError(f"'{root}' holds {files}: keep each in a separate folder.")
    return next(iter([*described, *detected]), None)


def is_described(path: Path) -> bool:
    """Return whether a file describes the images at `path`; the names of folders alone do not."""
    layout = find_layout(path) if path.is_dir() else None
    return layout is not None and layout.by_file


def _misspelled(entries: Sequence[str]) -> str:
    """Return a hint at a file whose name is nearly that of a description, or nothing."""
    candidates = [entry for entry in entries if not is_picture_name(entry)]
    for name in ("labels.csv", "features.npy", *METADATA):
        for match in nearest_names(name, candidates, 1, 0.8):
            return f" (rename '{match}' to '{name}'?)"
    return ""
