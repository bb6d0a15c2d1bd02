"""docs/datasets.md, made from the rows of DATASETS by page.toml: `centerhash datasets --markdown`."""

from __future__ import annotations

from centerhash.core.files import packaged
from centerhash.core.rendering import filled
from centerhash.data.published.catalogue import DATASETS


def datasets_page() -> str:
    """The whole page as markdown."""
    return filled(packaged("centerhash.data.published", "page.toml")["page"], rows=DATASETS.values())
