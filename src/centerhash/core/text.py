"""Text of others, which may be no text, or more than text."""

from __future__ import annotations

import re

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def visible(text: str) -> str:
    """Show control characters, which would steer a terminal, as their escapes; lines and tabs stay."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def is_text(name: str) -> bool:
    """Whether a name can be written as UTF-8; those of files on Linux may be other bytes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
