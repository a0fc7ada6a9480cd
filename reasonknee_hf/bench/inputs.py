"""Prediction files, as people have them, merged by id.

- JSON lines, or a JSON list, of `{"id", "prediction"}`: `prediction` is raw model text or an object.
- The dict that the published zero-shot scripts write: the key is the id, the member that ends in `_result`
  the answer; an entry without one was never answered. (After a failed call one of these scripts writes the
  result of the item before once more. It is for another lesion, and so no answer.)
- The list that the published SFT script writes: `generated_text` is the answer; the id comes from `image` and
  from the question that `prompt` asks. `final_diagnosis` is the reference there and is never read.

Which one a file is shows from its content. Merging is by id and independent of the order of files and
lines: identical repeats are counted and ignored. Of conflicting repeats, by `conflicts`:

- `"first"` (default): the first in the sort order of their JSON text counts; they are counted and named;
- `"invalid"`: the item has no valid answer (reason `conflicting`);
- `"raise"`: a [`PredictionError`].

An entry that holds no answer (`null`, blank text, `{}`, `[]`, or nothing but an `error`) is passed over
wherever the same item is answered: a run that was resumed has both. It is no conflict, and it is counted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeAlias

from reasonknee_hf.errors import OptionError, PredictionError
from reasonknee_hf.knee.moaks import question_for_prompt

Conflicts = Literal["first", "invalid", "raise"]
Predictions: TypeAlias = (
    "str | os.PathLike[str] | Mapping[str, Any] | Iterable[str | os.PathLike[str] | Mapping[str, Any]]"
)

CONFLICTING = object()
"""Stands for the answer of an item whose conflicting repeats make it invalid."""


@dataclass(frozen=True)
class Entry:
    """One answer as found in a file.

    Args:
        id: The item it answers; `None` where the file names it by scan and prompt only and the prompt is
            unknown.
        answer: Raw text or object.
        scan_id: The scan, where the file gives it instead of an id.
        prompt: The prompt, likewise.
    """

    id: str | None
    answer: Any
    scan_id: str | None = None
    prompt: str | None = None


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
        respelled: Ids matched only after leading zeros were ignored, which number readers drop.
    """

    answers: dict[str, Any] = field(default_factory=dict)
    entries: int = 0
    repeats: int = 0
    passed_over: int = 0
    conflicts: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    respelled: int = 0


def read_entries(predictions: Predictions) -> Iterator[Entry]:
    """The entries of prediction files or of objects in memory.

    Args:
        predictions: A path, a mapping of id to answer, rows `{"id", "prediction"}`, or an iterable of paths
            or rows.

    Raises:
        PredictionError: A file cannot be read or is none of the known kinds.
    """
    if isinstance(predictions, str | os.PathLike):
        yield from _from_file(Path(predictions))
    elif isinstance(predictions, Mapping):
        yield from _from_mapping(predictions, "the predictions")
    else:
        for index, item in enumerate(predictions):
            if isinstance(item, str | os.PathLike):
                yield from _from_file(Path(item))
            else:
                yield _from_row(item, f"prediction {index}")


def merge(
    entries: Iterable[Entry],
    resolve: Callable[[Entry], tuple[str | None, bool]],
    conflicts: Conflicts = "first",
) -> Merged:
    """Merges entries by item.

    Args:
        entries: From [`read_entries`].
        resolve: Gives the id of the reference that an entry answers, or `None`, and whether its id had to
            be respelled.
        conflicts: What counts when an item has different answers, see above.
    """
    if conflicts not in ("first", "invalid", "raise"):
        raise OptionError(f"conflicts= is 'first', 'invalid' or 'raise', not {conflicts!r}.")
    merged = Merged()
    differing: dict[str, set[str]] = {}
    blank: dict[str, dict[str, Any]] = {}
    unknown: set[str] = set()
    for entry in entries:
        merged.entries += 1
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
        if item not in merged.answers:
            merged.answers[item] = entry.answer
            continue
        before, now = _canonical(item, merged.answers[item]), _canonical(item, entry.answer)
        if now == before or now in differing.get(item, ()):
            merged.repeats += 1
            continue
        differing.setdefault(item, {before}).add(now)
        if now < before:
            merged.answers[item] = entry.answer
    for item, kinds in blank.items():
        merged.passed_over += len(kinds) - (item not in merged.answers)
        merged.answers.setdefault(item, kinds[min(kinds)])
    merged.conflicts, merged.unknown = sorted(differing), sorted(unknown)
    if differing and conflicts == "raise":
        raise PredictionError(
            f"{len(differing)} items have more than one answer, e.g. {', '.join(merged.conflicts[:3])}. "
            "Score one run at a time, or choose conflicts='first' or 'invalid'."
        )
    if conflicts == "invalid":
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
        return not answer.strip()
    if isinstance(answer, Mapping) and list(answer) == ["error"]:
        return True
    return answer is None or (isinstance(answer, Mapping | list | tuple) and not answer)


