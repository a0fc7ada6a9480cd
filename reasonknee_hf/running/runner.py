"""Asks a model every question of a benchmark, scan by scan, and keeps what it answered.

`OUT/predictions.jsonl` gets a line for each answer as it comes, on the disk before the next question: `{"id",
"prediction"}`, or `{"id", "error"}`, which is no answer and is asked again by the next run. `OUT/run.json` says what
was asked of whom; `OUT/scans.jsonl` holds a hash of the frames and of the prompts of each scan.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np
from datasets.utils import tqdm

from reasonknee_hf.dataset.contract import described
from reasonknee_hf.dataset.loading import load_dataset
from reasonknee_hf.errors import RecordError, StateError
from reasonknee_hf.hub.disk import write_file
from reasonknee_hf.running.backends import Asked, Backend, BackendError, Drawn, make_backend
from reasonknee_hf.running.presets import view_for
from reasonknee_hf.train.chats import Style, make_style, messages, row_view, row_volume
from reasonknee_hf.train.recipes import Recipe
from reasonknee_hf.version import __version__

logger = logging.getLogger(__name__)
_MOST_FAILURES = 20


@dataclass(frozen=True)
class Finished:
    """What came of a run.

    Args:
        predictions: The file of answers.
        answered, failed: Questions with an answer, and those that ended in an error and will be asked again.
    """

    predictions: Path
    answered: int
    failed: int


def run(
    model: Any,
    *,
    out: str | os.PathLike[str],
    backend: str = "transformers",
    config: str = "bench",
    split: str = "test",
    setting: str = "zero_shot",
    target: str | None = None,
    view: str | Recipe | None = None,
    view_options: Mapping[str, Any] | None = None,
    limit: int | None = None,
    on_error: str = "raise",
    generation: Mapping[str, Any] | None = None,
    opening: Mapping[str, Any] | None = None,
    style: Mapping[str, Any] | None = None,
    **options: Any,
) -> Finished:
    """Runs a model over a benchmark, or goes on with a run.

        run("Qwen/Qwen2.5-VL-3B-Instruct", out="runs/qwen")
        run("my-model", backend="openai", url="http://localhost:8000/v1", out="runs/mine")

    Args:
        model: Name of a model, for the backend `function` `"module:function"`.
        out: Folder of the run.
        backend: `transformers`, `openai` or `function`.
        config, split: What is asked: `bench`, or `dataset/config`.
        setting, target: How it is asked, and what for; as the dataset has them.
        view: What is shown; by default what the family of the model takes, see `PRESETS`.
        view_options: Fields of the view to change, such as `{"size": 448}`.
        limit: The first so many questions.
        on_error: What records that do not fit do, as in `load_dataset`. A volume that is missing is an error of its
            questions in any case; `"null"` and `"skip"` read every volume and mask once more to look.
        generation: Options of generation, as the backend calls them.
        opening: What opens the release: `source`, `revision`, `endpoint`, `images`.
        style: More options of chats: `coordinates`, `prompts`, `system`, `regions`, …
        options: Of the backend: `device`, `dtype`, `batch_size`, `revision`; `url`, `key`, `concurrency`.

    Raises:
        OptionError: An option has no such value; a view would give the answer away.
        BackendError: The model cannot be asked. Before a volume is read, where that can be known.
        StateError: The folder holds a run with other settings; the message says what differs.

    Examples:
        >>> from tempfile import mkdtemp
        >>> from reasonknee_hf.running import run
        >>> out = mkdtemp()
        >>> run(lambda chat: "{}", backend="function", out=out, limit=2, opening={"source": "sample"}).answered
        2
    """
    root, generation = Path(out), dict(generation or {})
    asks = make_backend(backend, model, url=options.pop("url", None), generation=generation, **options)
    dataset = described(config.partition("/")[0] if "/" in config else None)
    recipe = view_for(str(model), view, videos=asks.videos, **(view_options or {}))
    chats = make_style(
        {
            "setting": setting,
            "view": recipe,
            "target": target,
            "dataset": dataset.name,
            "asked_only": True,
            **(style or {}),
        }
    )
    rows: Any = load_dataset(config, split=split, streaming=True, on_error=on_error, **(opening or {}))
    told = {
        "model": getattr(asks, "model", str(model)),
        "model_revision": options.get("revision"),
        "backend": asks.name,
        "backend_version": asks.version,
        "dataset": dataset.name,
        "config": config,
        "split": split,
        "release": _release_of(rows),
        "setting": setting,
        "target": target,
        "view": asdict(recipe),
        "style": {key: str(value) for key, value in (style or {}).items()},
        "generation": generation,
        "package": __version__,
    }
    done = _begin(root, json.loads(json.dumps(told, default=str)))
    asks.check()
    return _Run(root, asks, chats, done).go(islice(rows, limit), limit or rows.num_rows)


def _release_of(rows: Any) -> str:
    from reasonknee_hf.dataset.stream import rows_behind

    return ", ".join(dict.fromkeys(one.release.identity for one in rows_behind(rows)))


def _begin(root: Path, told: Mapping[str, Any]) -> set[str]:
    """The ids that are answered. Makes the folder, or checks that it holds the same run."""
    path, answers = root / "run.json", root / "predictions.jsonl"
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        differing = [key for key in told if before.get(key) != told[key]]
        if differing:
            what = "; ".join(f"{key}: {before.get(key)!r}, now {told[key]!r}" for key in differing)
            raise StateError(f"{root} holds a run with other settings ({what}). Take another folder.")
    elif answers.exists():
        raise StateError(f"{answers} is there without a run.json: take another folder.")
    else:
        write_file(path, json.dumps(told, indent=2, ensure_ascii=False).encode())
    return {line["id"] for line in _whole_lines(answers) if "prediction" in line}


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file; one that was cut when a run was killed is taken off it."""
    if not path.exists():
        return []
    lines, end = [], 0
    with path.open("r+b") as file:
        for line in file:
            if not line.endswith(b"\n"):
                break
            lines.append(json.loads(line))
            end += len(line)
        file.truncate(end)
    return lines


