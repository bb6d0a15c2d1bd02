"""Rows of results with chosen figures, as `centerhash compare` stores them."""

from __future__ import annotations

from typing import Any


def stored_row(
    method: str = "ics", bits: int = 16, seed: int = 0, retrieved: float = 0.5, **config: Any
) -> dict[str, Any]:
    """One row; mAP over all relevant items is 0.1 below mAP over retrieved ones, training takes 10 s per 16 bits."""
    options = config.pop("options", {"lambda": 0.1})
    curve = {"precision": [None, 0.9, retrieved], "recall": [0.0, 0.2, 1.0], "filled": [0, 4, 8]}
    return {
        "data": "toy",
        "fingerprint": "f00d",
        "split": "files",
        "images": {"train": 20, "query": 8, "database": 40},
        "evaluation": {
            "k": 30,
            "exclude_self": False,
            "map_retrieved": retrieved,
            "map_all": retrieved - 0.1,
            "map_retrieved_expected": retrieved,
            "map_all_expected": retrieved - 0.1,
            "random_retrieved": 0.25,
            "random_all": 0.125,
            "precision": {"1": 0.9, "10": retrieved},
            "curve": curve,
            "ndcg": 0.5,
            "acg": 1.0,
            "wap": 1.5,
        },
        "config": {"method": method, "bits": bits, "seed": seed, "epochs": 3, "options": options, **config},
        "train_seconds": 10 * bits / 16,
        "encode_seconds": 0.5,
        "images_per_second": 96.0,
        "threads": 1,
        "versions": {"centerhash": "0.1.0"},
    }
