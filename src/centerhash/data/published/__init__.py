"""Published data sets by name: the catalogue, their readers, the field's list files, downloads.

from centerhash.data.published import open_data
data = open_data("coco2014", root="data")
"""

from __future__ import annotations

from centerhash.data.published.catalogue import DATASETS, NamedSet, get_dataset
from centerhash.data.published.download import download
from centerhash.data.published.named import open_data

__all__ = ["DATASETS", "NamedSet", "download", "get_dataset", "open_data"]
