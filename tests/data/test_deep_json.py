"""Lists inside lists inside lists, in every json of a dataset that may come from elsewhere: one sentence each."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import centerhash as ch
from centerhash.core.errors import ConfigError, DataError
from centerhash.encoding.shards import read_manifest
from centerhash.training.presets import read_preset
from tests.toys import cli, refused, write_images


def nested(depth: int) -> str:
    return "[" * depth + '"cat"' + "]" * depth


def in_jsonl(folder: Path, text: str) -> None:
    (folder / "metadata.jsonl").write_text(f'{{"file_name": "000.png", "labels": {text}}}\n')


def in_csv(folder: Path, text: str) -> None:
    cell = text.replace('"', '""')
    (folder / "labels.csv").write_text(f'file_name,labels\n000.png,"{cell}"\n')


def in_coco(folder: Path, text: str) -> None:
    name = f"instances_{folder.name}.json"
    (folder / name).write_text(
        '{"images": [{"id": 1, "file_name": "000.png"}], "categories": [{"id": 1, "name": "cat"}], '
        f'"annotations": [{{"id": 1, "image_id": 1, "category_id": 1, "bbox": {text}}}]}}'
    )


@pytest.mark.parametrize("depth", [300, 900, 100_000])
@pytest.mark.parametrize("write", [in_jsonl, in_csv, in_coco])
def test_labels_that_lie_too_deep(write: Callable[[Path, str], None], depth: int, tmp_path: Path) -> None:
    write_images(tmp_path, 1)
    write(tmp_path, nested(depth))
    with pytest.raises(DataError, match=r"too deep|bigger|limit"):
        ch.open_dataset(tmp_path)
    refused(cli("inspect", tmp_path))


@pytest.mark.parametrize("depth", [300, 900, 100_000])
def test_other_files_that_lie_too_deep(depth: int, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(nested(depth))
    with pytest.raises(DataError, match="too deep"):
        read_manifest(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"x": 1})[:-1] + f', "y": {nested(depth)}}}')
    refused(cli("evaluate", tmp_path, tmp_path))
    (tmp_path / "own.toml").write_text(f"x = {nested(100_000)}")
    with pytest.raises(ConfigError, match="too deep"):
        read_preset(str(tmp_path / "own.toml"))
