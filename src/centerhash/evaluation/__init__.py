"""How good a Hamming ranking is: pure functions of codes and labels.

from centerhash.evaluation import evaluate
evaluate(query_codes, database_codes, query_labels, database_labels, k=5000).map_retrieved
"""

from centerhash.evaluation.metrics import evaluate, ranking
from centerhash.evaluation.result import Curve, Evaluation, PerQuery

__all__ = ["Curve", "Evaluation", "PerQuery", "evaluate", "ranking"]
