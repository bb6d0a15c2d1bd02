"""The demo: learned codes next to their alternatives, on the sample of COCO that ships in the package.

    python -m reproduction demo --out demo      # writes demo/report.html and demo/results.json
    python -m reproduction.demo demo            # chooses the settings in demo.json again, without the queries

Each method has the setting that `centerhash tune` found at 64 bits on a quarter of the training photos, with the same
number of trials for all. The weight decay of the linear classifier is chosen on the same photos.
"""

from __future__ import annotations

import base64
import io
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import ImageOps

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
from centerhash.photos import PhotoResults
from centerhash.training.run_folder import versions
from centerhash.weights import softmax_weights
from reproduction.agreement import Agreement, measure_agreement
from reproduction.classifier import Matrix, classifier_logits, probability_features, sigmoid
from reproduction.common import TEMPLATES, figure_html

LEARNED = ("csq", "ewcs", "ics", "orthohash", "ics-softmax")
# The weights of these methods are compared with areas.
WEIGHTED = ("ewcs", "ics", "ics-softmax")
BITS = (64, 16)
# The trained logits of all methods are rotated in the same way.
ROTATED: dict[str, Any] = {"head": {"rotate": True}}
SETTINGS = Path(__file__).with_name("demo.json")
CLASSIFIER_DECAYS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
SEARCHED = Path(__file__).parents[1] / "examples" / "photos"
QUERIES = Path(ch.__file__).parent / "model" / "sample_photos"
RESULTS, THUMBNAIL = 6, (160, 160)


@dataclass(frozen=True)
class Score:
    """mAP and precision@10 of one way to store photos, ranking the whole database; `bits` is 0 for numbers."""

    name: str
    title: str
    bits: int
    bytes: int
    map: float
    precision: float


def run_demo(out: Path, seed: int = 0, epochs: int | None = None, progress: Progress = silent) -> list[Score]:
    """Train and evaluate everything, write `out`/report.html and `out`/results.json, and return the scores."""
    started, data = time.monotonic(), ch.sample("coco6k")
    scores, models = [], dict[str, HashModel]()
    points, runs = read_best(SETTINGS, LEARNED), list(product(BITS, LEARNED))
    for number, (bits, method) in enumerate(runs):
        progress("trainings", number, len(runs), f"{METHODS[method].title}, {bits} bits")
        short = {} if epochs is None else {"epochs": epochs}
        setting = merge_options(training_options(get_method(method), points[method](bits)), ROTATED, short)
        task = make_task({**setting, "method": method, "bits": bits, "seed": seed})
        model = ch.train(data, config=task.config, progress=False)
        models.setdefault(method, model)  # the first one has the longest codes
        codes = model.encode_features(features_of(data))
        scores.append(of_codes(method, METHODS[method].title, codes, data))
    progress("trainings", len(runs), len(runs), "done")

    decays = json.loads(SETTINGS.read_text())["classifier"]
    floats, for_codes = (logits(data, decays[name]) for name in ("floats", "codes"))
    for bits in BITS:
        scores.append(of_codes("itq", "ITQ of the features", itq(data, bits, seed), data))
        codes = itq(replace(data, features=probability_features(for_codes)), bits, seed)
        scores.append(of_codes("classifier", "ITQ of a classifier's probabilities", codes, data))
    random = float(relevant(data).mean())
    scores.append(of_probabilities(floats, data))
    unit = features_of(data) / np.linalg.norm(features_of(data), axis=1, keepdims=True)
    # The features ship as a byte per number.
    scores.append(of_numbers("cosine", "cosine on the shipped features", unit, data, unit.shape[1]))
    scores.append(Score("random", "random ranking", 0, 0, random, random))

    agreements, answers = measure_agreements(data, models, floats), search_photos(make_folder(out))
    results = {
        "scores": list(map(vars, scores)),
        "weights_against_areas": {title: agreement.to_dict() for title, agreement in agreements.items()},
        "seed": seed,
        "versions": versions(),
    }
    write_json(out / "results.json", results)
    facts = [*map(" ".join, versions().items()), f"seed {seed}", f"{time.monotonic() - started:.0f} s"]
    facts.append("raw results: results.json")
    write_text(out / "report.html", report(data, scores, agreements, answers=answers, facts=facts))
    return scores


