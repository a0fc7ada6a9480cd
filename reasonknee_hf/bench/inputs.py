"""Prediction files, as people have them, merged by id.

- Rows with an `id` and a `prediction`, which is raw model text or an object: JSON lines, a JSON list, CSV (with
  commas, semicolons or tabs), Parquet, a data frame. What other programs write is known too, see `runner_rows`. A
  number `confidence` beside it is kept for the curve of risk and coverage.
- The dict that the published zero-shot scripts write: the key is the id, the member that ends in `_result`
  the answer; an entry without one was never answered. (After a failed call one of these scripts writes the
  result of the item before once more. It is for another lesion, and so no answer.)
- Rows that name their item in the benchmark's own way, e.g. the list that the published SFT script writes:
  `generated_text` is the answer; the id comes from `image` and from the question that `prompt` asks.
  `final_diagnosis` is the reference there and is never read.

Which one a file is shows from its content. Merging is by id and independent of the order of files and
lines: identical repeats are counted and ignored. Repeats that differ are not one run. By `conflicts`:

- `"raise"` (default): a [`PredictionError`];
- `"invalid"`: the item has no valid answer (reason `conflicting`).

An entry that holds no answer (`null`, blank text, `{}`, `[]`, or nothing but an `error`) is passed over
wherever the same item is answered: a run that was resumed has both. It is no conflict, and it is counted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from reasonknee_hf.bench.prediction_tables import kind_of_table, rows_of_file, rows_of_object
from reasonknee_hf.bench.runner_rows import ID_KEYS, Columns, told_by
from reasonknee_hf.errors import OptionError, PredictionError

Conflicts = Literal["raise", "invalid"]
Predictions: TypeAlias = (
    "str | os.PathLike[str] | Mapping[str, Any] | Iterable[str | os.PathLike[str] | Mapping[str, Any]]"
)
NamedByRow: TypeAlias = "Callable[[Mapping[str, Any]], Entry | None]"
"""Gives the entry of a row that names its item in the benchmark's own way; see `Scorer.entry`."""

_FOUND = Columns()

CONFLICTING = object()
"""Stands for the answer of an item whose conflicting repeats make it invalid."""


class Entry(NamedTuple):
    """One answer as found in a file.

    Args:
        id: The item it answers; `None` where the file names it by scan and prompt only and the prompt is
            unknown.
        answer: Raw text or object.
        scan_id: The scan, where the file gives it instead of an id.
        prompt: The prompt, likewise.
        confidence: How sure the model was, on any scale, if the file says so.
        form: What kind of file it stood in.
    """

    id: str | None
    answer: Any
    scan_id: str | None = None
    prompt: str | None = None
    confidence: float | None = None
    form: str = "rows"


@dataclass
class Merged:
    """Answers by item id, and what was seen on the way.

    Args:
        answers: Item id to answer.
        entries: Number of entries read.
        repeats: Identical repeats ignored.
        passed_over: Entries without an answer, each beside another entry for the same item that was kept.
        conflicts: Ids, sorted, that were answered in different ways.
        unknown: Ids, sorted, that no reference has.
        respelled: Ids matched only after leading zeros, blanks and `.nii.gz` were ignored.
        confidences: Item id to confidence, where the entry that counts has one.
        forms: The kinds of files that entries stood in.
    """

    answers: dict[str, Any] = field(default_factory=dict)
    entries: int = 0
    repeats: int = 0
    passed_over: int = 0
    conflicts: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    respelled: int = 0
    confidences: dict[str, float] = field(default_factory=dict)
    forms: set[str] = field(default_factory=set)


def read_entries(
    predictions: Predictions, named: NamedByRow = lambda row: None, columns: Columns = _FOUND
) -> Iterator[Entry]:
    """The entries of prediction files or of objects in memory.

    Args:
        predictions: A path, a mapping of id to answer, rows `{"id", "prediction"}`, a data frame of them, or
            an iterable of paths or rows.
        named: How the benchmark's own rows name their item.
        columns: Names of the columns of ids and answers, where they are not to be found.

    Raises:
        PredictionError: A file cannot be read or is none of the known kinds, or no file holds anything.
    """
    given = [predictions] if isinstance(predictions, str | os.PathLike) else rows_of_object(predictions)
    if isinstance(given, Mapping):
        yield from _from_mapping(given, "the predictions")
        return
    paths, filled = [], False
    for index, item in enumerate(given):
        if not isinstance(item, str | os.PathLike):
            filled = True
            yield _from_row(item, f"prediction {index}", named, columns)
            continue
        paths.append(str(item))
        for entry in _from_file(Path(item), named, columns):
            filled = True
            yield entry
    if paths and not filled:
        raise PredictionError(f"{', '.join(paths)}: holds no predictions. {_KINDS}")


