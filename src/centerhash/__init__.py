"""centerhash: compact binary codes for multi-label images, learned around hash centers.

The letters used in every shape: B batch, N database, Q queries, C classes, D features, K bits.
"""

from __future__ import annotations

__version__ = "0.1.0"
