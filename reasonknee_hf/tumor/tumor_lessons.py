"""What models are asked about CT volumes, what they should answer, and what an answer earns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reasonknee_hf.bench.reading import Reading
from reasonknee_hf.errors import RecordError
from reasonknee_hf.prompting.lessons import Lessons, check_choice, name_of
from reasonknee_hf.train.rewards import completion_text
from reasonknee_hf.tumor.tumor_answers import phrase, read_letter, read_number, read_yes_no, said

SETTINGS = ("zero_shot",)
TARGETS = ("answer", "option", "think", "think_option")
CT_WINDOW = (-150.0, 250.0)
"""Hounsfield units that the published pictures show (width 400, level 50): `get_recipe("o1", window=CT_WINDOW)`."""

_HINTS = {
    "numeric": "Answer with one number, without a unit.",
    "binary": "Answer yes or no.",
    "categorical": "Answer with a short phrase.",
}


def user_text(row: Mapping[str, Any], setting: str, target: str | None, view: Any, **options: Any) -> str:
    """What the user says: the question, and its options where the answer is to be a letter.

    Args:
        row: A row of `benchmark` or `train`.
        setting: `zero_shot`.
        target: One of [`TARGETS`]; `None` asks for a free answer.
        view: What the model sees; not told.
        options: `prompts`: other texts by number of the subtype.

    Raises:
        RecordError: The row has no question, or no options to choose from.
    """
    check_choice("setting", setting, SETTINGS)
    prompts = options.get("prompts") or {}
    question = prompts.get(str(row.get("question_id")), row.get("question"))
    if not question:
        raise RecordError(f"{name_of(row)}: it has no question. Drop such rows")
    spacing = row.get("spacing")
    if row.get("answer_type") == "numeric" and spacing:
        question = f"Voxels are {' x '.join(f'{edge:g}' for edge in spacing)} mm.\n{question}"
    if target not in ("option", "think_option"):
        return f"{question}\n{_HINTS[row.get('answer_type') or 'categorical']}"
    choices = _options(row)
    letters = [letter for letter, _ in choices]
    shown = "\n".join(f"{letter}: {text}" for letter, text in choices)
    return f"{question}\n{shown}\nAnswer with one letter, {', '.join(letters[:-1])} or {letters[-1]}."


def target_text(row: Mapping[str, Any], target: str, **_: Any) -> str:
    """What a model should answer: `answer` as published, `option` its letter; with reasoning in front for `think` and
    `think_option`, as `<think>…</think><answer>…</answer>`, for rows with a column `cot`.

    Raises:
        RecordError: The row lacks what the target says.
    """
    column = "correct_option" if target in ("option", "think_option") else "answer"
    if not row.get(column):
        raise RecordError(f"{name_of(row)}: its {column} is null, so it cannot be a target. Drop such rows")
    if target in TARGETS[:2]:
        return str(row[column])
    if not row.get("cot"):
        raise RecordError(f"{name_of(row)}: it has no reasoning (cot). Take the target 'answer' or 'option'")
    return f"<think>{row['cot']}</think><answer>{row[column]}</answer>"


def region_of(row: Mapping[str, Any], *_: Any, **__: Any) -> list[int]:
    """Refused: the dataset has no boxes.

    Raises:
        RecordError: Always.
    """
    raise RecordError(f"{name_of(row)}: questions of this dataset have no boxes")


def read(text: str, question_id: int | None) -> Reading:
    """Whether an answer says anything behind its reasoning; what, depends on its options and its type."""
    return Reading(None if said(text) else "no_answer")


def _options(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    choices = [(option["letter"], option["text"]) for option in row.get("options") or ()]
    if len(choices) < 2:
        raise RecordError(f"{name_of(row)}: it has no options to choose from. Take the target 'answer'")
    return choices


# --- rewards ------------------------------------------------------------------------------------------------------


def option_reward(
    completions: Sequence[Any], options: Sequence[Any], correct_option: Sequence[str | None], **_: Any
) -> list[float]:
    """1 for the right letter, as the benchmark reads it; else 0. Columns are those of rows, by `prompt_stream`."""
    rewards = []
    for completion, choices, truth in zip(completions, options, correct_option, strict=True):
        listed = [(option["letter"], option["text"]) for option in choices or ()]
        letter = read_letter(completion_text(completion), listed)
        rewards.append(float(letter is not None and letter == truth))
    return rewards


def answer_reward(
    completions: Sequence[Any],
    answer: Sequence[str | None],
    answer_type: Sequence[str | None],
    tolerance: float = 0.1,
    **_: Any,
) -> list[float]:
    """What a free answer earns: of numbers 1 within `tolerance` of the truth, less by its distance, down to 0; of yes,
    no and phrases 1 or 0. Reasoning that never ends earns nothing."""
    told = zip(completions, answer, answer_type, strict=True)
    return [_earned(completion_text(completion), truth, kind, tolerance) for completion, truth, kind in told]


def _earned(text: str, truth: str | None, kind: str | None, tolerance: float) -> float:
    if truth is None or not said(text):
        return 0.0
    true = read_number(truth) if kind == "numeric" else None
    if true is not None:
        value = read_number(text)
        if value is None:
            return 0.0
        off = abs(value - true) / abs(true) if true else float(value != 0)
        return 1.0 if off <= tolerance else max(0.0, 1 - off)
    if kind == "binary" and read_yes_no(truth) is not None:
        return float(read_yes_no(text) == read_yes_no(truth))
    return float(phrase(said(text)) == phrase(truth))


TUMOR_LESSONS = Lessons(
    settings=SETTINGS,
    targets=TARGETS,
    box_targets=(),
    user_text=user_text,
    target_text=target_text,
    region_of=region_of,
    read=read,
    nearness=lambda question, name, told, truth: float(told == truth),
    reward_columns=("options", "correct_option", "answer", "answer_type"),
)
