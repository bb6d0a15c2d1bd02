"""Load a model by its name, its folder or its address on the Hugging Face hub."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from centerhash.core.errors import ConfigError, InputError
from centerhash.model import hub
from centerhash.model.base import Model
from centerhash.model.portable import PortableModel
from centerhash.model.spec import PORTABLE, TORCH_FILES

BUILTIN = ("coco",)  # models that come with the package, made by benchmarks/builtin.py


def load(source: str | Path) -> Model:
    """Load a trained model.

    `source` is "coco" (the built-in model), the folder of a run or of `HashModel.save`, or "hf:owner/name" or
    "hf:owner/name@revision" on the Hugging Face hub. A folder with PyTorch weights returns a `HashModel` if PyTorch is
    installed, and model.onnx a `PortableModel`.
    """
    if not isinstance(source, str | Path):
        raise InputError(f"a model is named by its run's folder, or 'coco', got {type(source).__name__}.")
    folder = model_folder(source)
    has_weights = all((folder / name).exists() for name in TORCH_FILES)
    has_torch = find_spec("torch") is not None
    if (folder / PORTABLE).exists() and not (has_weights and has_torch):
        return PortableModel.load(folder)
    if has_weights and not has_torch:
        raise ConfigError(
            f"the model in '{folder}' has no {PORTABLE}, so it needs PyTorch: pip install 'centerhash[train]', or "
            f"write {PORTABLE} by `centerhash export` where PyTorch is installed."
        )
    if not has_torch:
        return PortableModel.load(folder)  # a clear error
    from centerhash.model.model import HashModel

    return HashModel.load(folder)


def model_folder(source: str | Path) -> Path:
    """Return the folder of a model; a folder here takes precedence over a built-in model of the same name."""
    if str(source).startswith(hub.PREFIX):
        return hub.download(str(source))
    local = Path(source)
    if str(source) in BUILTIN and not any((local / name).exists() for name in (TORCH_FILES[0], PORTABLE)):
        return Path(__file__).parents[1] / "builtin" / str(source)
    return local
