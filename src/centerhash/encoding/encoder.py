"""One part from images or features to codes. All engines encode by this, with the same batches, so codes are equal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import save

from centerhash.codes import pack
from centerhash.core.errors import ImageError
from centerhash.core.prefetch import batches_ahead
from centerhash.encoding.parts import Labels, Part
from centerhash.model import HashModel
from centerhash.networks.backbones import Backbone, choose_device
from centerhash.networks.engines import Engine, open_engine
from centerhash.networks.features import decode, network_cache

BATCH = 32  # images per pass through the network, counted from the start of a part

Seen: TypeAlias = Callable[[int], None]  # called with how many more images are done
Decoded: TypeAlias = NDArray[np.uint8] | ImageError  # pixels (crop, crop, 3), or why there are none


def model_digest(model: HashModel) -> str:
    """A digest of all that decides a model's codes; the place of its weight file does not."""
    tensors = {name: tensor.contiguous() for name, tensor in sorted(model.tensors().items())}
    spec = model.spec.model_dump_json(exclude={"weights"})
    return sha256(spec.encode() + save(tensors)).hexdigest()


class PartEncoder:
    """A model with its network, which is loaded once and used for many parts."""

    def __init__(self, model: HashModel, device: str = "auto") -> None:
        self.model = model
        self._device = choose_device(device)

    @cached_property
    def _backbone(self) -> Backbone:
        return self.model.backbone()

    @cached_property
    def _network(self) -> Engine:
        return open_engine(self._backbone, "auto", self._device, network_cache())

    def encode_images(
        self,
        ids: Sequence[str],
        images: Sequence[Path],
        labels: Sequence[Labels] | None,
        seen: Seen | None = None,
    ) -> Part:
        """Encode n image files; those that cannot be read are left out and named.

        `labels` None: as the model predicts, where it does.
        """
        features = np.zeros((len(images), self.model.spec.features), dtype=np.float32)
        broken: dict[str, str] = {}
        kept: list[int] = []
        start = 0
        for batch in self._decoded(images):
            good = {start + place: one for place, one in enumerate(batch) if isinstance(one, np.ndarray)}
            if good:
                features[list(good)] = self._features(list(good.values()))
            kept += good
            broken |= {
                ids[start + place]: str(one) for place, one in enumerate(batch) if isinstance(one, ImageError)
            }
            start += len(batch)
            if seen is not None:
                seen(len(batch))
        given = None if labels is None else [labels[row] for row in kept]
        return self.encode_features([ids[row] for row in kept], features[kept], given, broken)

    def encode_features(
        self,
        ids: Sequence[str],
        features: NDArray[Any],
        labels: Sequence[Labels] | None,
        broken: Mapping[str, str] | None = None,
    ) -> Part:
        """Encode features (n, D). `labels` None: as the model predicts, where it does."""
        packed = pack(self.model.encode_features(features))
        return Part(ids, packed, self.model.label_names(features) if labels is None else labels, broken or {})

    def _features(self, pixels: Sequence[NDArray[np.uint8]]) -> NDArray[np.float32]:
        return self._network.features(np.stack(pixels))

    def _decoded(self, images: Sequence[Path]) -> Iterator[list[Decoded]]:
        """Yield the pictures batch by batch, decoded by threads ahead of the network."""
        batches = (images[start : start + BATCH] for start in range(0, len(images), BATCH))
        for futures in batches_ahead(self._decode, batches):
            yield [future.result() for future in futures]

    def _decode(self, path: Path) -> Decoded:
        try:
            return decode(path, self._backbone)
        except ImageError as error:
            return error
