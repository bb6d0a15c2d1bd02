"""The demo: learned codes next to what they compete with, on the sample of COCO that ships in the package.

    python -m reproduction demo --out demo      # writes demo/report.html and demo/results.json
    python -m reproduction.demo demo            # chooses the settings in demo.json again; the queries are not used

Each method has the setting that `centerhash tune` found with the same number of trials for all, at 64 bits on a quarter
of the training photos, and so has the weight decay of the linear classifier.
"""

from __future__ import annotations

import base64
import io
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from markupsafe import Markup
from numpy.typing import NDArray

import centerhash as ch
from centerhash.codes import Codes
from centerhash.core.files import make_folder, write_json, write_text
from centerhash.core.options import merge_options
from centerhash.core.progress import Progress, silent
from centerhash.data import Dataset, load_image
from centerhash.experiments.plots import line_style, new_figure
from centerhash.experiments.search_spaces import training_options
from centerhash.experiments.tasks import Source, make_task, validation_split
from centerhash.experiments.tune import Budget, read_best, tune
from centerhash.methods.registry import METHODS, get_method
from centerhash.model.model import HashModel
from centerhash.training.run_folder import versions
from centerhash.weights import softmax_weights
from reproduction.agreement import Agreement, measure_agreement
from reproduction.classifier import Matrix, classifier_logits, probability_features, sigmoid
from reproduction.common import area_scatter, figure_html, templates

LEARNED = ("csq", "ewcs", "ics", "orthohash", "ics-softmax")
WEIGHTED = ("ewcs", "ics", "ics-softmax")  # their weights are compared with areas
BITS = (64, 16)
ROTATED: dict[str, Any] = {"head": {"rotate": True}}  # the same rotation of the trained logits for all
SETTINGS = Path(__file__).with_name("demo.json")
DECAYS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)  # of the linear classifier
NEAREST = 6
ROOT = Path(__file__).parents[1]
PHOTOS = (ROOT / "examples" / "photos", Path(ch.__file__).parent / "model" / "sample_photos")


@dataclass(frozen=True)
class Score:
    """What one way to store photos scores, ranking the whole database."""

    name: str  # of the method, or of the way
    title: str
    bits: int  # 0: numbers instead of codes
    bytes: int  # per photo
    map: float
    precision: float  # at 10


@dataclass(frozen=True)
class Answer:
    """A query on the sample photos and its results: addresses of thumbnails with their captions."""

    title: str
    query: str | None
    results: list[tuple[str, str]]


def run_demo(
    out: Path, *, seed: int = 0, epochs: int | None = None, progress: Progress = silent
) -> list[Score]:
    """Train and evaluate everything, write `out`/report.html and `out`/results.json, and return the scores."""
    started, data = time.monotonic(), ch.sample("coco6k")
    scores, models, trained = [], dict[str, HashModel](), 0
    points = read_best(SETTINGS, LEARNED)
    for bits in BITS:
        for method in LEARNED:
            progress("trainings", trained, len(BITS) * len(LEARNED), f"{METHODS[method].title}, {bits} bits")
            short = {} if epochs is None else {"epochs": epochs}
            setting = merge_options(
                training_options(get_method(method), points[method](bits)), ROTATED, short
            )
            task = make_task({**setting, "method": method, "bits": bits, "seed": seed})
            model = ch.train(data, config=task.config, progress=False)
            models.setdefault(method, model)  # the first has the longest codes
            scores.append(of_codes(method, METHODS[method].title, codes_of(model, data), data))
            trained += 1
    progress("trainings", trained, trained, "done")

    decays = json.loads(SETTINGS.read_text())["classifier"]
    floats, for_codes = (logits(data, decays[name]) for name in ("floats", "codes"))
    for bits in BITS:
        scores.append(of_codes("itq", "ITQ of the features", itq(data, bits, seed), data))
        codes = itq(replace(data, features=probability_features(for_codes)), bits, seed)
        scores.append(of_codes("classifier", "ITQ of a classifier's probabilities", codes, data))
    scores += [of_probabilities(floats, data), of_cosine(data)]
    chance = float(relevant(data).mean())
    scores.append(Score("random", "random ranking", 0, 0, chance, chance))

    found, answers = agreements(data, models, floats), search_photos(make_folder(out))
    raw = {
        "scores": list(map(vars, scores)),
        "weights_against_areas": {name: agreement.to_dict() for name, agreement in found.items()},
        "seed": seed,
        "versions": versions(),
    }
    write_json(out / "results.json", raw)
    facts = [*map(" ".join, versions().items()), f"seed {seed}", f"{time.monotonic() - started:.0f} s"]
    write_text(out / "report.html", report(data, scores, found, answers, facts))
    return scores


