"""Sixty shapes in which models write an answer, and what happens to a text on its way."""

from __future__ import annotations

import json

from reasonknee_hf.knee.moaks import QUESTIONS

SIDES = ("start_slice", "end_slice", "x_min", "x_max", "y_min", "y_max")


def _objects(chance, row, grades, box):
    """The asked object in the forms of prompt and record, and pieces of others."""
    question = QUESTIONS[row["question_id"]]
    other = chance.choice(
        [q for q in QUESTIONS.values() if q.id != question.id and q.category == question.category]
    )
    asked = question.answer(grades)
    record = {question.release_key: grades}
    stale = other.answer({a.name: chance.choice(a.grades) for a in other.attributes})
    guess = question.answer({a.name: chance.choice(a.grades) for a in question.attributes})
    wrong_box = [value + chance.randrange(60) for value in box]
    return question, asked, record, stale, guess, wrong_box


def shapes(chance, row, grades, box):
    """All texts for one item; each is one shape."""
    question, asked, record, stale, guess, far = _objects(chance, row, grades, box)
    d = json.dumps
    boxed = {"bounding_box": box, **asked}
    text, released = d(boxed), d({"bounding_box": box, "final_diagnosis": record})
    key = question.prompt_key
    inner = next(iter(asked.values())) if question.wrapper else asked
    value = inner[key]
    bare = f'"bounding_box": {box}, "{key}": {d(value)}'
    first = question.attributes[0]
    quoted = text.replace('"', "'")
    odd = chance.choice(
        ["0-3", "1 or 2", "2/3", "0 | 1", "3%", "3 mm", "(grade from 0-3)", "2.0", '"2"', "two", "-1"]
    )
    sibling = {"MOAKS_scores": {**(stale.get("MOAKS_scores") or stale), key: value}}
    spelled = {"size": "Size", "grade": "Grade"}.get(first.name, first.name.upper())
    return [
        text,
        d(boxed, indent=2),
        f"```json\n{text}\n```",
        f"```\n{text}",
        f"The signal is bright. {text}",
        f"{text}\nPlease consult a physician.",
        f"<think>Perhaps {d(guess)}.</think>{text}",
        f"<think>{d(guess)}</think>\n```json\n{text}\n```",
        f"it is {d(guess)}</think>{text}",
        f"<think>{text}",
        f"<answer>{text}</answer>",
        f"<think>a</think><answer>{text}",
        f"Final diagnosis: {released}<|im_end|>",
        f"So. Final diagnosis: {released.replace(chr(34), chr(39))}",
        released,
        d(record),
        d({**record, "bounding_box": None}),
        d(asked),
        quoted,
        text.replace('"', "“", 1).replace('"', "”", 1),
        text[:-1] + ",}",
        text.replace(", ", ", // so\n", 1),
        d({"answer": boxed}),
        d([boxed]),
        d([boxed, {"bounding_box": far, **stale}]),
        d([{"bounding_box": far, **stale}, boxed]),
        d({"bounding_box": far, **stale}),
        f"{d({'bounding_box': far, **guess})} No: {text}",
        f"{d({'bounding_box': far, **guess})} No: {d(asked)}",
        f"{d({'bounding_box': far, **guess})} No: {text[:-2]}",
        f"{d({'bounding_box': far, **guess})} No: {text[: len(text) // 2]}",
        f"{text} and {d(stale)[:-3]}",
        f"{text} and {d(stale)}",
        text[:-1],
        text[:-2],
        bare,
        bare + "}",
        "It is " + bare + ", more",
        f'"{key}": {d(value)}, "bounding_box": {box}',
        f'"bounding_box": {far}, "{next(iter(stale))}": {d(next(iter(stale.values())))}, {bare}',
        d({"bounding_box": box}) + d(asked),
        d(asked) + "\n" + d({"bounding_box": box}),
        d({"MOAKS_scores": {key: odd}}).replace(d(odd), odd),
        f'{{"{key}": {{"{first.name}": {odd}}}}}',
        d({key: {**grades, "score": 0.87}}),
        d({key: {"value": 3, "unit": "mm", **grades}}),
        d({key: {"value": 3, "unit": "mm"}}),
        d({key: {spelled: grades[first.name], **dict(list(grades.items())[1:])}}),
        d({key.upper().replace(" ", "_"): grades, "bbox": box}),
        d({"location": {"bounding_box": box}, **asked}),
        d({"bounding_box": far, **sibling}),
        d({"bounding_box": dict(zip(SIDES, box, strict=True)), **asked}),
        d({"bounding_box": str(box), **asked}),
        d({"bounding_box": box[:5], **asked}),
        d({"bounding_box": [box[1], box[0], *box[2:]], **asked}),
        d(grades | {"bounding_box": box}),
        d({"MOAKS_scores": grades}),
        d({"response": text}),
        d(text),
        d({key: {name: f"Grade {grade}: as seen" for name, grade in grades.items()}, "bounding_box": box}),
        d({key: {name: float(grade) for name, grade in grades.items()}}),
        "I cannot tell.",
        "",
        f"Grade {grades[first.name]}.",
    ]  # fmt: skip


PIECES = [
    *"{}[]()\"':,\n #/-%.0123456789",
    "null",
    "None",
    "true",
    '{"',
    '"}',
    "<think>",
    "</think>",
    "```",
    "//",
    "/*",
]
PIECES += [
    "<answer>",
    "Final diagnosis:",
    '"grade"',
    '"bounding_box": ',
    "or 2",
    " mm",
    "“",
    "”",
    "<|im_end|>",
    "\\",
]


def mutated(chance, text):
    """`text` with a few characters or pieces cut out, put in, doubled, swapped or cut off at the end."""
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        at, way = chance.randrange(len(text) + 1), chance.randrange(5)
        end = min(len(text), at + chance.choice([1, 1, 2, 5, 20]))
        if way == 0:
            text = text[:at] + text[end:]
        elif way == 1:
            text = text[:at] + chance.choice(PIECES) + text[at:]
        elif way == 2:
            text = text[:end] + text[at:]
        elif way == 3:
            text = text[:at] + chance.choice(PIECES) + text[end:]
        else:
            text = text[:at] if chance.random() < 0.5 else text[at:]
    return text
