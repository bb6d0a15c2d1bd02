"""Load a model by its name, its folder or its address on the Hugging Face hub.

Nothing is unpickled, and no code of a model is executed.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from centerhash.core.errors import ConfigError, InputError
from centerhash.model import hub
from centerhash.model.base import Model
from centerhash.model.portable import PortableModel
from centerhash.model.spec import PORTABLE, TORCH_FILES

# These models come with the package; tools/builtin.py trains them.
BUILTIN = ("coco",)


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
    has_portable, has_torch = (folder / PORTABLE).exists(), find_spec("torch") is not None
    if has_weights and not has_portable and not has_torch:
        raise ConfigError(
            f"the model in '{folder}' has no {PORTABLE}, so it needs PyTorch: pip install 'centerhash[train]', or "
            f"write {PORTABLE} by `centerhash export` where PyTorch is installed."
        )
    if has_torch and (has_weights or not has_portable):
        from centerhash.model.model import HashModel

        return HashModel.load(folder)
    return PortableModel.load(folder)


def model_folder(source: str | Path) -> Path:
    """Return the folder of a model: a local one, else the built-in one of this name, else one of the hub."""
    name, local = str(source), Path(source)
    if any((local / file).exists() for file in (TORCH_FILES[0], PORTABLE)):
        return local
    if name in BUILTIN:
        return Path(__file__).parents[1] / "builtin" / name
    return hub.download(name) if name.startswith(hub.PREFIX) else local
