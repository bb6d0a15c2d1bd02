"""Search: an index of images with the model that made its codes, asked by an image, an id or labels."""

from __future__ import annotations

from centerhash.search.index import Added, Index, Result, Results, verify_index

__all__ = ["Added", "Index", "Result", "Results", "verify_index"]
