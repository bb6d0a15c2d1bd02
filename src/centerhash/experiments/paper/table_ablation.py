"""Table 4: one centroid, equal weights, and instance weights in each form."""

from __future__ import annotations

from centerhash.experiments.paper import table_methods
from centerhash.experiments.paper.scores import run_scores
from centerhash.experiments.paper.settings import Section, Settings

WHAT, TITLE = "table-ablation", "Equal weights against instance weights (Table 4)"
METHODS = ("csq", "ewcs", "ics-printed", "ics", "ics-softmax")


def run(settings: Settings) -> Section:
    """Compare CSQ, E-WCS and ICS as printed, exact, and ours; rows of the table of all methods are taken over."""
    methods = settings.chosen(WHAT, METHODS)
    return run_scores(settings, WHAT, TITLE, methods, ("ablation",), shared=table_methods.WHAT)
