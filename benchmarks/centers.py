"""Centers of 40,000 classes: how long they take, and how far apart they are.

    python -m benchmarks.centers [--out benchmarks/results/centers.json]

Seconds are processor time in one thread. They stand beside those of computing all distances once, which is what any check
of such centers costs.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks.reporting import arguments_of, in_one_thread, show, store
from centerhash import hash_centers
from centerhash.codes import pack
from centerhash.methods.separation import distance_range, guaranteed_distance, mean_distance

CLASSES, LENGTHS, KINDS = 40_000, (64, 128, 256), ("auto", "random")


def centers(bits: int, kind: str) -> dict[str, float]:
    """Create centers of one kind, and measure them."""
    hash_centers(100, bits, kind=kind)  # imports and caches do not count
    started = time.process_time()
    made = hash_centers(CLASSES, bits, kind=kind)
    created = time.process_time()
    least, most = distance_range(made)
    checked = time.process_time()
    return {
        "seconds": created - started,
        "distances_seconds": checked - created,
        "share_of_distances": (created - started) / (checked - created),
        "different": len(np.unique(pack(made), axis=0)),
        "smallest_distance": least,
        "guaranteed_distance": guaranteed_distance(CLASSES, bits),
        "mean_distance": mean_distance(made),
        "largest_distance": most,
        # of one center, and of one bit over all classes: how far the share of +1 is from a half, at most
        "row_imbalance": float(np.abs((made > 0).mean(axis=1) - 0.5).max()),
        "column_imbalance": float(np.abs((made > 0).mean(axis=0) - 0.5).max()),
    }


def main() -> None:
    out = arguments_of(__doc__).parse_args().out
    in_one_thread()
    measured: dict[str, Any] = {"classes": CLASSES}
    for kind in KINDS:
        for bits in LENGTHS:
            name = f"{kind}_{bits}"
            measured[name] = centers(bits, kind)
            show(name, measured[name])
    store(out, measured, threads=1)


if __name__ == "__main__":
    main()
