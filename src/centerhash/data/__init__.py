"""Datasets of images or features with labels and splits, and the decoding of single images."""

from __future__ import annotations

from centerhash.data.dataset import Dataset, open_dataset
from centerhash.data.images import content_key, load_image, load_pixels, squash_and_crop
from centerhash.data.listing import list_images
from centerhash.data.samples import sample
from centerhash.data.splits import Splits, check_splits, make_splits

__all__ = [
    "Dataset",
    "Splits",
    "check_splits",
    "content_key",
    "list_images",
    "load_image",
    "load_pixels",
    "make_splits",
    "open_dataset",
    "sample",
    "squash_and_crop",
]
