"""What an answer says: a letter, a number, yes or no, a phrase. Nothing is guessed: what cannot be read is wrong.

The published scorer takes the first capital letter, the first digits and the first two letters of a word; each of its
faults is a test of these rules.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

RULES_VERSION = 1
"""Raised whenever a score could change."""

_THINK = re.compile(r"<think>[^<]*(?:<(?!/think>)[^<]*)*</think>")
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.S)
_MARK = r"(?:(?:final |correct |my |the )?(?:answer|option|choice)(?: is| would be)?\s*[:=]?\s*)"
_MARKED = re.compile(rf"\b{_MARK}\(?\**\s*([A-Z])\b(?!['’])\)?", re.I)
_BOXED = re.compile(r"\\boxed\{\s*(?:\\text\{)?\s*([A-Z])\b")
_ALONE = re.compile(r"[\s(*\[\"']*([A-Z])[\s)*\].:\"']*", re.I)
_LEADS = re.compile(r"[\s(*]*([A-Z])\**\s*[).:](?=\s|$|\*)")
_ENDS = re.compile(r"(?:^|[\s(:*])([A-Z])[)*\].\"']*$")
_NUMBER = re.compile(
    r"(?<![\w.,])[-+−]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\d,]*\d)|(?<![\w.,])[-+−]?\.\d+(?:[eE][-+]?\d+)?"
)
_SAID_NUMBER = re.compile(r"\banswer(?: is)?\s*[:=]?\s*", re.I)
_WORD = re.compile(r"[\w-]+")


def said(answer: object) -> str:
    """The text of an answer without its reasoning.

    Reasoning ends with `</think>`, also where nothing has opened it; of an answer that never ends its reasoning nothing
    is left. Within `<answer>` tags the last one counts.
    """
    text = str(answer)
    if "<" not in text:
        return text.strip()
    text = _THINK.sub("", text).rpartition("</think>")[2].partition("<think>")[0]
    tagged = _ANSWER.findall(text)
    return str(tagged[-1] if tagged else text).strip()


def read_letter(answer: object, options: Sequence[tuple[str, str]]) -> str | None:
    """The option that an answer chooses; `None` where it names none, or several.

    In this order: a letter alone; a letter that is called the answer; one in front, as `C: …`; one at the end; the text
    of one option.

    Args:
        answer: Text of a model.
        options: Letter and text of each.
    """
    text, letters = said(answer), [letter for letter, _ in options]
    if (found := _ALONE.fullmatch(text)) is not None:
        return _of(found[1], letters)
    # "The answer is a lesion" names no option: a small letter counts where nothing else is said.
    named = [letter.upper() for letter in _MARKED.findall(text) if letter.isupper() or len(text) < 20]
    if told := _BOXED.findall(text) or named:
        return _of(told[-1], letters)
    lines = [line for line in text.splitlines() if line.strip()]
    if lines and (found := _LEADS.match(lines[0])) is not None:
        return _of(found[1], letters)
    if lines and (found := _ENDS.search(lines[-1].strip())) is not None:
        return _of(found[1], letters)
    plain = phrase(text)
    same = [letter for letter, option in options if phrase(option) == plain]
    return same[0] if len(same) == 1 else None


def _of(letter: str, letters: Sequence[str]) -> str | None:
    return letter.upper() if letter.upper() in letters else None


def read_number(answer: object) -> float | None:
    """The number that an answer gives: behind the word answer, or the first one that is no part of a word.

    Commas between groups of three digits, exponents and numbers without a leading zero are read as they are meant.
    """
    text = said(answer).replace("−", "-")
    marks = [*_SAID_NUMBER.finditer(text)]
    for start in [mark.end() for mark in reversed(marks)] + [0]:
        found = _NUMBER.search(text, start)
        if found is not None and (start == 0 or not text[start : found.start()].strip(" *:=(")):
            value = float(found[0].replace(",", ""))
            return value if math.isfinite(value) else None
    return None


def read_yes_no(answer: object) -> bool | None:
    """Yes or no as a word of its own, the first word or the only one of the two; `Normal`, `Yesterday` are neither."""
    words = [word.casefold() for word in _WORD.findall(said(answer))]
    found = {word for word in words if word in ("yes", "no")}
    if words and words[0] in found:
        return bool(words[0] == "yes")
    return "yes" in found if len(found) == 1 else None


def phrase(text: object) -> str:
    """Words in small letters, without what stands between them."""
    return " ".join(_WORD.findall(str(text).casefold()))
