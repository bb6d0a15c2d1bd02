"""How good a Hamming ranking is: pure functions of codes and labels.

    from centerhash.evaluation import evaluate
    evaluate(query_codes, database_codes, query_labels, database_labels, k=5000).map_peers

docs/reference/metrics.md states every convention.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from centerhash.evaluation.result import Curve, Evaluation, PerQuery

if TYPE_CHECKING:
    from centerhash.evaluation.metrics import evaluate, ranking

__all__ = ["Curve", "Evaluation", "PerQuery", "evaluate", "ranking"]


def __getattr__(name: str) -> Any:
    """Import numba, which takes half a second, only when somebody evaluates or ranks."""
    if name not in ("evaluate", "ranking"):
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from centerhash.evaluation import metrics

    return getattr(metrics, name)
