"""The path from image to answer: images -> features -> codes -> index -> answers.

python examples/pipeline.py            # draws emoji scenes and searches them
python examples/pipeline.py photos     # your own folder: docs/reference/data-layouts.md says how to label it
"""

from __future__ import annotations

import sys
from pathlib import Path

import centerhash
from centerhash.search import Results
from reproduction.scenes import write_scenes


def main(photos: Path, work: Path, epochs: int = 30) -> list[Results]:
    """Train on a folder of labelled images, index all of them, and ask by image and by labels."""
    # labels (N, C) of N images, and which of them train, ask and are searched
    data = centerhash.open_dataset(photos)
    images = data.image_paths or ()

    # a frozen network turns images into features (N, D); a head learns codes (N, K) around the labels' centers
    model = centerhash.train(
        data, method="ics-softmax", bits=64, epochs=epochs, out=work / "run", cache=work / "cache"
    )
    score = centerhash.evaluate(model, data, cache=work / "cache")
    print(f"mAP {score.map_peers:.3f}, by chance {score.chance_peers:.3f}")

    # the index keeps 8 bytes per image, beside its labels and its path
    with centerhash.Index.create(work / "index", model) as index:
        index.add(images)
        query = images[data.splits.query[0]]
        by_image = index.search(query, k=5)  # what looks like this picture?
        first, second = model.classes[:2]
        by_labels = index.search(labels={first: 0.7, second: 0.3}, k=5)  # much of this, a little of that
    for title, results in ((query.name, by_image), (f"70 % {first}, 30 % {second}", by_labels)):
        print(title, {label.label: round(label.weight, 2) for label in results.labels})
        for result in results:
            print(f"  {result.distance:2d} bits  {', '.join(result.labels)}  {result.path}")
    return [by_image, by_labels]


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else write_scenes("pipeline/photos", 400)
    main(folder, Path("pipeline"))
