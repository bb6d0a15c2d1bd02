"""Tables 2 and 3: mAP of all methods."""

from __future__ import annotations

from centerhash.experiments.paper.scores import run_scores
from centerhash.experiments.paper.settings import Section, Settings
from centerhash.methods.table import METHODS

WHAT, TITLE = "table-methods", "All methods (Tables 2 and 3)"


def run(settings: Settings) -> Section:
    """Compare all methods, or those that were asked for."""
    methods = settings.chosen(WHAT, list(METHODS))
    return run_scores(settings, WHAT, TITLE, methods, ("alexnet", "resnet50"))
