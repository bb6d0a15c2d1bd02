"""What the shell completes. These run at every press of the tab key: nothing here imports torch.

Typer itself keeps the words that start as what was typed; where none does, the shell offers files.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

Words: TypeAlias = list[tuple[str, str]]  # a word, and what it is

# importing the tables of these takes seconds; tests keep both equal
STORES = ("flat", "milvus")
FORMATS = ("npz", "npy", "parquet", "faiss", "pgvector")
RUNNERS = ("local", "ray")
LOGGERS = ("csv", "tensorboard", "wandb", "mlflow")
PARTS = ("table-methods", "table-ablation", "pgd", "beta", "lambda", "weights", "instances", "all")


def one_of(*words: str) -> Callable[[], list[str]]:
    """Complete one of a few fixed words."""
    return lambda: list(words)


def methods() -> Words:
    """All methods."""
    from centerhash.methods.table import METHODS

    return [(row.name, row.title) for row in METHODS.values()]


def method_lists(incomplete: str) -> Words:
    """Methods in a list such as csq,ics: the last one is completed, those before it are not offered again."""
    *before, _ = incomplete.split(",")
    start = "".join(f"{name}," for name in before)
    every = [] if before else [("all", "all methods")]
    return every + [(start + name, title) for name, title in methods() if name not in before]


def backbones() -> Words:
    """The backbones by name, and the prefix of timm's."""
    from centerhash.networks.backbones import BACKBONES

    rows = [(row.name, f"{row.features} features, {row.megabytes} MB") for row in BACKBONES.values()]
    return [*rows, ("timm:", "any network of timm, by its name there")]


def engines() -> Words:
    """What can run the network."""
    from centerhash.networks.engines.table import ENGINES

    return [("auto", "the fastest here"), *((row.name, row.title) for row in ENGINES.values())]


def presets() -> list[str]:
    """The presets of training."""
    from centerhash.training.presets import preset_names

    return preset_names()


def datasets() -> Words:
    """The published data sets."""
    from centerhash.data.published.catalogue import DATASETS

    return [(row.name, row.title) for row in DATASETS.values()]


def data(incomplete: str) -> Words:
    """A data set to train on: a folder here, or the name of a published one."""
    head, slash, _ = incomplete.rpartition("/")
    place = Path(head + slash).expanduser()
    folders = sorted(path.name for path in place.iterdir() if path.is_dir()) if place.is_dir() else []
    visible = [name for name in folders if not name.startswith(".")]
    return [*datasets(), *((head + slash + name, "folder") for name in visible)]
