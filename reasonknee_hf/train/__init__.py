"""From row to batch in the loops people already run: `transformers.Trainer`, TRL, `accelerate`, plain torch.

    stream = training_stream(rk.load_dataset("full", split="train", streaming=True))
    Trainer(
        model,
        training_arguments("out", max_steps=1000),
        train_dataset=stream,
        data_collator=Collator(processor, view="region", target="box_grades"),
        callbacks=[ResumeCallback(stream)],
    ).train()

`transformers`, TRL and torch are imported when they are used, not before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reasonknee_hf.prompting.chats import conversation as conversation
    from reasonknee_hf.prompting.recipes import RECIPES as RECIPES
    from reasonknee_hf.prompting.recipes import Recipe as Recipe
    from reasonknee_hf.prompting.recipes import get_recipe as get_recipe
    from reasonknee_hf.prompting.recipes import plan_view as plan_view
    from reasonknee_hf.prompting.view import View as View
    from reasonknee_hf.train.arguments import check_arguments as check_arguments
    from reasonknee_hf.train.arguments import training_arguments as training_arguments
    from reasonknee_hf.train.augment import Augment as Augment
    from reasonknee_hf.train.callbacks import ResumeCallback as ResumeCallback
    from reasonknee_hf.train.collator import Batch as Batch
    from reasonknee_hf.train.collator import Collator as Collator
    from reasonknee_hf.train.evaluation import EvaluatedRows as EvaluatedRows
    from reasonknee_hf.train.evaluation import RowEvaluation as RowEvaluation
    from reasonknee_hf.train.export_files import export as export
    from reasonknee_hf.train.lightning_data import RowsDataModule as RowsDataModule
    from reasonknee_hf.train.preferences import preference_stream as preference_stream
    from reasonknee_hf.train.rewards import RareGradeReward as RareGradeReward
    from reasonknee_hf.train.rewards import ViewIou as ViewIou
    from reasonknee_hf.train.rewards import format_reward as format_reward
    from reasonknee_hf.train.rewards import grade_reward as grade_reward
    from reasonknee_hf.train.rewards import iou_reward as iou_reward
    from reasonknee_hf.train.rewards import ordinal_reward as ordinal_reward
    from reasonknee_hf.train.rewards import prompt_stream as prompt_stream
    from reasonknee_hf.train.rewards import repetition_reward as repetition_reward
    from reasonknee_hf.train.sizing import loader_sizes as loader_sizes
    from reasonknee_hf.train.trainer_stream import evaluation_stream as evaluation_stream
    from reasonknee_hf.train.trainer_stream import training_stream as training_stream

# Public names by the module that defines them. Resolved at first use.
_NAMES = {
    ".arguments": "check_arguments training_arguments",
    ".augment": "Augment",
    ".callbacks": "ResumeCallback",
    "..prompting.chats": "conversation",
    ".collator": "Batch Collator",
    ".evaluation": "EvaluatedRows RowEvaluation",
    ".export_files": "export",
    ".lightning_data": "RowsDataModule",
    ".preferences": "preference_stream",
    "..prompting.recipes": "RECIPES Recipe get_recipe plan_view",
    ".rewards": "RareGradeReward ViewIou format_reward grade_reward iou_reward ordinal_reward prompt_stream"
    " repetition_reward",
    ".sizing": "loader_sizes",
    ".trainer_stream": "evaluation_stream training_stream",
    "..prompting.view": "View",
}
_PUBLIC = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = sorted([*_PUBLIC, "target_text"])


def __getattr__(name: str) -> Any:
    if name == "target_text":  # of the dataset that is meant where none is named
        from reasonknee_hf.prompting.lessons import lessons_of

        return lessons_of(None).target_text
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_PUBLIC[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
