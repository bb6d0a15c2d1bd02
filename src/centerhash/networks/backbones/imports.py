"""Importing torchvision and timm where torchvision's compiled operators do not fit the installed torch."""

from __future__ import annotations

import functools
from typing import Any


@functools.cache
def import_torchvision() -> Any:
    """Import torchvision, also where its compiled operators do not fit the installed torch.

    On import, torchvision registers fake kernels for two operators of its C++ library. Beside a CPU-only torch
    that library may not load; declaring the two schemas first lets the pure Python parts, all that we use, work.
    """
    import torch

    try:
        import torchvision
    except (RuntimeError, ImportError):
        for operator in ("nms", "qnms"):
            torch.library.define(
                f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            )
        import torchvision

    return torchvision


@functools.cache
def import_timm() -> Any:
    """Import timm, which imports torchvision for its transforms."""
    import_torchvision()
    import timm

    return timm
