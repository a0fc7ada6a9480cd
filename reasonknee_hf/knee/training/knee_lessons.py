"""The words of 3DReasonKnee for training."""

from __future__ import annotations

from reasonknee_hf.bench.reading import Reading
from reasonknee_hf.knee.moaks import QUESTIONS
from reasonknee_hf.knee.scoring.answer_reading import read_answer
from reasonknee_hf.knee.training.setting_texts import SETTINGS, region_of, user_text
from reasonknee_hf.knee.training.targets import BOX_TARGETS, TARGETS, target_text
from reasonknee_hf.prompting.lessons import Lessons


def read(text: str, question_id: int | None) -> Reading:
    """What an answer says, as the benchmark reads it."""
    question = None if question_id is None else QUESTIONS.get(int(question_id))
    return Reading("unknown_question") if question is None else read_answer(text, question)


def nearness(question_id: int, name: str, said: int | None, grade: int) -> float:
    """1 less the distance in shares of the scale, for grades with an order; for others 1 or 0."""
    attribute = QUESTIONS[question_id].attribute(name)
    if said is None or attribute is None or attribute.kind != "ordinal":
        return float(said == grade)
    return 1 - abs(said - grade) / attribute.high


KNEE_LESSONS = Lessons(
    settings=SETTINGS,
    targets=TARGETS,
    box_targets=BOX_TARGETS,
    user_text=user_text,
    target_text=target_text,
    region_of=region_of,
    read=read,
    nearness=nearness,
)