def merge(
    entries: Iterable[Entry],
    resolve: Callable[[Entry], tuple[str | None, bool]],
    conflicts: Conflicts = "raise",
) -> Merged:
    """Merges entries by item.

    Args:
        entries: From [`read_entries`].
        resolve: Gives the id of the reference that an entry answers, or `None`, and whether its id had to
            be respelled.
        conflicts: What counts when an item has different answers, see above.
    """
    if conflicts not in ("raise", "invalid"):
        raise OptionError(f"conflicts= is 'raise' or 'invalid', not {conflicts!r}.")
    merged = Merged()
    differing: dict[str, set[str]] = {}
    blank: dict[str, dict[str, Any]] = {}
    unknown: set[str] = set()
    for entry in entries:
        merged.entries += 1
        merged.forms.add(entry.form)
        item, respelled = resolve(entry)
        if item is None:
            unknown.add(entry.id or f"{entry.scan_id}: {(entry.prompt or '')[:60]}")
            continue
        merged.respelled += respelled
        if _is_blank(entry.answer):
            kinds, text = blank.setdefault(item, {}), _canonical(item, entry.answer)
            merged.repeats += text in kinds
            kinds[text] = entry.answer
            continue
        if entry.confidence is not None:
            # Identical answers may come with other confidences; the least is the same in any order.
            merged.confidences[item] = min(entry.confidence, merged.confidences.get(item, entry.confidence))
        if item not in merged.answers:
            merged.answers[item] = entry.answer
            continue
        before, now = _canonical(item, merged.answers[item]), _canonical(item, entry.answer)
        if now == before or now in differing.get(item, ()):
            merged.repeats += 1
            continue
        differing.setdefault(item, {before}).add(now)
    for item, kinds in blank.items():
        merged.passed_over += len(kinds) - (item not in merged.answers)
        merged.answers.setdefault(item, kinds[min(kinds)])
    merged.conflicts, merged.unknown = sorted(differing), sorted(unknown)
    if differing and conflicts == "raise":
        raise PredictionError(
            f"{len(differing)} items have more than one answer, e.g. {', '.join(merged.conflicts[:3])}. "
            "These are several runs: score one at a time, or `bench compare` them, which also averages runs of "
            "one model. conflicts='invalid' counts such items as invalid."
        )
    if differing:
        merged.answers.update(dict.fromkeys(differing, CONFLICTING))
    return merged


def _canonical(item: str, answer: Any) -> str:
    try:
        return json.dumps(answer, sort_keys=True, ensure_ascii=False, default=str)
    except RecursionError as error:
        raise PredictionError(f"{item}: an answer is nested too deeply to be compared; keep one.") from error


def _is_blank(answer: Any) -> bool:
    """Whether an entry says only that nothing was answered."""
    if isinstance(answer, str):
        return not answer or answer.isspace()
    if isinstance(answer, Mapping) and list(answer) == ["error"]:
        return True
    return answer is None or (isinstance(answer, Mapping | list | tuple) and not answer)


