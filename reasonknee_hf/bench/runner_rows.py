"""Rows as programs that run models write them: which item each answers, and what was answered.

| form | shape |
|---|---|
| `lm-eval` | `samples_*.jsonl` of lm-evaluation-harness: the item is `doc["id"]`, the answer the first of `resps` |
| `batch` | output of the batch API of OpenAI, and of vLLM's `run_batch`: `custom_id`, and the text in `response.body` |
| `inspect` | samples of an Inspect log: `id`, and `output.choices` |
| `rows` | `id` (or `custom_id`, `item_id`, `qid`, or the given column), and one answer column |

An entry that failed (`error`, or a status other than 200) is an error and no answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

ANSWER_KEYS = (
    "prediction",
    "response",
    "output",
    "completion",
    "generation",
    "generated_text",
    "text",
    "raw_output",
)
"""What people call an answer. `answer` is one only beside nothing but an id: elsewhere it is the reference's."""
ID_KEYS = ("id", "custom_id", "item_id", "qid")
_BESIDE = {"confidence", "logprob", "error", "model", "seconds", *ID_KEYS}


class Told(NamedTuple):
    """What a row says.

    Attributes:
        form: The form of the row.
        id: The item.
        answer: Text or object; `{"error": ...}` where the call failed.
    """

    form: str
    id: str
    answer: Any


class Columns(NamedTuple):
    """Names of columns that were given, instead of those that are looked for."""

    id: str | None = None
    answer: str | None = None


def told_by(row: Mapping[str, Any], columns: Columns = Columns()) -> Told | None:  # noqa: B008
    """What a row of a runner says; `None` for one that fits no form."""
    if columns == (None, None):
        for read in (_batch, _lm_eval, _inspect):
            if (found := read(row)) is not None:
                return found
    return _plain(row, columns)


def _batch(row: Mapping[str, Any]) -> Told | None:
    reply = row.get("response")
    if "custom_id" not in row or not (isinstance(reply, Mapping) or row.get("error")):
        return None
    if row.get("error") or reply is None or reply.get("status_code", 200) != 200:
        return Told("batch", str(row["custom_id"]), {"error": row.get("error") or reply})
    body = reply.get("body")
    return Told("batch", str(row["custom_id"]), _text_of({} if body is None else body))


def _text_of(body: Any) -> Any:
    """The text of a chat completion, of a completion, or of a reply of the responses API.

    A reply of another shape is an error, as one that was cut.
    """
    try:
        for choice in body.get("choices") or ():
            return _joined((choice.get("message") or {}).get("content") or choice.get("text"))
        parts = [
            _joined(item.get("content")) for item in body.get("output") or () if item.get("type") == "message"
        ]
    except (AttributeError, TypeError):
        return {"error": f"no reply that can be read: {body!r:.200}"}
    return "".join(part for part in parts if part) or None


def _joined(content: Any) -> Any:
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))
    return content


def _lm_eval(row: Mapping[str, Any]) -> Told | None:
    document, replies = row.get("doc"), row.get("resps")
    if not isinstance(document, Mapping) or "id" not in document or not isinstance(replies, list):
        return None
    first: Any = replies
    while isinstance(first, list):
        first = first[0] if first else None
    return Told("lm-eval", str(document["id"]), first)


def _inspect(row: Mapping[str, Any]) -> Told | None:
    output = row.get("output")
    if not isinstance(output, Mapping) or "id" not in row or "choices" not in output:
        return None
    if row.get("error"):
        return Told("inspect", str(row["id"]), {"error": row["error"]})
    return Told("inspect", str(row["id"]), _text_of(output))


def _plain(row: Mapping[str, Any], columns: Columns) -> Told | None:
    ids = [columns.id] if columns.id else [key for key in ID_KEYS if key in row]
    if not ids or ids[0] not in row:
        return None
    if columns.answer is not None:
        answers = [columns.answer] if columns.answer in row else []
    else:
        answers = [key for key in ANSWER_KEYS if key in row]
        if not answers and not (row.keys() - _BESIDE - {"answer"}):
            answers = [key for key in ("answer",) if key in row]
    if not isinstance(row[ids[0]], str | int):
        return None
    item = str(row[ids[0]])
    if row.get("error") and not any(row[key] for key in answers):
        return Told("rows", item, {"error": row["error"]})
    # "prediction" is what files of this package call it, whatever else stands in a row.
    return Told("rows", item, row[answers[0]]) if len(answers) == 1 or answers[:1] == ["prediction"] else None
