"""Executes notebooks, each in a folder of its own, and writes them with their outputs.

python docs/tools/run_notebooks.py OUT NOTEBOOK...
python docs/tools/run_notebooks.py --strip NOTEBOOK...    takes outputs and counts out of notebooks, as they are in git
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",  # what a notebook needs comes with the package
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "TQDM_DISABLE": "1",
    "PYTHONWARNINGS": "ignore",  # of the kernel about the terminal it has not
}


def execute(path: Path, out: Path) -> None:
    """Runs all cells with this interpreter and writes `out / path.name`.

    Raises:
        CellExecutionError: A cell failed; it shows which one, and how.
    """
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": folder}})
        client.create_kernel_manager().kernel_spec.argv[0] = sys.executable
        client.execute()
    out.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, out / path.name)


def stripped(notebook: dict[str, Any]) -> dict[str, Any]:
    """The same notebook as it lies in git: without outputs, counts and what a machine noted."""
    for cell in notebook["cells"]:
        cell["metadata"] = {}
        if cell["cell_type"] == "code":
            cell |= {"outputs": [], "execution_count": None}
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return notebook | {"metadata": {"kernelspec": kernel}}


def written(notebook: dict[str, Any]) -> str:
    """The text of a notebook file."""
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def main(arguments: list[str]) -> None:
    if arguments[0] == "--strip":
        for path in map(Path, arguments[1:]):
            path.write_text(written(stripped(json.loads(path.read_text(encoding="utf-8")))), encoding="utf-8")
        return
    os.environ |= ENVIRONMENT
    for path in map(Path, arguments[1:]):
        execute(path, Path(arguments[0]))


if __name__ == "__main__":
    main(sys.argv[1:])
