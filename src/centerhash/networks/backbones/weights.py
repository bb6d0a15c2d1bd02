"""Weight files into networks: read without running code, fitted by name, and what does not fit is named."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from centerhash.core.errors import DataError

Tensors: TypeAlias = dict[str, Tensor]
Translate: TypeAlias = Callable[[Tensors, nn.Module], Tensors]

# of checkpoints that hold more than the weights, and of networks that were wrapped when they were saved
_WRAPPERS = ("state_dict_ema", "state_dict", "model", "model_state_dict")
_PREFIXES = ("module.", "model.", "network.", "_orig_mod.")


def read_weights(path: Path) -> Tensors:
    """Read a safetensors file or a state dict of torch.save by its content; code in it is refused, never run.

    Prefixes that all names share because the network was wrapped (`module.`, `model.`) are taken off.
    """
    try:
        stored = load_file(path) if _is_safetensors(path) else _load_plain(path)
    except pickle.UnpicklingError:
        raise DataError(
            f"'{path}' is no plain state dict: reading it would run code, or it is damaged. Save the network's "
            "state_dict() alone, best by safetensors.torch.save_file, and pass that file."
        ) from None
    except (OSError, SafetensorError, RuntimeError, EOFError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"'{path}' is damaged or no weight file: {reason}") from None
    return _without_prefixes(_tensors_of(stored, path))


def _is_safetensors(path: Path) -> bool:
    """Eight bytes of length, then json: neither a zip archive nor a pickle looks like that."""
    with path.open("rb") as stream:
        return stream.read(9)[8:] == b"{"


def _load_plain(path: Path) -> Any:
    return torch.load(path, map_location="cpu", weights_only=True)


def _tensors_of(stored: Any, path: Path) -> Tensors:
    """The tensors by name, also out of a training checkpoint."""
    if isinstance(stored, Mapping):
        inner = next((stored[name] for name in _WRAPPERS if isinstance(stored.get(name), Mapping)), stored)
        if inner and all(isinstance(value, Tensor) for value in inner.values()):
            return {str(name): value for name, value in inner.items()}
    raise DataError(
        f"'{path}' holds no state dict (names with a tensor each): save the network's state_dict() and pass that."
    )


def _without_prefixes(tensors: Tensors) -> Tensors:
    for prefix in _PREFIXES:
        if all(name.startswith(prefix) for name in tensors):
            return _without_prefixes({name.removeprefix(prefix): t for name, t in tensors.items()})
    return tensors


def load_weights(
    network: nn.Module, path: Path, classifier: Sequence[str], translate: Translate | None = None
) -> None:
    """Load the weights in a file into `network`, with or without the `classifier` layers, which it lacks.

    `translate` gives the names of another implementation those of this network. What is missing, too much or of
    another shape raises DataError by name.
    """
    tensors = read_weights(path)
    if translate is not None:
        tensors = translate(tensors, network)
    expected = network.state_dict()
    of_classifier = tuple(f"{layer}." for layer in classifier)
    problems = {
        "missing": [
            name
            for name in expected
            if name not in tensors and not name.endswith("num_batches_tracked")  # old files lack the counts
        ],
        "too much": [name for name in tensors if name not in expected and not name.startswith(of_classifier)],
        "of another shape": [
            f"{name} {tuple(tensor.shape)}, not {tuple(expected[name].shape)}"
            for name, tensor in tensors.items()
            if name in expected and tensor.shape != expected[name].shape
        ],
    }
    found = [f"{len(names)} {problem} ({_some(names)})" for problem, names in problems.items() if names]
    if found:
        raise DataError(
            f"'{path}' does not hold the weights of this network ({len(expected)} tensors): {'; '.join(found)}. "
            "Pass the file of this backbone (`backbone=`); a downloaded one may be deleted to fetch it again."
        )
    network.load_state_dict({name: tensors[name] for name in expected if name in tensors}, strict=False)


def _some(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")
