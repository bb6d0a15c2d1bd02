"""Adapt the pages for `make docs`: links to files outside docs/ lead to the repository, and a notebook becomes a page."""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import Any

_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((\.\./[^)#]*)(#[^)]*)?\)")
NOTEBOOK = ".ipynb"


def with_repository_links(markdown: str, page: str, repository: str) -> str:
    """Return a page in which links that leave docs/ lead to the repository; `page` is its path below docs/."""

    def shown(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link[2]))
        if target.startswith("docs/"):
            return link[0]
        kind = "blob" if posixpath.splitext(target)[1] else "tree"
        return f"[{link[1]}]({repository}/{kind}/main/{target}{link[3] or ''})"

    return _LINK.sub(shown, markdown)


def notebook_markdown(text: str) -> str:
    """Return a notebook (json) as markdown: its text, its code, and its output, as HTML if there is any."""
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


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Called by mkdocs for every page before it is rendered."""
    return with_repository_links(markdown, page.file.src_uri, config.repo_url.rstrip("/"))
