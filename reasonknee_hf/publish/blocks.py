"""Our blocks in the text of a card, between marks that tell what we wrote: words of others are seen and kept."""

from __future__ import annotations

import logging
import re
from hashlib import sha256

logger = logging.getLogger(__name__)


def placed(body: str, name: str, text: str) -> str:
    """The body with our block `name` replaced, or added at the end; everything else stays.

    A block that was edited since it was written, or has lost its marks, is kept below the new one where it says what
    the new one does not.
    """
    text = text.strip()
    block = f"{_begin(name, text)}\n{text}\n{_end(name)}"
    found = _marked(name).search(body) or _unmarked(text).search(body)
    if found is None:
        return body.rstrip("\n") + f"\n\n{block}\n"
    written, there = found.groupdict().get("hash"), found["text"].strip()
    lines = {line.strip() for line in text.splitlines()}
    if written != _hash(there) and any(line.strip() not in lines for line in there.splitlines()):
        logger.warning("the section %s of the card was edited by hand: what was there is kept below it", name)
        block += f"\n\n<details><summary>As it was edited by hand: section {name}</summary>\n\n{there}\n\n</details>"
    after = body[found.end() :]
    return body[: found.start()] + block + ("" if after.startswith("\n") or not after else "\n\n") + after


def without_section(body: str, name: str) -> str:
    """The body without our block of that name."""
    found = _marked(name).search(body)
    if found is None:
        return body
    return body[: found.start()].rstrip("\n") + "\n\n" + body[found.end() :].lstrip("\n")


def _begin(name: str, text: str) -> str:
    return f'<!-- reasonknee_hf:begin "{name}" {_hash(text)} -->'


def _end(name: str) -> str:
    return f'<!-- reasonknee_hf:end "{name}" -->'


def _hash(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:8]


def _marked(name: str) -> re.Pattern[str]:
    begin = rf'<!-- reasonknee_hf:begin "{re.escape(name)}"(?: (?P<hash>[0-9a-f]{{8}}))? -->\n'
    return re.compile(rf"{begin}(?P<text>.*?){re.escape(_end(name))}", re.DOTALL)


def _unmarked(text: str) -> re.Pattern[str]:
    """A section of the same heading, as far as the next one, with the marks that are left of it."""
    heading = re.escape("\n".join(text.splitlines()[:3]))  # with the line that says whose it is
    mark = r"(?:<!-- reasonknee_hf:begin [^\n]*-->\n)?"
    end = r"(?:<!-- reasonknee_hf:end [^\n]*-->)|(?=^## |^<!-- reasonknee_hf:)|\Z"
    return re.compile(rf"^{mark}(?P<text>{heading}$.*?)(?:{end})", re.DOTALL | re.MULTILINE)
