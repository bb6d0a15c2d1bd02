"""Fig. 4 and 6: mAP and weights against lambda, and where the printed step becomes unstable."""

from __future__ import annotations

from typing import Any

from centerhash.experiments.paper.drawing import note, paragraph, table
from centerhash.experiments.paper.printed import printed
from centerhash.experiments.paper.settings import Section, Settings
from centerhash.experiments.paper.study import FORMS, REMARK, run_study, study_table
from centerhash.experiments.paper.study_figures import instability_plot, study_plots

WHAT, TITLE, SPOKEN = "lambda", "The parameter lambda", "λ"


def run(settings: Settings) -> Section:
    """Train ICS as printed and exact with every lambda of the paper, beta as each form has it."""
    values = sorted(map(float, printed()["studies"]["lambda"]))
    rows, failures = run_study(settings, WHAT, values, _options)
    parts = [paragraph(_ABOUT), *study_plots(settings, rows, WHAT, SPOKEN, values), _printed_table()]
    if "ics-printed" in settings.chosen(WHAT, FORMS):
        parts += ["<h3>Where the printed step becomes unstable</h3>", paragraph(_UNSTABLE)]
        parts.append(instability_plot(rows, printed()["solver"]["rate"]).write(settings.folder(WHAT)))
    parts += [study_table(settings, WHAT, SPOKEN, values, rows), note(REMARK)]
    return Section(WHAT, TITLE, "".join(parts), tuple(failures))


def _options(form: str, bits: int, value: float) -> dict[str, Any]:
    """Only lambda changes; beta is the best printed one, or the exact form's own."""
    return {"lambda": value}


def _printed_table() -> str:
    """What the paper prints under its histograms."""
    lines = [
        [f"printed, λ = {row['lambda']:g}", f"<i>{row['map']:.3f}</i>", f"<i>{row['variance']:.4f}</i>"]
        for row in printed()["weights"]
    ]
    return table(["AlexNet, COCO, 64 bits", "mAP", "variance"], lines)


_ABOUT = (
    "The paper says that λ → 0 makes the weights equal and λ → ∞ leaves one center. Minimising J₁ + λ Σ w log w does the "
    "opposite, and the exact form shows it: large λ, equal weights. What the paper saw at λ = 10 "
    "is best explained by its own step, which overshoots."
)
_UNSTABLE = (
    "Near w = 1/c the printed step multiplies a deviation by 1 - ηλc (the first term of Eq. (13) is nearly 0 there). "
    "From ηλc = 1 on it overshoots; from 2 on deviations grow with every step until the projection stops them in a "
    "corner. With η = 0.1 and λ = 10 that is ηλc = c: for two labels nothing is damped, and ten steps multiply the "
    "deviation of an image with c labels by (c - 1)¹⁰, which is 1,024 for three labels and a million for five."
)
