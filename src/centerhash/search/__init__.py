"""Collections: an index of images with the model that made its codes, searched by image, by id or by labels."""

from __future__ import annotations

from centerhash.search.index import Added, Answer, Collection, Found, verify_collection

__all__ = ["Added", "Answer", "Collection", "Found", "verify_collection"]
