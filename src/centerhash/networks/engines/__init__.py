"""Engines that run a backbone: PyTorch on any device, or a compiled network on the processor's cores.

`open_engine(backbone)` gives the fastest one that is installed; all give the same features up to rounding.
"""

from __future__ import annotations

from centerhash.networks.engines.table import ENGINES, Engine, Pixels, choose_engine, open_engine

__all__ = ["ENGINES", "Engine", "Pixels", "choose_engine", "open_engine"]
