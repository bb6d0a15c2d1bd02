"""Pages from templates: a name that is not given is an error."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

_SETTINGS: dict[str, Any] = {"undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}


def templates_of(package: str) -> Environment:
    """The templates of HTML in the folder `templates` of a package, which escape what they are given."""
    return Environment(loader=PackageLoader(package), autoescape=True, **_SETTINGS)


def filled(template: str, **values: Any) -> str:
    """A template of markdown with values put in as they are."""
    environment = Environment(keep_trailing_newline=True, autoescape=False, **_SETTINGS)  # nosec B701
    return environment.from_string(template).render(**values)
