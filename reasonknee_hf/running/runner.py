"""Asks a model every question of a benchmark, scan by scan, and keeps what it answered.

`OUT/predictions.jsonl` gets a line for each answer as it comes, on the disk before the next one is waited for: `{"id",
"prediction", "prompt"}` with a hash of the text that the model was given, or `{"id", "error"}`, which is no answer and
is asked again by the next run. `OUT/run.json` says what was asked of whom; `OUT/scans.jsonl` holds a hash of the frames
of each view of a scan.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np
from datasets.utils import tqdm

from reasonknee_hf.config_names import ConfigName, OwnConfig
from reasonknee_hf.dataset.contract import described
from reasonknee_hf.dataset.joining import OnError
from reasonknee_hf.dataset.loading import load_dataset
from reasonknee_hf.errors import OptionError, ReasonKneeError, StateError, is_outage
from reasonknee_hf.hub.disk import alone, write_file
from reasonknee_hf.prompting.chats import Style, make_style, messages, row_view, row_volume
from reasonknee_hf.prompting.recipes import Recipe
from reasonknee_hf.prompting.view import View
from reasonknee_hf.running.asking import Asked, Backend, BackendError, Drawn
from reasonknee_hf.running.backends import BackendName, make_backend
from reasonknee_hf.running.presets import view_for
from reasonknee_hf.version import __version__

_MOST_FAILURES = 20
_OF_TUNED = {"sft": "zero_shot", "sft_gt_region": "gt_region"}


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
    backend: BackendName = "transformers",
    config: ConfigName | OwnConfig = "bench",
    split: str = "test",
    setting: str = "zero_shot",
    target: str | None = None,
    view: str | Recipe | None = None,
    view_options: Mapping[str, Any] | None = None,
    limit: int | None = None,
    on_error: OnError = "raise",
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
        setting, target: How it is asked, and what for; as the dataset has them. `sft` and `sft_gt_region` ask a model
            that was fine-tuned what it was asked in training: `zero_shot` and `gt_region`.
        view: What is shown; by default what the family of the model takes, see `PRESETS`.
        view_options: Fields of the view to change, such as `{"size": 448}`.
        limit: The first so many questions.
        on_error: What records that do not fit do, as in `load_dataset`. A volume that is missing is an error of its
            questions in any case; `"null"` and `"skip"` read every volume and mask once more to look.
        generation: Options of generation, as the backend calls them.
        opening: What opens the release: `source`, `revision`, `endpoint`, `images`.
        style: More options of chats: `coordinates`, `prompts`, `system`, `regions`, …
        options: Of the backend: `device`, `dtype`, `batch_size`, `revision`; `url`, `key`, `concurrency`; `seed`.

    Raises:
        OptionError: An option has no such value; a view would give the answer away.
        BackendError: The model cannot be asked. Before a volume is read, where that can be known.
        StateError: The folder holds a run with other settings; the message says what differs. Or another process is
            at it.
        EndpointError: The release cannot be reached; the same call goes on.

    Examples:
        >>> from tempfile import mkdtemp
        >>> from reasonknee_hf.running import run
        >>> out = mkdtemp()
        >>> run(lambda chat: "{}", backend="function", out=out, limit=2, opening={"source": "sample"}).answered
        2
    """
    root = Path(out)
    asks = make_backend(backend, model, url=options.pop("url", None), generation=generation or {}, **options)
    dataset = described(config.partition("/")[0] if "/" in config else None)
    name = config.rpartition("/")[2]
    if name in dataset.configs and not dataset.configs[name].asks:
        raise OptionError(f"the config {name!r} of {dataset.title} asks nothing. Take one with questions.")
    recipe = view_for(str(model), view, videos=asks.videos, **(view_options or {}))
    asked_as = {
        "setting": _OF_TUNED.get(setting, setting),
        "view": recipe,
        "target": target,
        "dataset": dataset.name,
        "asked_only": True,
    }
    chats = make_style(asked_as | dict(style or {}))
    rows: Any = load_dataset(config, split=split, streaming=True, on_error=on_error, **(opening or {}))
    told = {
        "model": asks.model,
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
        "style": {key: _told(value) for key, value in (style or {}).items()},
        "generation": dict(asks.generation),
        "seed": options.get("seed"),
        "dtype": options.get("dtype"),
        "package": __version__,
    }
    told = json.loads(json.dumps(told, default=str))
    with alone(root / ".lock", 0) as free:
        if not free:
            raise StateError(f"{root}: another process is at this run. Wait for it, or take another folder.")
        _refuse_another(root, told)
        told |= {"model_commit": asks.check()}
        _refuse_another(root, told)
        if not (root / "run.json").exists():
            write_file(root / "run.json", json.dumps(told, indent=2, ensure_ascii=False).encode())
        return _Run(root, asks, chats).go(islice(rows, limit), limit or rows.num_rows)


def _told(value: Any) -> str:
    """An option in words that are the same in every process: functions are told by their names."""
    return f"{value.__module__}:{value.__qualname__}" if hasattr(value, "__qualname__") else str(value)


def _release_of(rows: Any) -> str:
    from reasonknee_hf.dataset.stream import rows_behind

    return ", ".join(dict.fromkeys(one.release.identity for one in rows_behind(rows)))


