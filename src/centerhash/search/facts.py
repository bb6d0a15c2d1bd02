"""What a question by labels or by id needs of a model: its classes and centers, read without torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from centerhash.codes import Codes
from centerhash.core.errors import ConfigError, DataError
from centerhash.core.files import read_with_checksum, refuse_links, stored_checksums, tensor_checksum


@dataclass(frozen=True, eq=False)
class ModelFacts:
    """The few things about a stored model that need no network."""

    method: str
    backbone: str | None
    bits: int
    classes: tuple[str, ...]
    label_threshold: float  # cosine to a center from which its label is predicted
    known_centers: Codes | None  # (C, K); None for a method without
    directions: NDArray[np.float32] | None = None  # (C, K), what logits are compared with; None: the centers

    @property
    def centers(self) -> Codes:
        """Hash centers (C, K), or ConfigError for a method without."""
        if self.known_centers is None:
            raise ConfigError(
                f"a model of method '{self.method}' has no hash centers, so it knows neither labels nor weights: "
                "train one of a central method, such as ics-softmax."
            )
        return self.known_centers


def read_facts(folder: Path) -> ModelFacts:
    """Read them from the folder of a model, or DataError."""
    refuse_links(folder, ("model.json", "model.safetensors"))
    try:
        spec = read_with_checksum(folder / "model.json")
        classes = tuple(map(str, spec["classes"]))
        with safe_open(folder / "model.safetensors", framework="numpy") as tensors:
            sums, names = stored_checksums(tensors.metadata()), tensors.keys()
            found = {name: tensors.get_tensor(name) for name in ("centers", "directions") if name in names}
        for name, array in found.items():
            content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            if sums is not None and sums.get(name) != tensor_checksum(
                name, array.dtype, array.shape, content
            ):
                raise ValueError(f"the {name} do not match their checksum")
        if sums is not None and sums.keys() != set(names):
            raise ValueError("numbers are missing")
        centers = found["centers"].astype(np.int8) if "centers" in found else None
        directions = found["directions"].astype(np.float32) if "directions" in found else None
        if centers is not None and centers.shape != (len(classes), spec["bits"]):
            raise ValueError(f"centers of shape {centers.shape} do not fit {len(classes)} classes")
        return ModelFacts(
            str(spec["method"]),
            spec.get("backbone"),
            int(spec["bits"]),
            classes,
            float(spec.get("label_threshold") or 0.0),
            centers,
            directions,
        )
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(
            f"'{folder}' holds no finished model (model.json, model.safetensors): create the index again."
        ) from None
    except (OSError, ValueError, TypeError, KeyError, SafetensorError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"the model in '{folder}' is damaged or of another version: {reason}") from None