def _from_file(path: Path) -> Iterator[Entry]:
    try:
        with path.open(encoding="utf-8-sig") as file:
            filled = (line for line in file if line.strip())
            first = next(filled, "")
            if _is_row(first, more=any(filled)):
                file.seek(0)
                yield from _from_lines(file, path)
                return
        content = json.loads(path.read_text(encoding="utf-8-sig")) if first else []
    except PredictionError:
        raise
    except OSError as error:
        raise PredictionError(f"{path}: cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise PredictionError(f"{path}: {_not_utf8(path)}") from error
    except RecursionError as error:
        raise PredictionError(f"{path}: {_TOO_DEEP}") from error
    except ValueError as error:
        raise PredictionError(f"{path}: not JSON ({error}). Was the run cut off while writing?") from error
    if isinstance(content, dict):
        yield from _from_mapping(content, str(path))
    elif isinstance(content, list):
        for index, item in enumerate(content):
            yield _from_row(item, f"{path}, entry {index}")
    else:
        raise PredictionError(f"{path}: holds a single {type(content).__name__}. {_KINDS}")


_KINDS = (
    'Known are JSON lines of {"id", "prediction"}, the dict of the published zero-shot scripts '
    "and the list of the published SFT script."
)
_TOO_DEEP = "brackets are nested too deeply to be read; no answer needs that."


def _not_utf8(path: Path) -> str:
    """What is wrong with a file that is not UTF-8. Reads it again: reading by lines loses the place."""
    content = path.read_bytes()
    if content.startswith(b"\x1f\x8b"):
        return "compressed with gzip; unpack it first."
    try:
        content.decode()
    except UnicodeDecodeError as error:
        return f"not UTF-8 at byte {error.start}; write it as UTF-8."
    return "not UTF-8; write it as UTF-8."


def _is_row(line: str, *, more: bool) -> bool:
    """Whether a file that begins with `line` is one of JSON lines; `more`: other lines follow."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(row, dict) and (more or "id" in row or "generated_text" in row)


def _from_lines(file: Iterable[str], path: Path) -> Iterator[Entry]:
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
        yield _from_row(row, f"{path}, line {number}")


def _from_row(row: Any, name: str) -> Entry:
    if isinstance(row, Mapping):
        if "id" in row and "prediction" in row:
            return Entry(str(row["id"]), row["prediction"])
        if "generated_text" in row and "image" in row and "prompt" in row:
            scan_id, prompt = _scan_of(str(row["image"])), str(row["prompt"])
            question = question_for_prompt(prompt)
            item = None if question is None else f"{scan_id}_{question.id}"
            return Entry(item, row["generated_text"], scan_id, prompt)
    found = (
        f"the keys {', '.join(map(str, row)) or 'none'}" if isinstance(row, Mapping) else type(row).__name__
    )
    needed = '"id" and "prediction", or "image", "prompt" and "generated_text"'
    raise PredictionError(f"{name}: has {found}; needs {needed}.")


def _scan_of(image: str) -> str:
    """`.../9000001/00M/20041222_10300001_2.nii.gz` as `9000001_00M_20041222_10300001_2`."""
    path = PurePosixPath(image.replace("\\", "/"))
    return "_".join([*path.parts[-3:-1], path.name.split(".")[0]])


def _from_mapping(content: Mapping[str, Any], name: str) -> Iterator[Entry]:
    published = any(_result_keys(value) for value in content.values())
    if not published and _is_one_row(content):
        raise PredictionError(f"{name}: is one row, not a set of predictions. {_KINDS}")
    for item, value in content.items():
        if not published:
            yield Entry(str(item), value)
            continue
        keys = _result_keys(value)
        if len(keys) > 1 or not isinstance(value, Mapping):
            raise PredictionError(f"{name}, entry {item}: {len(keys)} members end in _result, one is needed.")
        # An entry without a result was opened by the published scripts and never filled: nothing was
        # answered.
        yield Entry(str(item), value[keys[0]] if keys else None)


def _is_one_row(content: Mapping[str, Any]) -> bool:
    return "prediction" in content or "generated_text" in content


def _result_keys(value: Any) -> list[str]:
    if not isinstance(value, Mapping):
        return []
    return [key for key in value if isinstance(key, str) and key.endswith("_result")]