def _from_file(path: Path, named: NamedByRow, columns: Columns) -> Iterator[Entry]:
    try:
        kind = kind_of_table(path, [columns.id] if columns.id else ID_KEYS)
        if kind is not None:
            for number, row in enumerate(rows_of_file(path, kind), start=1):
                yield _from_row(row, f"{path}, row {number}", named, columns)
            return
        with path.open(encoding="utf-8-sig") as file:
            filled = (line for line in file if line.strip())
            first, more = next(filled, "[]"), any(filled)
            value = _value_of(first)
            if isinstance(value, dict) and (more or not value.keys().isdisjoint(_OF_ONE_ROW)):
                file.seek(0)
                yield from _from_lines(file, path, named, columns)
                return
        content = json.loads(path.read_text(encoding="utf-8-sig")) if more or value is None else value
    except PredictionError:
        raise
    except OSError as error:
        raise PredictionError(f"{path}: cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise PredictionError(f"{path}: {_not_utf8(path)}") from error
    except RecursionError as error:
        raise PredictionError(f"{path}: {_TOO_DEEP}") from error
    except ValueError as error:
        raise PredictionError(
            f"{path}: not JSON ({error}), and no table with a column id. Was the run cut off while writing?"
        ) from error
    for rows in ("results", "samples"):  # metrics stand beside them, or the plan of an evaluation
        if isinstance(content, dict) and isinstance(content.get(rows), list):
            content = content[rows]
    if isinstance(content, dict):
        yield from _from_mapping(content, str(path))
    elif isinstance(content, list):
        for index, item in enumerate(content):
            yield _from_row(item, f"{path}, entry {index}", named, columns)
    else:
        raise PredictionError(f"{path}: holds a single {type(content).__name__}. {_KINDS}")


_KINDS = (
    'Known are rows of {"id", "prediction"} as JSON lines, CSV or Parquet, samples of lm-eval and of Inspect, output of'
    " the batch API of OpenAI and vLLM, the dict of the published zero-shot scripts and the list of the published SFT"
    " script."
)
_TOO_DEEP = "brackets are nested too deeply to be read; no answer needs that."


def _not_utf8(path: Path) -> str:
    """What is wrong with a file that is not UTF-8. Reads it again: reading by lines loses the place."""
    content = path.read_bytes()
    if content.startswith(b"\x1f\x8b"):
        return "compressed with gzip; unpack it first."
    if content.startswith(b"PK"):
        return "a zip archive or a spreadsheet; unpack it, or save it as CSV."
    try:
        content.decode()
    except UnicodeDecodeError as error:
        return f"not UTF-8 at byte {error.start}; write it as UTF-8."
    return "not UTF-8; write it as UTF-8."


_OF_ONE_ROW = {*ID_KEYS, "generated_text", "resps"}


def _value_of(line: str) -> Any:
    """What a line says by itself; `None` if it is no JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _from_lines(file: Iterable[str], path: Path, named: NamedByRow, columns: Columns) -> Iterator[Entry]:
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise PredictionError(
                f"{path}, line {number}: not JSON ({error}). Was the run cut off?"
            ) from error
        except RecursionError as error:
            raise PredictionError(f"{path}, line {number}: {_TOO_DEEP}") from error
        yield _from_row(row, f"{path}, line {number}", named, columns)


def _from_row(row: Any, name: str, named: NamedByRow, columns: Columns) -> Entry:
    if isinstance(row, Mapping):
        own = None if "prediction" in row or columns.answer else named(row)
        if own is not None:
            return own
        told = told_by(row, columns)
        if told is not None:
            return Entry(told.id, told.answer, confidence=_confidence(row, name), form=told.form)
    found = (
        f"the keys {', '.join(map(str, row)) or 'none'}" if isinstance(row, Mapping) else type(row).__name__
    )
    needed = '"id" and one of "prediction", "response", "output", "text", or "image", "prompt" and "generated_text"'
    raise PredictionError(f"{name}: has {found}; needs {needed}. Or name the columns of ids and of answers.")


def _confidence(row: Mapping[str, Any], name: str) -> float | None:
    """The number `confidence`, or else the sum or mean of log-probabilities under `logprob`."""
    given = row.get("confidence", row.get("logprob"))
    if given is None or given == "":
        return None
    try:
        value = float(given)
    except (TypeError, ValueError):
        raise PredictionError(f"{name}: confidence {given!r} is no number.") from None
    return None if value != value else value


def _from_mapping(content: Mapping[str, Any], name: str) -> Iterator[Entry]:
    published = any(_result_keys(value) for value in content.values())
    if not published and _is_one_row(content):
        raise PredictionError(f"{name}: is one row, not a set of predictions. {_KINDS}")
    for item, value in content.items():
        if not published:
            yield Entry(str(item), value, form="mapping")
            continue
        keys = _result_keys(value)
        if len(keys) > 1 or not isinstance(value, Mapping):
            raise PredictionError(f"{name}, entry {item}: {len(keys)} members end in _result, one is needed.")
        # An entry without a result was opened by the published scripts and never filled: nothing was
        # answered.
        yield Entry(str(item), value[keys[0]] if keys else None, form="zero-shot script")


def _is_one_row(content: Mapping[str, Any]) -> bool:
    return "prediction" in content or "generated_text" in content


def _result_keys(value: Any) -> list[str]:
    if not isinstance(value, Mapping):
        return []
    return [key for key in value if isinstance(key, str) and key.endswith("_result")]
