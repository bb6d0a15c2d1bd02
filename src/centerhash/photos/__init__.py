"""Photos: an index of the pictures in folders, kept in step with them, searched by image, labels and dates."""

from centerhash.photos.duplicates import Duplicates
from centerhash.photos.photo_index import PhotoCounts, PhotoIndex, is_photo_index, verify_photos
from centerhash.photos.results import PhotoResult, PhotoResults
from centerhash.photos.sync import SyncResult

__all__ = [
    "Duplicates",
    "PhotoCounts",
    "PhotoIndex",
    "PhotoResult",
    "PhotoResults",
    "SyncResult",
    "is_photo_index",
    "verify_photos",
]
