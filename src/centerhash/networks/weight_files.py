"""Weight files from a wheel, a URL, the Hugging Face hub or a path, and how they are loaded into a network.

Files are read without running code. torch is imported when a file is read, so that this module is quick to import.
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
    """A file of the user."""

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
    """A file inside an installed Python package, such as "name==version" on PyPI; its path starts in the package."""

    package: str
    file: str

    def __str__(self) -> str:
        return f"pip install {self.package}"

    def find(self) -> Path | None:
        """Return the file if the package is installed; the package is not imported."""
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
                f"these weights come with a package that is not installed: run `{self}`, {_ALTERNATIVES}"
            )
        return path


@dataclass(frozen=True)
class Download:
    """A file at a URL, kept in torch's cache; the hex digits at the end of its name begin its SHA-256."""

    url: str

    def __str__(self) -> str:
        return self.url

    @property
    def path(self) -> Path:
        """The path at which torch.hub keeps the file."""
        cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        home = Path(os.environ.get("TORCH_HOME") or f"{cache}/torch").expanduser()
        return home / "hub" / "checkpoints" / self.url.rpartition("/")[2]

    def find(self) -> Path | None:
        """Return the file if it was downloaded before."""
        return self.path if self.path.is_file() else None

    def fetch(self) -> Path:
        """Return the file; it is downloaded atomically, and checked by its name."""
        if not self.path.is_file():
            from torch.hub import download_url_to_file

            digest = re.search(r"-([0-9a-f]{8,})\.", self.path.name)
            make_folder(self.path.parent)
            with _explained_errors(self.url, f"put the file into '{self.path.parent}',"):
                download_url_to_file(
                    self.url, str(self.path), digest and digest[1], progress=sys.stderr.isatty()
                )
        return self.path


@dataclass(frozen=True)
class Hub:
    """The weights of a repository on the Hugging Face hub, kept in the hub's cache."""

    repository: str

    def find(self) -> Path | None:
        """Return the file if it was downloaded before."""
        from huggingface_hub import try_to_load_from_cache

        path = try_to_load_from_cache(self.repository, _HUB_FILE)
        return Path(path) if isinstance(path, str) else None

    def fetch(self) -> Path:
        """Return the file, downloaded if it is not in the cache."""
        from huggingface_hub import constants, hf_hub_download

        url = f"{constants.ENDPOINT}/{self.repository}/{_HUB_FILE}"
        with _explained_errors(url, "download it by hand and pass it as `weights=`,"):
            return self.find() or Path(hf_hub_download(self.repository, _HUB_FILE))


# `find` returns the file if it is on this machine, else None. `fetch` downloads it if necessary, or raises ConfigError or
# DataError.
WeightSource: TypeAlias = WeightFile | Wheel | Download | Hub


@contextmanager
def _explained_errors(url: str, advice: str) -> Iterator[None]:
    """Turn errors of a download into a DataError with the URL, the reason and the alternatives."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        yield
    # torch raises RuntimeError for a wrong checksum.
    except (OSError, RuntimeError, HTTPException, HfHubHTTPError) as error:
        # This error is an open response.
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        raise DataError(
            f"cannot download the weights from {url}: {first_line(error)}. Try again with a connection, {advice} "
            f"{_ALTERNATIVES}"
        ) from error


def read_weights(path: Path) -> Tensors:
    """Read a safetensors file or a state dict of torch.save, whatever its suffix; code in it is rejected, never run."""
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        with path.open("rb") as stream:
            # Eight bytes of length, then json, begin no zip archive and no pickle.
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
    """Load the weights in a file into a network; those of `classifier` layers, which it lacks, are skipped.

    `translate` renames the tensors of another implementation. DataError names tensors that are missing, superfluous or
    of another shape.
    """
    tensors = read_weights(path)
    if translate is not None:
        tensors = translate(tensors, network)
    skipped = tuple(f"{layer}." for layer in classifier)
    body = {name: tensor for name, tensor in tensors.items() if not name.startswith(skipped)}
    try:
        network.load_state_dict(body)
    except RuntimeError as error:
        problems = shorten(str(error), width=600, placeholder=" ...")
        raise DataError(
            f"'{path}' does not hold the weights of this network: {problems} Pass the file of this backbone "
            "(`backbone=`); a downloaded file may be deleted and is downloaded again."
        ) from None
