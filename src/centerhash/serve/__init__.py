"""The server: search by image, id or labels over HTTP, and one page for people."""

from centerhash.serve.app import create_app
from centerhash.serve.settings import Settings

__all__ = ["Settings", "create_app"]
