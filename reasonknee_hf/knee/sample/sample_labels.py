"""Names and ids of the structures in the sample's masks, and which of them each question looks at.

Where ids of the published masks are known (44 medial meniscus, 49 tibial cartilage, 50 to 64 bone regions)
the sample uses the same; the other ids are its own.
"""

from __future__ import annotations

from reasonknee_hf.knee.moaks import QUESTIONS, Question

RECORDED_QUESTIONS = tuple(range(1, 63))
"""Ids of the questions that have a record for every annotated scan."""

_SIDES = ("medial", "lateral")
OSTEOPHYTE_SITES = tuple(
    f"{question.structure} {question.subregion}"
    for question in QUESTIONS.values()
    if question.family == "osteophyte"
)
FEMUR_REGIONS = tuple(
    f"femur {side} {part}" for side in _SIDES for part in ("trochlea", "central", "posterior")
)
PATELLA_REGIONS = tuple(f"patella {side}" for side in _SIDES)
TIBIA_REGIONS = (
    *(f"tibia {side} {part}" for side in _SIDES for part in ("anterior", "central", "posterior")),
    "tibia subspinous",
)

LABELS: dict[str, int] = {
    "background": 0,
    **{f"{site} margin": number for number, site in enumerate(OSTEOPHYTE_SITES, start=1)},
    "medial meniscus anterior horn": 27,
    "medial meniscus posterior horn": 28,
    "lateral meniscus anterior horn": 29,
    "lateral meniscus posterior horn": 30,
    "patellar tendon": 38,
    "patellar cartilage": 39,
    "anterior cruciate ligament": 40,
    "posterior cruciate ligament": 41,
    "Hoffa fat pad": 42,
    "suprapatellar recess": 43,
    "medial meniscus": 44,
    "medial meniscus root": 45,
    "lateral meniscus root": 46,
    "lateral meniscus": 47,
    "femoral cartilage": 48,
    "tibial cartilage": 49,
    **{
        name: number
        for number, name in enumerate((*FEMUR_REGIONS, *PATELLA_REGIONS, *TIBIA_REGIONS), start=50)
    },
}
"""Label name to id in the masks. "medial meniscus" and "lateral meniscus" are the bodies of the menisci:
horns and roots have ids of their own, because a voxel carries one id only."""

_WHOLE = {
    "Hoffa's fat pad": "Hoffa fat pad",
    "joint cavity": "suprapatellar recess",
    "ACL": "anterior cruciate ligament",
    "PCL": "posterior cruciate ligament",
    "patellar tendon": "patellar tendon",
}


def question_labels(question: Question) -> list[str]:
    """Names of the labels whose common bounds are the box of `question`; none if it is periarticular."""
    site = f"{question.structure} {question.subregion}"
    if question.family in ("BML", "cartilage"):
        return [site]
    if question.family == "osteophyte":
        return [f"{site} margin"]
    if question.structure in _WHOLE:
        return [_WHOLE[question.structure]]
    if question.structure not in ("medial meniscus", "lateral meniscus"):
        return []
    meniscus = question.structure
    parts = {
        "anterior horn": [f"{meniscus} anterior horn"],
        "posterior horn": [f"{meniscus} posterior horn", f"{meniscus} root"],
        "body": [meniscus],
        "root": [f"{meniscus} root"],
        "anterior border": [f"{meniscus} anterior horn"],
        "medial border": [meniscus],
        "lateral border": [meniscus],
    }
    whole = [meniscus, f"{meniscus} anterior horn", f"{meniscus} posterior horn", f"{meniscus} root"]
    return parts.get(question.subregion, whole)
