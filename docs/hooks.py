"""What `make docs` does to the pages: links into the repository, which the site does not hold, become plain text; a
notebook becomes a page.
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import Any

_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((\.\./[^)#]*)(?:#[^)]*)?\)")
NOTEBOOK = ".ipynb"


def without_outside_links(markdown: str, page: str) -> str:
    """The text of the page at the path `page` below docs/, in which links that leave docs/ are only their words."""

    def shown(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), link[2]))
        return link[1] if target.startswith("..") else link[0]

    return _LINK.sub(shown, markdown)


def notebook_markdown(text: str) -> str:
    """A notebook (json) as markdown: its text, its code, and what that showed, as html where there is some."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {"text/plain": output.get("text", "")})
            html = "".join(data.get("text/html", ""))
            parts.append(
                f"<div>{html}</div>" if html else f"```\n{''.join(data['text/plain']).rstrip()}\n```"
            )
    return "\n\n".join(parts)


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Called by mkdocs with all files: a notebook is a page, not a file to download."""
    from mkdocs.structure.files import File

    class Notebook(File):
        def is_documentation_page(self) -> bool:
            return True

    for file in list(files):
        if file.src_uri.endswith(NOTEBOOK):
            files.remove(file)
            files.append(Notebook(file.src_uri, config.docs_dir, config.site_dir, config.use_directory_urls))
    return files


def on_page_read_source(page: Any, **_: Any) -> str | None:
    """Called by mkdocs before it reads a page."""
    path = Path(page.file.abs_src_path)
    return notebook_markdown(path.read_text(encoding="utf-8")) if path.suffix == NOTEBOOK else None


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by mkdocs for every page before it is rendered."""
    return without_outside_links(markdown, page.file.src_uri)
