"""ReasonKnee-Bench as a task of lm-evaluation-harness.

    import lm_eval
    from reasonknee_hf.knee.harness import task_manager

    tasks = task_manager(source="sample", setting="zero_shot", frames=16)
    lm_eval.simple_evaluate(model, tasks=["reasonknee_bench"], task_manager=tasks)

or on the command line

    lm_eval run --include_path FOLDER --metadata '{"source": "sample"}' --tasks reasonknee_bench --model ...

with the folder that `python -m reasonknee_hf.knee.harness` prints. The harness asks and
collects; reading and scoring are those of `reasonknee bench score`, item by item. Its "±" is over items, as for
all its tasks; `reasonknee bench score` has intervals over patients. A document whose prompt asks for no box has
no `iou`. This harness was chosen because it takes a function for the pictures of a document and a model merely iterates
over what that returns: frames are decoded when the model takes a request, not when requests are built, so
that memory does not grow with the benchmark.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reasonknee_hf.errors import ExtraMissingError

FOLDER = Path(__file__).parent
"""What `--include_path` of lm-evaluation-harness takes."""

TASK = "reasonknee_bench"


def task_manager(**options: Any) -> Any:
    """A `TaskManager` that knows the task.

    Args:
        options: `source`, `revision`, `endpoint`, `images`, `split`, `setting`, `scans` (the first so
            many), `ask_box`, `questions` (a published question file), `frames`, `window`, `size`; see
            `functions.dataset`.

    Raises:
        ExtraMissingError: lm-evaluation-harness is not installed.
    """
    try:
        from lm_eval.tasks import TaskManager  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        raise ExtraMissingError(
            "The harness task needs lm-evaluation-harness: pip install lm-eval."
        ) from error
    return TaskManager(include_path=str(FOLDER), include_defaults=False, metadata=options)