# Codes and rankings


def codes_of(model: HashModel, data: Dataset) -> Codes:
    """Return the codes (N, K) of all photos."""
    assert data.features is not None
    return model.encode_features(data.features)


def itq(data: Dataset, bits: int, seed: int) -> Codes:
    """Return the codes (N, K) of ITQ, which uses no labels."""
    return codes_of(ch.train(data, method="itq", bits=bits, seed=seed, progress=False), data)


def of_codes(name: str, title: str, codes: Codes, data: Dataset) -> Score:
    """Evaluate codes (N, K): mAP over all orders of ties."""
    query, database = data.splits.query, data.splits.database
    found = ch.evaluate_codes(
        codes[query],
        codes[database],
        data.labels[query],
        data.labels[database],
        k=len(database),
        precision_at=(10,),
    )
    return Score(name, title, found.bits, -(-found.bits // 8), found.map_all_expected, found.precision[10])


def relevant(data: Dataset) -> NDArray[np.bool_]:
    """Return (Q, N) whether a query and an item of the database share a label."""
    labels = data.labels.astype(np.float32)
    return labels[data.splits.query] @ labels[data.splits.database].T > 0


def of_numbers(name: str, title: str, rows: Matrix, data: Dataset, size: int) -> Score:
    """Evaluate numbers (N, D), ranked by their inner products."""
    order = np.argsort(-(rows[data.splits.query] @ rows[data.splits.database].T), axis=1, kind="stable")
    hits = np.take_along_axis(relevant(data), order, axis=1)
    precision = np.cumsum(hits, axis=1) / np.arange(1, hits.shape[1] + 1)
    average = (precision * hits).sum(axis=1) / np.maximum(hits.sum(axis=1), 1)
    return Score(name, title, 0, size, float(average.mean()), float(hits[:, :10].mean()))


def of_cosine(data: Dataset) -> Score:
    """Evaluate the cosine of the features as they ship: a byte per number."""
    assert data.features is not None
    unit = data.features / np.linalg.norm(data.features, axis=1, keepdims=True)
    return of_numbers("cosine", "cosine on the shipped features", unit, data, unit.shape[1])


def logits(data: Dataset, decay: float) -> Matrix:
    """Return the logits (N, C) of a linear classifier for all photos."""
    assert data.features is not None
    return classifier_logits(data.features, data.labels, data.splits.train, decay)


def of_probabilities(logits: Matrix, data: Dataset) -> Score:
    """Evaluate the probabilities as -log(1 - p), the best of the forms that were tried."""
    title = "a linear classifier's probabilities"
    return of_numbers("classifier", title, -np.log1p(-sigmoid(logits)), data, 4 * logits.shape[1])


# Weights against areas


def agreements(data: Dataset, models: Mapping[str, HashModel], logits: Matrix) -> dict[str, Agreement]:
    """Compare weights of the labels with the areas of their boxes, on all photos that were not trained on."""
    assert data.features is not None
    assert data.areas is not None
    rows = np.setdiff1d(np.arange(data.size), data.splits.train)
    features, labels, areas = data.features[rows], data.labels[rows], data.areas[rows]
    weights: dict[str, NDArray[Any]] = {
        METHODS[name].title: models[name].weights(features, labels) for name in WEIGHTED
    }
    softmax = softmax_weights(torch.from_numpy(logits[rows]), torch.from_numpy(labels))
    weights["linear classifier, softmax over the labels"] = softmax.numpy()
    return {name: measure_agreement(values, areas, labels) for name, values in weights.items()}


# Search in the sample photos


def search_photos(work: Path) -> list[Answer]:
    """Search the photos of the repository by those of the package, and by the labels that most photos have."""
    files = sorted(next(folder for folder in PHOTOS if folder.is_dir()).glob("*.jpg"))
    with (
        tempfile.TemporaryDirectory(dir=work) as folder,
        ch.PhotoIndex.create(Path(folder, "index")) as photos,
    ):
        photos.add(files, progress=False)
        by_photo = [
            Answer(f"photo: {path.name}", thumbnail(path), captioned(photos.search(path, k=NEAREST)))
            for path in sorted(PHOTOS[-1].glob("*.jpg"))
        ]
        by_label = [
            Answer(f"label: {name} ({count} photos)", None, captioned(photos.search(labels=name, k=NEAREST)))
            for name, count in Counter(photos.labels()).most_common(4)
        ]
    return by_photo + by_label


def captioned(results: Any) -> list[tuple[str, str]]:
    """Return thumbnails of results with their labels and distances."""
    return [
        (thumbnail(row.path), f"{', '.join(row.labels) or 'no label'} · {row.distance} bits")
        for row in results
    ]


def thumbnail(path: str | Path, side: int = 160) -> str:
    """Return a small square JPEG as an address that holds its own data."""
    image, stream = load_image(Path(path), at_least=side), io.BytesIO()
    edge = min(image.size)
    left, top = (image.width - edge) // 2, (image.height - edge) // 2
    image.crop((left, top, left + edge, top + edge)).resize((side, side)).save(stream, "JPEG", quality=75)
    return f"data:image/jpeg;base64,{base64.b64encode(stream.getvalue()).decode()}"


# The report


def report(
    data: Dataset,
    scores: Sequence[Score],
    agreements: Mapping[str, Agreement],
    answers: Sequence[Answer],
    facts: Sequence[str],
) -> str:
    """Return the page as HTML text; its tables are sorted by what was measured."""
    of = {(score.name, score.bits): score for score in scores}
    best_first = sorted(scores, key=lambda score: -score.map)
    ranked = {bits: [score for score in best_first if score.bits == bits] for bits in (*BITS, 0)}
    page = templates().get_template("demo.html")
    return page.render(
        title="centerhash: the demo",
        data=data,
        best=max((of[name, 64] for name in LEARNED), key=lambda score: score.map),
        cosine=of["cosine", 0],
        itq=of["itq", 64],
        floats=of["classifier", 0],
        same=of["classifier", 64],
        ranked=ranked,
        color_of=color_of,
        bar=bar_plot(ranked),
        agreements=agreements,
        scatter=scatter_plot(agreements),
        answers=answers,
        facts=[*facts, "raw results: results.json"],
    )


def color_of(name: str) -> str:
    """Return the color of a way to store photos: grey for all that the learned codes are compared with."""
    return line_style(name).color if name in LEARNED else "#8a8f98"


def bar_plot(ranked: Mapping[int, Sequence[Score]]) -> Markup:
    """Draw the mAP of every row, one group per size."""
    count = sum(len(rows) + 1 for rows in ranked.values())
    with new_figure(7.2, 0.6 + 0.27 * count) as (figure, (axis,)):
        place, names = 0, []
        for bits, rows in ranked.items():
            names.append(f"{bits // 8} bytes per photo:" if bits else "numbers:")
            for row in rows:
                place += 1
                axis.barh(place, row.map, 0.7, color=color_of(row.name))
                axis.text(row.map + 0.006, place, f"{row.map:.3f}", va="center", fontsize=8)
                names.append(row.title)
            place += 1
        axis.set_yticks(range(count), names, fontsize=9)
        for label in axis.get_yticklabels():
            label.set_fontweight("bold" if label.get_text().endswith(":") else "normal")
        axis.tick_params(axis="y", length=0)
        axis.set(xlim=(0, 1), ylim=(count - 0.4, -0.6), xlabel="mAP")
        axis.grid(visible=False, axis="y")
        return figure_html(figure)


def scatter_plot(agreements: Mapping[str, Agreement]) -> Markup:
    """Draw weight against area share, a panel per method."""
    with new_figure(3.0 * len(agreements), 3.5, len(agreements)) as (figure, axes):
        for axis, (title, found) in zip(axes, agreements.items(), strict=True):
            name = next((name for name in METHODS if METHODS[name].title == title), "classifier")
            area_scatter(axis, found.shares, found.weights, color_of(name))
            axis.set_title(f"{title.partition(',')[0]}\nr = {found.pearson:.2f}", fontsize=10)
            axis.set_xlabel("share of the labels' box area")
        axes[0].set_ylabel("weight")
        return figure_html(figure)


# Choosing the settings


def choose_settings(out: Path) -> None:
    """Tune the methods and the classifier without the queries, and write demo.json."""
    data, folder = ch.sample("coco6k"), make_folder(out / "coco6k")
    assert data.features is not None
    arrays = {"features": data.features, "labels": data.labels, **dict(data.splits.items())}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    write_text(folder / "classes.txt", "".join(f"{name}\n" for name in data.classes))
    tune(Source(folder), LEARNED, 64, out / "tuned", Budget(trials=9, full=3), training=ROTATED)

    held_out, tried = validation_split(data), dict[str, dict[float, float]](floats={}, codes={})
    for decay in DECAYS:
        found = logits(held_out, decay)
        tried["floats"][decay] = of_probabilities(found, held_out).map
        codes = itq(replace(held_out, features=probability_features(found)), 64, 0)
        tried["codes"][decay] = of_codes("", "", codes, held_out).map
    best = {name: max(values, key=values.__getitem__) for name, values in tried.items()}
    write_json(SETTINGS, {**json.loads((out / "tuned" / "best.json").read_text()), "classifier": best})


if __name__ == "__main__":
    choose_settings(Path(sys.argv[1]))
