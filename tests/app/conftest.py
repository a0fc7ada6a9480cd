"""The app in a browser. Left out without gradio; skipped without a browser, with the reason."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.browser import CHROMIUM, Browser

collect_ignore = [] if find_spec("gradio") else ["test_app.py"]


@pytest.fixture(scope="module")
def opened(sample_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The app over the sample with two runs, in a browser; and the rows that it shows."""
    if CHROMIUM is None:
        pytest.skip("needs a browser: install chromium")
    import reasonknee_hf as rk
    from reasonknee_app import Cases, launch

    folder = tmp_path_factory.mktemp("app")
    stream = rk.load_dataset("full", split="train", streaming=True, source=str(sample_dir))
    rows = [row for row in stream if row["scan_id"] == next(iter(stream))["scan_id"]]
    runs = {}
    for name, offset in (("base", 1), ("tuned", 0)):
        runs[name] = str(folder / f"{name}.jsonl")
        with open(runs[name], "w") as file:
            for row in rows:
                grades = {g["attribute"]: min(g["grade"] + offset, 1) for g in row["grades"]}
                box = row["bbox"] and [end + offset for end in row["bbox"]]
                said = json.dumps({row["grades"][0]["lesion"]: grades, "bounding_box": box})
                file.write(json.dumps({"id": row["id"], "prediction": said}) + "\n")
    address = launch(Cases(source=str(sample_dir)), runs, wait=False, quiet=True)
    browser = Browser(folder / "profile")
    browser.open(address)
    yield SimpleNamespace(browser=browser, rows=rows, address=address, folder=folder)
    browser.close()
