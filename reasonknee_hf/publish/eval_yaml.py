"""`eval.yaml`: what the Hub knows a benchmark by, so that results of models have a board.

The form is that of <https://huggingface.co/docs/hub/eval-results>: tasks with a config and a split, whose ids
`bench score --eval-results` writes too. The Hub takes frameworks of its own list only (`EVALUATION_FRAMEWORKS` in
`packages/tasks/src/eval.ts` of huggingface.js): ours is Inspect, by the task of this package. It shows a board once it
was asked to.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import yaml

from reasonknee_hf.bench.scorer import Scorer, scorer_of
from reasonknee_hf.publish.config_facts import Conversion
from reasonknee_hf.publish.row_selection import Selection
from reasonknee_hf.publish.standing import EVALUATION

_FRAMEWORK = "inspect-ai"
logger = logging.getLogger(__name__)


def eval_yaml(old: str, conversion: Conversion, deleted: Collection[str] = ()) -> str | None:
    """The text that a repository should have; empty to leave what is there, `None` to remove it.

    What others wrote stays: a file of another framework whole, of ours all but the tasks of these configs.

    Args:
        old: The text that is there; empty if there is none.
        conversion: What was written; a part of the benchmark is none.
        deleted: Configs that go.
    """
    scorer = None if conversion.job.dataset.scorer is None else scorer_of(conversion.job.release.dataset)
    tasks = [] if scorer is None else _tasks(conversion, scorer)
    before = _read(old)
    there = before.get("tasks") or []
    if old and (scorer is None or not there or any(task.get("id") not in scorer.tasks for task in there)):
        if tasks:
            logger.warning("%s was written by others and stays: results have no board here", EVALUATION)
        return ""
    mine = {*deleted, *(config.name for config in conversion.configs)}
    others = [task for task in there if task.get("config") not in mine]
    if not others and not tasks:
        return None if old else ""
    title = scorer.title if scorer else None
    words = {
        "name": title,
        "description": f"{title}, scored by `reasonknee bench score`; its option --eval-results writes results.",
        "evaluation_framework": _FRAMEWORK,
    }
    told = words | before | {"tasks": [*others, *tasks]}
    return str(yaml.safe_dump(told, sort_keys=False, allow_unicode=True, width=100))


def _read(old: str) -> dict[str, Any]:
    try:
        told = yaml.safe_load(old)
        return told if isinstance(told, dict) and all(hasattr(task, "get") for task in told["tasks"]) else {}
    except (yaml.YAMLError, LookupError, TypeError):
        return {}


def _tasks(conversion: Conversion, scorer: Scorer) -> list[dict[str, str]]:
    """The tasks of what was written, if that is the whole of a benchmark."""
    job = conversion.job
    if replace(job.selection, splits=Selection().splits) != Selection():
        return []
    return [
        {"id": task, "config": config.name, "split": split}
        for config in conversion.configs[:1]
        for split, facts in config.splits.items()
        if (job.config, split) == scorer.references_of and facts.rows
        for task in scorer.tasks
    ]
