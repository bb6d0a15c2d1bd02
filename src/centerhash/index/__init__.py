"""Indexes: codes, labels and attributes of items, searched exactly."""

from centerhash.index.index import Index, is_index, verify_index
from centerhash.index.items import AddResult, Item, Result, Results

__all__ = ["AddResult", "Index", "Item", "Result", "Results", "is_index", "verify_index"]
