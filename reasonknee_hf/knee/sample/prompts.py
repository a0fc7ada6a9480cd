"""Prompts in the sample's own wording. Wrappers, keys and attributes they ask for are the published ones."""

from __future__ import annotations

import json
import re

from reasonknee_hf.knee.moaks import QUESTIONS, Question

BOX = "[start_slice, end_slice, x_min, x_max, y_min, y_max]"

_TASKS = {
    "BML": (
        "Look for bone marrow lesions in this part of the knee: {site}. Grade how much of it they "
        "fill, cysts included (1: less than 33%, 2: 33-66%, 3: more than 66%), how many there are (3 "
        "means ≥3) and which share of the lesion is marrow oedema rather than cyst, on the same "
        "steps."
    ),
    "cartilage": (
        "Judge the cartilage here: {site}. Grade the area that is damaged (1: less than 10%, 2: "
        "10-75%, 3: more than 75%) and the share of the damage that goes down to the bone, on the "
        "same steps."
    ),
    "osteophyte": (
        "Is there an osteophyte at this margin: {site}? Grade it 0 (none), 1 (small), 2 (medium) or 3"
        " (large)."
    ),
    "Hoffa-synovitis": (
        "Grade the signal change in {site} from 0 (normal) to 3 (severe) as a sign of synovitis."
    ),
    "effusion-synovitis": (
        "How far is the {site} distended by fluid? Grade from 0 (not at all) to 3 (severe)."
    ),
    "meniscal extrusion": (
        "How far does the {structure} reach beyond the edge of the tibia at its {subregion}? Grade 0 "
        "(less than 2 mm), 1 (2-2.9 mm), 2 (3-4.9 mm) or 3 (5 mm or more)."
    ),
    "meniscal morphology": (
        "Describe this part of the meniscus by its code: {site}. 0 normal, 1 signal change only; "
        "tears: 2 radial, 3 horizontal, 4 vertical, 5 complex; tissue lost: 6 partly, 7 partly and "
        "more than before, 8 completely."
    ),
    "meniscal cyst": (
        "Does a cyst lie at the {structure}? Say also where that meniscus is torn: 0 in front, 1 in "
        "the body, 2 at the back, 3 not at all."
    ),
    "meniscal hypertrophy": "Is the {structure} enlarged?",
    "meniscal root tear": "Is the posterior root of the {structure} torn?",
    "ligament/tendon": "Assess the {structure}; 0 means no and 1 means yes for each point asked below.",
    "periarticular": "Look around the joint ({structure}): is the finding that is named below present?",
}


def prompt(question: Question) -> str:
    """The sample's prompt for `question`."""
    site = (
        question.structure
        if question.subregion in ("whole", "anywhere")
        else f"{question.structure}, {question.subregion}"
    )
    task = _TASKS[question.family].format(
        site=site, structure=question.structure, subregion=question.subregion
    )
    return (
        f"You are given a sagittal DESS volume of one knee. {task} Explain what you see, say where it "
        f'is, and end with JSON of this form: {{"bounding_box": {BOX}, {template(question)[1:]}'
    )


def template(question: Question) -> str:
    """The JSON that `question` asks for, with the range of grades in the place of each grade."""
    places = {attribute.name: number for number, attribute in enumerate(question.attributes)}
    return re.sub(
        r": (\d+)",
        lambda found: f": (0-{question.attributes[int(found[1])].high})",
        json.dumps(question.answer(places)),
    )


def all_prompts() -> dict[str, str]:
    """Prompts of all questions, keyed by the id as text, as in the published question files."""
    return {str(number): prompt(question) for number, question in QUESTIONS.items()}
