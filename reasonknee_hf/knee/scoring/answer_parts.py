"""Which part of a text is the answer: without its reasoning, set apart by a mark, and what stands around an object."""

from __future__ import annotations

import re

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