class _Run:
    """A run in progress."""

    def __init__(self, root: Path, backend: Backend, style: Style, done: set[str]) -> None:
        self._root, self._backend, self._style, self._done = root, backend, style, done
        self._scans = {line["scan_id"]: line for line in _whole_lines(root / "scans.jsonl")}
        self._failed, self._in_a_row = 0, 0

    def go(self, rows: Iterator[Mapping[str, Any]], total: int | None) -> Finished:
        with (
            (self._root / "predictions.jsonl").open("ab") as file,
            tqdm(total=total, desc=str(self._root), unit="question") as bar,
        ):
            for scan_id, of_scan in groupby(rows, key=lambda row: row["scan_id"]):
                self._scan(str(scan_id), list(of_scan), file, bar)
        return Finished(self._root / "predictions.jsonl", len(self._done), self._failed)

    def _scan(self, scan_id: str, rows: Sequence[Mapping[str, Any]], file: Any, bar: Any) -> None:
        # Rows that repeat an id are one question.
        left = [*{row["id"]: row for row in rows if row["id"] not in self._done}.values()]
        bar.update(len(rows) - len(left))
        if not left:
            return
        drawn: dict[str, Drawn] = {}
        frames, prompts, batch = sha256(), sha256(), []
        for row in left:
            try:
                asked = self._asked(row, drawn)
            except (OSError, RecordError) as error:  # a volume that is missing, or cannot be drawn
                self._keep([row], [error], file, bar)
                continue
            prompts.update(self._text(asked).encode())
            batch.append(asked)
            if len(batch) == self._backend.at_once:
                self._ask(batch, file, bar)
                batch = []
        if batch:
            self._ask(batch, file, bar)
        for name in sorted(drawn):
            frames.update(np.ascontiguousarray(drawn[name].pictures).data)
        if len(left) == len(rows):
            self._note(scan_id, frames.hexdigest(), prompts.hexdigest())

    def _asked(self, row: Mapping[str, Any], drawn: dict[str, Drawn]) -> Asked:
        view = row_view(row, self._style)
        key = repr(view)
        if key not in drawn:
            drawn[key] = Drawn(view, view.draw(row_volume(row)))
        return Asked(row, drawn[key])

    def _text(self, asked: Asked) -> str:
        return str(messages(asked.row, self._style, asked.drawn.view, [])[-1]["content"])

    def _ask(self, batch: Sequence[Asked], file: Any, bar: Any) -> None:
        self._keep([one.row for one in batch], self._backend.answer(batch, self._style), file, bar)

    def _keep(self, rows: Sequence[Mapping[str, Any]], said: Sequence[Any], file: Any, bar: Any) -> None:
        """Writes answers and errors, on the disk before anything else is asked."""
        for row, answer in zip(rows, said, strict=True):
            failed = isinstance(answer, Exception)
            line = {"error": f"{type(answer).__name__}: {answer}"} if failed else {"prediction": answer}
            file.write(json.dumps({"id": row["id"]} | line, ensure_ascii=True).encode() + b"\n")
            self._failed += failed
            self._in_a_row = self._in_a_row + 1 if failed else 0
            if not failed:
                self._done.add(row["id"])
        file.flush()
        os.fsync(file.fileno())
        bar.update(len(rows))
        if self._in_a_row >= _MOST_FAILURES:
            raise BackendError(
                f"{self._in_a_row} questions in a row ended in errors, the last one in: {said[-1]}. What was answered"
                f" stands in {file.name}; the same call goes on behind it."
            )

    def _note(self, scan_id: str, frames: str, prompts: str) -> None:
        line = {"scan_id": scan_id, "frames": frames, "prompts": prompts}
        before = self._scans.get(scan_id)
        if before is not None and before != line:
            raise StateError(f"{scan_id}: frames or prompts are others than when {self._root} was begun.")
        if before is None:
            with (self._root / "scans.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
