"""From one published record to one row.

A record is read as it stands: what does not fit the schema becomes null and is named as a [`Problem`]; its text stays
in `record`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from reasonknee_hf.dataset.contract import Problem, own_name
from reasonknee_hf.dataset.json_text import as_json, is_unicode, shown
from reasonknee_hf.tumor.question_types import STAGES, SUBTYPES, Subtype, subtype_of
from reasonknee_hf.tumor.tumor_files import SCAN_ID

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_THREE = re.compile(rf"[\[(]\s*({_NUMBER})[\s,]+({_NUMBER})[\s,]+({_NUMBER})\s*,?\s*[\])]")
_OPTION = re.compile(r"(?:^|(?<=[\s(]))([A-Z])[:.)]\s+")
_LETTERS = [*"ABCDEFGHIJKLMNOPQRSTUVWXYZ"]
_TRUTHS = {"true": True, "false": False}
_ALIASES = {
    "question_id": "qid",
    "id": "qid",
    "bdmap_id": "image_id",
    "multiple_choice_question": "mc_question",
    "type": "question_type",
    "subtype": "question_subtype",
}
_ROLES = ("system", "human", "gpt", "function_call", "observation")


def member_of(column: str) -> str:
    """The member that a column of a table stands for: `Image ID` is `image_id`."""
    name = re.sub(r"\W+", "_", column.strip()).strip("_").casefold()
    return _ALIASES.get(name, name)


def scan_columns(scan: Any, image: str | None, mask: str | None) -> dict[str, Any]:
    """The columns that tell about the volume: all of a row of the config `scans`."""
    picture = scan.drawn.get(f"whole/{scan.scan_id}.png")
    return {
        "scan_id": scan.scan_id,
        "image": None if image is None else {"bytes": None, "path": image},
        "picture": None if picture is None else {"bytes": None, "path": picture},
        "video": scan.drawn.get(f"whole/{scan.scan_id}.mp4"),
    }


def to_row(
    record: Mapping[str, Any], scan: Any, image: str | None, mask: str | None
) -> tuple[dict[str, Any], list[Problem]]:
    """The row of a question, and what of its record does not fit.

    Args:
        record: The published object, or the cells of a line.
        scan: The volume that it names.
        image: URL of that volume.
        mask: Not used: no masks are published.
    """
    problems: list[Problem] = []
    read, one = _reader(record, problems), asked(record, scan.scan_id, problems)
    subtype, options, stage = one["subtype"], one["options"], read("stage", "question_type", _known_stage)
    if subtype is not None and stage is not None and stage != subtype.stage:
        problems.append(
            Problem("stage", f"{stage!r}, but {subtype.name!r} is of the stage {subtype.stage!r}")
        )
        stage = None
    row = {
        **one,
        **scan_columns(scan, image, mask),
        "options": options and [{"letter": letter, "text": text} for letter, text in options.items()],
        "question_id": getattr(subtype, "id", None),
        "subtype": getattr(subtype, "name", None),
        "answer_type": getattr(subtype, "answer_type", None),
        "organ_picture": _organ_picture(scan, record.get("organ_slice_path") or record.get("slice_path")),
        "stage": stage,
        "question": read("question", "question"),
        "organ": read("organ", "organ"),
        "lesion": (lesion := read("lesion", "lesion")),
        "about_lesion": _TRUTHS.get(str(lesion).casefold()),
        "requires_tools": read("requires_tools", "requires_tools", _names),
        "spacing": read("spacing", "spacing", _three(float)),
        "shape": read("shape", "shape", _three(int)),
        "sex": read("sex", "sex"),
        "age": read("age", "age", _number),
        "scanner": read("scanner", "scanner"),
        "contrast": read("contrast", "contrast"),
        "record": as_json(record),
    }
    needed = {"question": "question", "subtype": "question_subtype", "stage": "question_type"}
    for column, member in needed.items():
        if _is_nothing(record.get(member)):
            problems.append(Problem(column, f"the record has no {member}"))
    return row, problems


def asked(record: Mapping[str, Any], scan_id: str, problems: list[Problem]) -> dict[str, Any]:
    """What an answer is judged by: `id`, `subtype` as [`Subtype`], `answer`, `correct_option`, and `options` by letter.

    Args:
        record: The published object.
        scan_id: The volume that it names.
        problems: Gets what does not fit.
    """
    read = _reader(record, problems)
    options = read("options", "mc_question", read_options)
    return {
        "id": read("id", "qid") or f"{scan_id}_{own_name(record)}",
        "subtype": read("subtype", "question_subtype", _known_subtype),
        "answer": read("answer", "answer"),
        "options": options,
        "correct_option": read("correct_option", "correct_option", partial(_letter, options)),
    }


def turns_row(
    record: Mapping[str, Any], scan: Any, image: str | None, mask: str | None
) -> tuple[dict[str, Any], list[Problem]]:
    """The row of a trajectory of an agent: its turns as published, and the tools, whose list is JSON in a string.

    `scan_id` is the volume that its text names, where that is one.
    """
    problems: list[Problem] = []
    turns, tools = record.get("conversations"), record.get("tools")
    if not isinstance(turns, list) or not all(_is_turn(turn) for turn in turns):
        problems.append(Problem("conversations", f"{shown(turns)} instead of turns of {', '.join(_ROLES)}"))
        turns = None
    try:
        listed = json.loads(tools) if isinstance(tools, str) else tools
        tools = None if listed is None else [_tool(tool) for tool in listed]
    except (ValueError, TypeError, KeyError, AttributeError):
        problems.append(Problem("tools", f"{shown(tools)} instead of a list of tools with names"))
        tools = None
    named = set(SCAN_ID.findall(as_json(record)))
    row = {
        "id": f"agent_{own_name(record)}",
        "scan_id": named.pop() if len(named) == 1 else None,
        "conversations": turns and [{"from": turn["from"], "value": turn["value"]} for turn in turns],
        "tools": tools,
        "record": as_json(record),
    }
    return row, problems


def _is_turn(turn: Any) -> bool:
    known = isinstance(turn, Mapping) and turn.get("from") in _ROLES
    return known and isinstance(turn.get("value"), str) and is_unicode(turn["value"])


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    told = tool.get("function", tool)
    told_of = told.get("description")
    return {"name": str(told["name"]), "description": told_of, "parameters": as_json(told.get("parameters"))}


def _reader(record: Mapping[str, Any], problems: list[Problem]) -> Callable[..., Any]:
    """A function that reads a member for a column: `None` where it is nothing, or does not fit, which is kept."""

    def read(column: str, member: str, reader: Callable[[Any], Any] = as_text) -> Any:
        value = record.get(member)
        try:
            return None if _is_nothing(value) else reader(value)
        except ValueError as error:
            problems.append(Problem(column, f"{shown(value)} {error}"))
            return None

    return read


# --- values -------------------------------------------------------------------------------------------------------


def as_text(value: Any) -> str:
    """Text as published; numbers and truth values, which the files mix with it, as they would be written in a table."""
    if isinstance(value, str):
        if not is_unicode(value):
            raise ValueError("has half of a surrogate pair, which no text column can hold")
        return value
    if isinstance(value, (bool, int, float)):
        return str(value)
    raise ValueError("is not text")


def read_options(question: Any) -> dict[str, str]:
    """The options that stand at the end of a question: text by letter, from A on.

    Raises:
        ValueError: There are not at least two, or their letters do not follow each other.
    """
    _, *parts = _OPTION.split(as_text(question))
    letters = parts[::2]
    first = len(letters) - 1 - letters[::-1].index("A") if "A" in letters else len(letters)
    letters = letters[first:]
    if len(letters) < 2 or letters != _LETTERS[: len(letters)]:
        raise ValueError("does not end in options A, B, …")
    return dict(zip(letters, map(str.strip, parts[2 * first + 1 :: 2]), strict=True))


def _is_nothing(value: Any) -> bool:
    if isinstance(value, str):
        return len(text := value.strip()) < 4 and text.casefold() in ("", "nan")
    return value is None or (isinstance(value, float) and math.isnan(value))


def _known_subtype(value: Any) -> Subtype:
    found = subtype_of(value)
    if found is None:
        raise ValueError(f"is none of the {len(SUBTYPES)} subtypes")
    return found


def _known_stage(value: Any) -> str:
    stage = str(value).strip().casefold()
    if stage not in STAGES:
        raise ValueError(f"is none of the stages {', '.join(STAGES)}")
    return stage


def _letter(options: Mapping[str, str] | None, value: Any) -> str:
    text = str(value).strip()
    if len(text) != 1 or not "A" <= text <= "Z":
        raise ValueError("is not the letter of an option")
    if options is not None and text not in options:
        raise ValueError(f"is none of the {len(options)} options")
    return text


def _three(kind: Callable[[str], Any]) -> Callable[[Any], list[Any]]:
    """A reader of three numbers, of `[0.83 0.83 5.0]` or `(512, 512, 116)`, or of a list of them."""

    def read(value: Any) -> list[Any]:
        text = str(list(value)) if isinstance(value, Sequence) and not isinstance(value, str) else str(value)
        found = _THREE.fullmatch(text.strip())
        numbers = [kind(number) for number in found.groups()] if found else []
        if not numbers or not all(number > 0 for number in numbers):
            raise ValueError("is not three numbers above 0")
        return numbers

    return read


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError("is not a number") from None


def _names(value: Any) -> list[str]:
    """Names in a list, or in the text of one."""
    names = value if isinstance(value, list) else re.findall(r"\w+", as_text(value))
    return [as_text(name) for name in names]


def _organ_picture(scan: Any, published: Any) -> dict[str, Any] | None:
    name = str(published or "").replace("\\", "/").rpartition("/")[2]
    shown = scan.drawn.get(f"organ/{name}")
    return None if shown is None else {"bytes": None, "path": shown}
