"""Which part of a text is the answer: without its reasoning, set apart by a mark, what stands around an object, and
its boxes."""

from __future__ import annotations

import re
from typing import Any

from reasonknee_hf.bench import jsonish
from reasonknee_hf.bench.reading import Reading
from reasonknee_hf.knee.scoring.box_reading import BoxReading, read_box
from reasonknee_hf.knee.scoring.key_lookup import BOX_KEYS, Member, is_lesion, members

_MARKER = re.compile(r".*final diagnosis\s*:", re.IGNORECASE | re.DOTALL)  # the last one
_TAGS = r"(?:think|thinking|thought|thoughts|reasoning|analysis|scratchpad)"
_TAG = re.compile(rf"(?:<|◁)(/?){_TAGS}(?:>|▷)", re.IGNORECASE)
_ANSWER = re.compile(".*<answer>", re.IGNORECASE | re.DOTALL)
_ANSWERED = re.compile("</answer>", re.IGNORECASE)
_FENCE = re.compile(r"(?:```[ \t]*[\w-]*)?")
_TOKEN = r"<(?:\|[^<>|\s]{1,40}\||/?s|eos|end_of_turn)>"
_SPECIAL = re.compile(f"{_TOKEN}(?:{_TOKEN})*", re.IGNORECASE)


def without_special_tokens(text: str) -> str:
    """`text` with blanks in the place of special tokens, so that places stay."""
    return _SPECIAL.sub(lambda match: " " * len(match.group()), text) if "<" in text else text


def set_apart(text: str) -> tuple[int, int, list[str]]:
    """Where the part of `text` lies that says of itself that it is the answer; all of it if none does."""
    if "<" in text and (opened := _ANSWER.match(text)):
        start = opened.end()
        closed = _ANSWERED.search(text, start)
        return start, closed.start() if closed else len(text), ["answer_tags"]
    if "diagnosis" in text.lower() and (marked := _MARKER.match(text)):
        return marked.end(), len(text), ["marker"]
    return 0, len(text), []


def split_reasoning(text: str) -> tuple[str, str | None]:
    """`text` without its reasoning, and its reasoning alone; the rest is blanked so that places stay."""
    if "<" not in text and "◁" not in text:
        return text, None
    spans: list[tuple[int, int]] = []
    opened = None
    for tag in _TAG.finditer(text):
        if not tag.group(1):
            opened = tag.start() if opened is None else opened
        elif opened is None:
            # No opening tag: it stood in the prompt, as chat templates of reasoning models have it.
            spans = [(0, tag.end())]
        else:
            spans.append((opened, tag.end()))
            opened = None
    if opened is not None:
        spans.append((opened, len(text)))
    if not spans:
        return text, None
    visible, hidden, last = [], [], 0
    for start, stop in spans:
        visible += [text[last:start], " " * (stop - start)]
        hidden += [" " * (start - last), text[start:stop]]
        last = stop
    return "".join([*visible, text[last:]]), _TAG.sub(lambda m: " " * len(m.group()), "".join(hidden))


def surroundings(text: str, span: tuple[int, int]) -> list[str]:
    before, after = text[: span[0]].strip(), text[span[1] :].strip()
    if not before and not after:
        return []
    fenced = _FENCE.fullmatch(before) and _FENCE.fullmatch(after)
    return ["code_fence" if fenced else "surrounding_text"]


def bare_boxes(search: jsonish.Search, all_members: list[Member], at: int, value: jsonish.Found) -> list[Any]:
    """The box that stands in no object either, on the same level, with no other lesion in between."""
    text = search.text
    for member in reversed(all_members[:at]):
        between = text[member.value : value.start]
        if is_lesion(member.key):
            break
        if member.key in BOX_KEYS and between.count("}") <= between.count("{"):
            return box_of(search, member)
    for member in all_members[at + 1 :]:
        between = text[value.stop : member.start]
        if is_lesion(member.key) and member.start >= value.stop:
            break
        if member.key in BOX_KEYS and member.start >= value.stop and between.count("{") <= between.count("}"):
            return box_of(search, member)
    return []


def lone_boxes(text: str) -> list[Any]:
    """The last box of a text that holds no object."""
    boxes = [member for member in members(text) if member.key in BOX_KEYS]
    return box_of(jsonish.Search(text), boxes[-1]) if boxes else []


def box_of(search: jsonish.Search, member: Member) -> list[Any]:
    try:
        found = search.value_at(member.value)
    except jsonish.TooLong:
        found = None
    return [] if found is None else [found.value]


def add_box(reading: Reading, boxes: list[Any]) -> None:
    """The last of the boxes that belong to the grades; `null` is no box."""
    if not boxes or boxes[-1] is None:
        return
    read: BoxReading = read_box(boxes[-1])
    reading.box, reading.box_problem = read.values, read.problem
    if read.repair:
        reading.repairs.append(read.repair)