# Codes and rankings


def features_of(data: Dataset) -> Matrix:
    """Return the features (N, D) of a dataset that has some."""
    assert data.features is not None
    return data.features


def itq(data: Dataset, bits: int, seed: int) -> Codes:
    """Return the codes (N, K) of ITQ, which uses no labels."""
    model = ch.train(data, method="itq", bits=bits, seed=seed, progress=False)
    return model.encode_features(features_of(data))


def of_codes(name: str, title: str, codes: Codes, data: Dataset) -> Score:
    """Evaluate codes (N, K): mAP over all orders of ties."""
    query, database = data.splits.query, data.splits.database
    arrays = codes[query], codes[database], data.labels[query], data.labels[database]
    result = ch.evaluate_codes(*arrays, k=len(database), precision_at=(10,))
    return Score(
        name, title, result.bits, -(-result.bits // 8), result.map_all_expected, result.precision[10]
    )


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


def logits(data: Dataset, decay: float) -> Matrix:
    """Return the logits (N, C) of a linear classifier for all photos."""
    return classifier_logits(features_of(data), data.labels, data.splits.train, decay)


def of_probabilities(logits: Matrix, data: Dataset) -> Score:
    """Evaluate the probabilities as -log(1 - p), the best of the forms that were tried."""
    title = "a linear classifier's probabilities"
    return of_numbers("classifier", title, -np.log1p(-sigmoid(logits)), data, 4 * logits.shape[1])


def measure_agreements(data: Dataset, models: dict[str, HashModel], logits: Matrix) -> dict[str, Agreement]:
    """Compare weights of the labels with the areas of their boxes, on all photos that were not trained on."""
    assert data.areas is not None
    rows = np.setdiff1d(np.arange(data.size), data.splits.train)
    features, labels, areas = features_of(data)[rows], data.labels[rows], data.areas[rows]
    weights = {METHODS[name].title: models[name].weights(features, labels) for name in WEIGHTED}
    softmax = softmax_weights(torch.from_numpy(logits[rows]), torch.from_numpy(labels))
    weights["linear classifier, softmax over the labels"] = softmax.numpy()
    return {title: measure_agreement(values, areas, labels) for title, values in weights.items()}


# Search in the sample photos


def search_photos(work: Path) -> list[dict[str, Any]]:
    """Search the photos of the repository by those of the package, and by the labels that most photos have."""
    with TemporaryDirectory(dir=work) as folder, ch.PhotoIndex.create(Path(folder, "index")) as photos:
        photos.add(sorted(SEARCHED.glob("*.jpg")), progress=False)
        queries, counts = sorted(QUERIES.glob("*.jpg")), Counter(photos.labels())
        by_photo = [answer(f"photo: {path.name}", photos.search(path, k=RESULTS), path) for path in queries]
        by_label = [
            answer(f"label: {name} ({count} photos)", photos.search(labels=name, k=RESULTS))
            for name, count in counts.most_common(4)
        ]
    return by_photo + by_label


def answer(title: str, results: PhotoResults, query: Path | None = None) -> dict[str, Any]:
    """Return a query and its results as thumbnails, with labels and distances as captions."""
    captions = [f"{', '.join(row.labels) or 'no label'} · {row.distance} bits" for row in results]
    images = [(thumbnail(row.path), caption) for row, caption in zip(results, captions, strict=True)]
    return {"title": title, "query": query and thumbnail(query), "results": images}


def thumbnail(path: str | Path | None) -> str:
    """Return a small square JPEG as a data URL."""
    image, stream = load_image(Path(path or ""), at_least=THUMBNAIL[0]), io.BytesIO()
    ImageOps.fit(image, THUMBNAIL).save(stream, "JPEG", quality=75)
    return f"data:image/jpeg;base64,{base64.b64encode(stream.getvalue()).decode()}"


# The report


def report(data: Dataset, scores: list[Score], agreements: Mapping[str, Agreement], **values: Any) -> str:
    """Return the page as HTML, with its tables sorted by mAP; `values` are further ones of the template."""
    by_name = {(score.name, score.bits): score for score in scores}
    best_first = sorted(scores, key=lambda score: -score.map)
    ranked = {bits: [score for score in best_first if score.bits == bits] for bits in (*BITS, 0)}
    return TEMPLATES.get_template("demo.html").render(
        title="centerhash: the demo",
        data=data,
        best=max((by_name[name, 64] for name in LEARNED), key=lambda score: score.map),
        cosine=by_name["cosine", 0],
        itq=by_name["itq", 64],
        floats=by_name["classifier", 0],
        same=by_name["classifier", 64],
        ranked=ranked,
        color_of=color_of,
        bar=bar_plot(ranked),
        agreements=agreements,
        scatter=scatter_plot(agreements),
        **values,
    )


def color_of(name: str) -> str:
    """Return the color of a way to store photos: gray for all but the learned codes."""
    return line_style(name).color if name in LEARNED else "#8a8f98"


def bar_plot(ranked: Mapping[int, Sequence[Score]]) -> Markup:
    """Draw the mAP of every row, one group per size below its title."""
    lines: list[str | Score] = []
    for bits, rows in ranked.items():
        lines += [f"{bits // 8} bytes per photo:" if bits else "numbers:", *rows]
    titles = [line if isinstance(line, str) else line.title for line in lines]
    with new_figure(7.2, 0.6 + 0.27 * len(lines)) as (figure, (axis,)):
        axis.set_yticks(range(len(lines)), titles, fontsize=9)
        for position, (line, label) in enumerate(zip(lines, axis.get_yticklabels(), strict=True)):
            if isinstance(line, str):
                label.set_fontweight("bold")
            else:
                axis.barh(position, line.map, 0.7, color=color_of(line.name))
                axis.text(line.map + 0.006, position, f"{line.map:.3f}", va="center", fontsize=8)
        axis.tick_params(axis="y", length=0)
        axis.set(xlim=(0, 1), ylim=(len(lines) - 0.4, -0.6), xlabel="mAP")
        axis.grid(visible=False, axis="y")
        return figure_html(figure)


def scatter_plot(agreements: Mapping[str, Agreement]) -> Markup:
    """Draw weight against area share, a panel per method and a point per label."""
    names = {METHODS[name].title: name for name in WEIGHTED}
    with new_figure(3.0 * len(agreements), 3.5, len(agreements)) as (figure, axes):
        for axis, (title, agreement) in zip(axes, agreements.items(), strict=True):
            x, y, color = agreement.shares, agreement.weights, color_of(names.get(title, "classifier"))
            axis.plot([0, 1], [0, 1], color="#bbbbbb", linewidth=1, zorder=1)
            axis.scatter(x, y, s=7, alpha=0.35, linewidths=0, color=color, zorder=2, rasterized=True)
            axis.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xlabel="share of the labels' box area")
            axis.set_title(f"{title.partition(',')[0]}\nr = {agreement.pearson:.2f}", fontsize=10)
        axes[0].set_ylabel("weight")
        return figure_html(figure)


# Choosing the settings


def choose_settings(out: Path) -> None:
    """Tune the methods and the classifier without the queries, and write demo.json."""
    data, folder = ch.sample("coco6k"), make_folder(out / "coco6k")
    arrays = {"features": features_of(data), "labels": data.labels, **dict(data.splits.items())}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    write_text(folder / "classes.txt", "".join(f"{name}\n" for name in data.classes))
    tune(Source(folder), LEARNED, 64, out / "tuned", Budget(trials=9, full=3), training=ROTATED)

    held_out, scores = validation_split(data), dict[str, dict[float, float]](floats={}, codes={})
    for decay in CLASSIFIER_DECAYS:
        values = logits(held_out, decay)
        scores["floats"][decay] = of_probabilities(values, held_out).map
        codes = itq(replace(held_out, features=probability_features(values)), 64, 0)
        scores["codes"][decay] = of_codes("", "", codes, held_out).map
    best = {name: max(by_decay, key=by_decay.__getitem__) for name, by_decay in scores.items()}
    write_json(SETTINGS, {**json.loads((out / "tuned" / "best.json").read_text()), "classifier": best})


if __name__ == "__main__":
    choose_settings(Path(sys.argv[1]))
