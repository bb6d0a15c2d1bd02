"""Run the notebook of the docs on the sample photos and store its output: `python -m tools.notebook`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.reporting import ROOT

NOTEBOOK = ROOT / "docs" / "tutorials" / "quickstart.ipynb"
PHOTOS = ROOT / "examples" / "photos"
_METADATA = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}


def executed(notebook: Path, folder: Path) -> dict[str, Any]:
    """Run the cells of a notebook in `folder`; return it as json, without times and numbers of runs."""
    import nbformat
    from nbclient import NotebookClient

    book = nbformat.read(notebook, as_version=4)
    shutil.copytree(PHOTOS, folder / "photos")
    NotebookClient(
        book, timeout=None, coalesce_streams=True, resources={"metadata": {"path": str(folder)}}
    ).execute()
    book.metadata = nbformat.from_dict(_METADATA)
    for cell in book.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.execution_count = None
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            for output in cell.outputs:
                if "execution_count" in output:
                    output.execution_count = None
    nbformat.validate(book)
    # Paths of this machine become relative ones.
    return dict(json.loads(nbformat.writes(book).replace(f"{folder.resolve()}/", "")))


def main() -> None:
    """Run the notebook and store it."""
    with TemporaryDirectory() as folder:
        book = executed(NOTEBOOK, Path(folder))
    NOTEBOOK.write_text(json.dumps(book, indent=1, ensure_ascii=False, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
