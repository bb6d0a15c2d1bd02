"""Settings of a server, and where it listens."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from pydantic import Field, SecretStr

from centerhash.core.errors import ConfigError
from centerhash.core.options import Options, read_options

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_PREFIX = "CENTERHASH_"


class Settings(Options):
    """Settings of a server, most of them limits."""

    password: SecretStr | None = Field(None, description="needed to view anything; None: everyone can")
    hosts: tuple[str, ...] = Field(
        (), description="names that the server answers to, besides its own machine"
    )
    max_upload_mb: float = Field(20.0, gt=0, le=1000, description="largest upload in megabytes")
    max_megapixels: float = Field(50.0, gt=0, le=1000, description="largest image in million pixels")
    uploads: int = Field(16, ge=1, description="uploads at once; more get a 503")
    queue: int = Field(32, ge=0, description="requests of one kind that may wait; more get a 503")
    workers: int = Field(2, ge=1, description="threads that encode images, and as many that search")
    device: str = Field("auto", description="device that encodes images")
    engine: str = Field("auto", description="engine that runs the network: auto, onnx, openvino")

    @property
    def max_body(self) -> int:
        """Largest body of a request in bytes: the image, and some bytes for the form around it."""
        return int(self.max_upload_mb * 1e6) + 16_384

    @property
    def allowed_hosts(self) -> tuple[str, ...]:
        """Host names that the server answers to; empty: all.

        Without this limit, a page of another site could point its own name at this address, and read the photos.
        """
        is_limited = self.password is None or bool(self.hosts)
        return tuple(dict.fromkeys((*LOOPBACK, *self.hosts))) if is_limited else ()

    @property
    def encoding(self) -> dict[str, Any]:
        """How an index reads images: arguments of `open`."""
        return {"device": self.device, "engine": self.engine, "max_pixels": int(self.max_megapixels * 1e6)}

    @classmethod
    def from_environment(cls, options: Mapping[str, Any] | None = None) -> Self:
        """Read the settings from the environment, except those of `options`.

        `CENTERHASH_PASSWORD_FILE` may name a file with the password.
        """
        values: dict[str, Any] = {
            name: os.environ[_PREFIX + name.upper()]
            for name in cls.model_fields
            if os.environ.get(_PREFIX + name.upper())
        }
        if "hosts" in values:
            values["hosts"] = tuple(name.strip() for name in values["hosts"].split(",") if name.strip())
        if file := os.environ.get(f"{_PREFIX}PASSWORD_FILE"):
            values["password"] = read_password(Path(file))
        return read_options(cls, {**values, **(options or {})}, "serving")


def read_password(file: Path) -> str:
    """Return the first line of a file; ConfigError if it cannot be read or is empty."""
    try:
        password = file.read_text(encoding="utf-8").partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the password file '{file}' cannot be read: {error}.") from None
    if not password:
        raise ConfigError(f"the first line of the password file '{file}' is empty: write the password there.")
    return password


def check_public(settings: Settings, host: str) -> None:
    """Raise ConfigError for a server without a password that other machines can reach."""
    is_local = host.lower() == "localhost"
    with suppress(ValueError):
        is_local = ipaddress.ip_address(host).is_loopback
    if settings.password is None and not is_local:
        raise ConfigError(
            f"a server on {host} can be reached by other machines, so it needs a password: set CENTERHASH_PASSWORD or "
            "`password_file=`, or listen on 127.0.0.1."
        )


def listen(host: str, port: int) -> socket.socket:
    """Open a socket; ConfigError if the address or the port is not available."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        # If this fails, create_server would fail too, but leave its socket open.
        host.encode("idna")
        listener = socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"cannot listen on {host}, port {port}: {reason}. Choose another `host=` or `port=`."
        ) from None
    # Connections inherit this option: with Nagle's algorithm the body of a response waits 40 ms for an acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def address_of(host: str, port: int) -> str:
    """Return the URL of a server on `host`; a server on all addresses has the address of the default route."""
    with suppress(ValueError, OSError):
        if ipaddress.IPv4Address(host).is_unspecified:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                # A datagram socket sends nothing when it is connected.
                probe.connect(("203.0.113.1", 9))
                host = probe.getsockname()[0]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
