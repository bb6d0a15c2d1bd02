"""The path from images to search results: images -> features -> codes -> index -> results.

python examples/pipeline.py photos     # a folder of labeled images, see docs/reference/data-layouts.md
"""

from __future__ import annotations

import sys
from pathlib import Path

import centerhash
from centerhash.photos import PhotoResults


def main(photos: Path, work: Path, epochs: int = 30) -> list[PhotoResults]:
    """Train on a folder of labeled images, index all of them, and search by image and by labels."""
    # The dataset has labels (N, C) of N images, and splits: training images, queries and the database.
    data = centerhash.open_dataset(photos)
    images = data.image_paths or ()

    # A frozen network turns images into features (N, D), and a head learns codes (N, K) around the labels' centers.
    model = centerhash.train(
        data, method="ics-softmax", bits=64, epochs=epochs, out=work / "run", cache=work / "cache"
    )
    score = centerhash.evaluate(model, data, cache=work / "cache")
    print(f"mAP {score.map_retrieved:.3f}, random ranking {score.random_retrieved:.3f}")

    # The index stores 8 bytes of code per image, with its labels and its path.
    with centerhash.PhotoIndex.create(work / "index", model) as photo_index:
        photo_index.add(images)
        query = images[data.splits.query[0]]
        by_image = photo_index.search(query, k=5)
        # The images show much of the first label, and a little of the second.
        first, second = model.classes[:2]
        by_labels = photo_index.search(labels={first: 0.7, second: 0.3}, k=5)
    for title, results in ((query.name, by_image), (f"70 % {first}, 30 % {second}", by_labels)):
        print(title, {label.label: round(label.weight, 2) for label in results.labels})
        for result in results:
            print(f"  {result.distance:2d} bits  {', '.join(result.labels)}  {result.path}")
    return [by_image, by_labels]


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path("pipeline"))