def _refuse_another(root: Path, told: Mapping[str, Any]) -> None:
    """Refuses a folder that holds answers to something else."""
    path, answers = root / "run.json", root / "predictions.jsonl"
    if not path.exists():
        if answers.exists():
            raise StateError(f"{answers} is there without a run.json: take another folder.")
        return
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
        differing = [key for key in told if before.get(key) != told[key]]
    except (ValueError, AttributeError) as error:
        raise StateError(f"{path} is not what a run writes ({error}): take another folder.") from error
    if differing:
        what = "; ".join(f"{key}: {before.get(key)!r}, now {told[key]!r}" for key in differing)
        raise StateError(f"{root} holds a run with other settings ({what}). Take another folder.")


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file; one that was cut when a run was killed is taken off it."""
    if not path.exists():
        return []
    lines, end = [], 0
    with path.open("r+b") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                break
            try:
                lines.append(json.loads(line))
                lines[-1]["id" if path.stem == "predictions" else "scan_id"]
            except (ValueError, LookupError, TypeError) as error:
                raise StateError(f"{path}, line {number}, is not what a run writes ({error!r}).") from error
            end += len(line)
        file.truncate(end)
    return lines


class _Run:
    """A run in progress."""

    def __init__(self, root: Path, backend: Backend, style: Style) -> None:
        self._root, self._backend, self._style = root, backend, style
        lines = _whole_lines(root / "predictions.jsonl")
        self._done = {line["id"] for line in lines if "prediction" in line}
        self._frames = {line["scan_id"]: line["frames"] for line in _whole_lines(root / "scans.jsonl")}
        self._failed = self._in_a_row = 0
        # Why nothing more is asked; raised when the answers that are under way have been kept.
        self._ended: Exception | None = None

    def go(self, rows: Iterable[Mapping[str, Any]], total: int | None) -> Finished:
        path = self._root / "predictions.jsonl"
        with (
            path.open("ab") as self._file,
            tqdm(total=total, desc=str(self._root), unit="question") as self._bar,
        ):
            for asked, said in self._backend.answers(self._questions(rows), self._style):
                self._keep(asked.row, said, {"prompt": self._prompt_of(asked)})
        if self._ended is not None:
            raise self._ended
        return Finished(path, len(self._done), self._failed)

    def _questions(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[Asked]:
        try:
            for scan_id, of_scan in groupby(rows, key=lambda row: row["scan_id"]):
                for asked in self._of_scan(str(scan_id), list(of_scan)):
                    if self._ended is not None:
                        return
                    yield asked
        except Exception as error:
            self._ended = error

    def _of_scan(self, scan_id: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[Asked]:
        """The questions about a scan that have no answer, each view of it drawn once."""
        left = {
            row["id"]: row for row in rows if row["id"] not in self._done
        }  # rows of one id are one question
        self._bar.update(len(rows) - len(left))
        views: dict[str, tuple[View, list[Mapping[str, Any]]]] = {}
        for row in left.values():
            with self._unfit([row]):
                view = row_view(row, self._style)
                views.setdefault(repr(view), (view, []))[1].append(row)
        frames = {}
        for key, (view, alike) in views.items():
            with self._unfit(alike):
                drawn = Drawn(view, view.draw(row_volume(alike[0])))
                frames[_short(key.encode())] = _short(np.ascontiguousarray(drawn.pictures).data)
                yield from (Asked(row, drawn) for row in alike)
        self._note(scan_id, frames)

    @contextmanager
    def _unfit(self, rows: Sequence[Mapping[str, Any]]) -> Iterator[None]:
        """Keeps what is wrong with a volume as the error of its questions. An outage is none, and ends the run."""
        try:
            yield
        except (OSError, ReasonKneeError) as error:
            if is_outage(error) or isinstance(error, OptionError):
                raise
            for row in rows:
                self._keep(row, error, {}, of_model=False)

    def _prompt_of(self, asked: Asked) -> str:
        """A hash of all text that the model was given."""
        chat = messages(asked.row, self._style, asked.drawn.view, [])
        return _short(json.dumps([message["content"] for message in chat]).encode())

    def _keep(
        self, row: Mapping[str, Any], said: str | Exception, more: Mapping[str, Any], of_model: bool = True
    ) -> None:
        """Writes an answer or an error, on the disk before anything else is asked."""
        failed = isinstance(said, Exception)
        line = {"error": f"{type(said).__name__}: {said}"} if failed else {"prediction": said, **more}
        self._file.write(json.dumps({"id": row["id"]} | line, ensure_ascii=True).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._bar.update()
        self._failed += failed
        if not failed:
            self._done.add(row["id"])
        if of_model:
            self._in_a_row = self._in_a_row + 1 if failed else 0
        if isinstance(said, BackendError):
            self._ended = self._ended or said
        elif self._in_a_row >= _MOST_FAILURES:
            self._ended = self._ended or BackendError(
                f"{self._in_a_row} questions in a row ended in errors, the last one in: {said}. What was answered"
                f" stands in {self._file.name}; the same call goes on behind it."
            )

    def _note(self, scan_id: str, frames: Mapping[str, str]) -> None:
        before = self._frames.get(scan_id, {})
        if any(before.get(view, frame) != frame for view, frame in frames.items()):
            raise StateError(f"{scan_id}: its frames are others than when {self._root} was begun.")
        if frames.keys() - before.keys():
            self._frames[scan_id] = {**before, **frames}
            with (self._root / "scans.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps({"scan_id": scan_id, "frames": self._frames[scan_id]}) + "\n")


def _short(data: Any) -> str:
    return sha256(data).hexdigest()[:32]
