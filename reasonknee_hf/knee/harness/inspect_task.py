"""ReasonKnee-Bench as a task of Inspect.

    inspect eval reasonknee_hf/reasonknee_bench -T source=sample -T frames=16 --model ...

or `inspect_ai.eval(reasonknee_bench(source="sample"), model=...)`. Reading and scoring are those of
`reasonknee bench score`, item by item; errors of means are clustered by patient. Its log is a prediction file:
`reasonknee bench score` reads its samples as JSON lines. Importing this module imports `inspect_ai`.
"""

from __future__ import annotations

import base64
from io import BytesIO
from typing import Any

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ChatMessageUser, ContentImage, ContentText
from inspect_ai.scorer import Metric, SampleScore, Score, Scorer, Target, mean, metric, scorer, stderr
from inspect_ai.solver import Generate, Solver, TaskState, generate, solver

from reasonknee_hf.knee.harness.functions import dataset, doc_to_image, process_results


@task
def reasonknee_bench(**options: Any) -> Task:
    """The task.

    Args:
        options: As for `functions.dataset`: `source`, `setting`, `split`, `scans`, `frames`, …
    """
    documents = dataset(**options)["test"]
    samples = [Sample(id=doc["id"], input=doc["text"], metadata=dict(doc)) for doc in documents]
    return Task(
        dataset=MemoryDataset(samples, name="reasonknee_bench"),
        solver=[shown(), generate()],
        scorer=[item_accuracy(), attribute_accuracy(), iou()],
    )


@solver
def shown() -> Solver:
    """Puts the frames in front of the prompt. They are decoded when a sample runs, so that memory does not grow."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        pictures = [ContentImage(image=_url(picture)) for picture in doc_to_image(state.metadata)]
        state.messages = [ChatMessageUser(content=[*pictures, ContentText(text=state.metadata["text"])])]
        return state

    return solve


def _url(picture: Any) -> str:
    held = BytesIO()
    picture.save(held, "png")
    return f"data:image/png;base64,{base64.b64encode(held.getvalue()).decode()}"


def _scores(state: TaskState) -> dict[str, Any]:
    return process_results(state.metadata, [state.output.completion])


@scorer(metrics=[mean(), stderr(cluster="patient_id")])
def item_accuracy() -> Scorer:
    """Whether all grades of an item are right."""

    async def score(state: TaskState, target: Target) -> Score | None:
        found = _scores(state).get("item_accuracy")
        return None if found is None else Score(value=found, answer=state.output.completion)

    return score


@metric
def over_grades() -> Metric:
    """The share of all grades that are right: items have one to three."""

    def measure(scores: list[SampleScore]) -> float:
        counts = [(one.score.metadata or {}).get("grades", 1) for one in scores]
        right = sum(one.score.as_float() * count for one, count in zip(scores, counts, strict=True))
        return right / sum(counts) if counts else 0.0

    return measure


@scorer(metrics=[over_grades()])
def attribute_accuracy() -> Scorer:
    """The share of an item's grades that are right."""

    async def score(state: TaskState, target: Target) -> Score | None:
        found = _scores(state).get("attribute_accuracy")
        return None if found is None else Score(value=float(found), metadata={"grades": found.of})

    return score


@scorer(metrics=[mean(), stderr(cluster="patient_id")])
def iou() -> Scorer:
    """The 3D IoU of the answered box with the true one, for items whose prompt asks for a box."""

    async def score(state: TaskState, target: Target) -> Score | None:
        found = _scores(state).get("iou")
        return None if found is None else Score(value=found)

    return score
