"""MS COCO: the annotation files of its parts, joined."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from centerhash.data.layouts.coco_json import read_coco_files
from centerhash.data.layouts.contents import Contents


def read_coco_parts(root: Path, parts: Sequence[str]) -> Contents:
    """Read `annotations/instances_PART.json` with the images in `PART/` (train2014, val2014), and join all parts.

    Images without labels are left out, as all published figures do.
    """
    files = [root / "annotations" / f"instances_{part}.json" for part in parts]
    return read_coco_files(root, files).labelled()
