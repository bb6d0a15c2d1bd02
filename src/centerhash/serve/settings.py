"""What can be set about a server."""

from __future__ import annotations

from pydantic import Field, SecretStr

from centerhash.core.options import Options

MEGABYTE = 1_000_000


class Settings(Options):
    """The limits of a server; every one of them is there so that no request can take it down."""

    token: SecretStr | None = Field(
        None, description="what a request must bring to add or remove; None: nobody may"
    )
    read_only: bool = Field(False, description="refuse to add and remove even with the token")
    max_upload_mb: float = Field(20.0, gt=0, le=1000, description="largest upload in megabytes")
    max_megapixels: float = Field(50.0, gt=0, le=1000, description="largest image in million pixels")
    device: str = Field("auto", description="that images are encoded on")
    engine: str = Field("auto", description="that runs the network: auto, torch, onnx, openvino")
    queue: int = Field(
        32, ge=0, description="requests of one kind that may wait for a worker; more get a 503"
    )
    connections: int = Field(512, ge=1, description="open connections; more are sent away with a 503")
    timeout: float = Field(30.0, gt=0, description="seconds that a request may take, slow clients included")
    workers: int = Field(2, ge=1, description="threads that decode images, and as many that search")
    thumbnail_mb: float = Field(64.0, gt=0, description="memory for thumbnails in megabytes")
    hosts: tuple[str, ...] = Field((), description="names that the server answers to; empty: any")

    @property
    def max_upload(self) -> int:
        """Largest body of a request in bytes: the image, and a little for the form around it."""
        return int(self.max_upload_mb * MEGABYTE) + 16_384

    @property
    def may_write(self) -> bool:
        """Whether any request can change the index."""
        return self.token is not None and not self.read_only
