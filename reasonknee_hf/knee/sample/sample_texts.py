"""Reasoning texts: one fixed sentence for each grade of each attribute, as in the published mapping."""

from __future__ import annotations

import json
from collections.abc import Mapping

from reasonknee_hf.knee.moaks import Attribute, Question

MARKER = "Final diagnosis:"

_STEPS = {
    "size": (
        "no lesion is seen",
        "a small lesion is seen",
        "a lesion of medium extent is seen",
        "most of it is affected",
    ),
    "number": (
        "nothing is to be counted",
        "there is one focus",
        "there are two foci",
        "there are three foci or more",
    ),
    "percent_bml": (
        "no oedema is present",
        "most of it is cyst",
        "cyst and oedema are balanced",
        "nearly all of it is oedema",
    ),
    "depth": (
        "the bone is covered everywhere",
        "a little of the bone is bare",
        "a good part of the defect reaches the bone",
        "the defect reaches the bone nearly everywhere",
    ),
    "grade": ("it looks normal", "the change is mild", "the change is moderate", "the change is marked"),
    "morphology": (
        "shape and signal are normal",
        "there is signal inside but no tear",
        "a cleft runs across it",
        "a cleft splits it into an upper and a lower leaf",
        "a cleft stands upright in it",
        "clefts run in several directions",
        "part of it is missing",
        "more of it is missing than before",
        "nothing of it is left",
    ),
    "tear_location": ("the front is torn", "the body is torn", "the back is torn", "no tear is found"),
}
_YES_NO = {
    "presence": ("the finding is absent", "the finding is present"),
    "complete_tear": ("the fibres are continuous", "no fibre is continuous"),
    "bml_cyst": ("the bone at its ends is quiet", "the bone at one end shows oedema or a cyst"),
    "repair": ("there is no sign of surgery", "a graft is seen"),
    "signal_abnormality": ("its signal is evenly dark", "its signal is raised"),
}


def sentence(attribute: Attribute, grade: int) -> str:
    """The fixed text for one grade of `attribute`."""
    return (_YES_NO.get(attribute.name) or _STEPS[attribute.name])[grade]


def reasoning(question: Question, grades: Mapping[str, int]) -> str:
    """What the sample says before the final diagnosis."""
    where = (
        question.structure
        if question.subregion in ("whole", "anywhere")
        else f"{question.structure}, {question.subregion}"
    )
    findings = "; ".join(sentence(attribute, grades[attribute.name]) for attribute in question.attributes)
    return f"The slices through the {where} were compared with their neighbours: {findings}."


def mapping(question: Question) -> dict[str, dict[str, str]]:
    """Attribute to grade (as text) to sentence: one entry of `cot_question_mapping.json`."""
    return {a.name: {str(grade): sentence(a, grade) for grade in a.grades} for a in question.attributes}


def answer(question: Question, grades: Mapping[str, int], final_diagnosis: Mapping[str, object]) -> str:
    """The `answer` of a record: reasoning, marker, and the final diagnosis as JSON."""
    return f"{reasoning(question, grades)} {MARKER} {json.dumps(final_diagnosis)}"
