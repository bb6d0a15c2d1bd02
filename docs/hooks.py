"""What `make docs` does to the pages: links into the repository, which the site does not hold, become plain text."""

from __future__ import annotations

import posixpath
import re
from typing import Any

_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((\.\./[^)#]*)(?:#[^)]*)?\)")


def without_outside_links(markdown: str, page: str) -> str:
    """The text of the page at the path `page` below docs/, in which links that leave docs/ are only their words."""

    def shown(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), link[2]))
        return link[1] if target.startswith("..") else link[0]

    return _LINK.sub(shown, markdown)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by mkdocs for every page before it is rendered."""
    return without_outside_links(markdown, page.file.src_uri)
