"""Search: an index of images with the model that made its codes, queried by an image, an id or labels."""

from __future__ import annotations

from centerhash.search.index import Index, verify_index
from centerhash.search.results import Added, Result, Results

__all__ = ["Added", "Index", "Result", "Results", "verify_index"]
