"""Callbacks for `transformers.Trainer`; importing this module imports `transformers`."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from reasonknee_hf.errors import StateError
from reasonknee_hf.train.trainer_stream import TrainingStream, check_ranks

logger = logging.getLogger(__name__)

SETUP = "reasonknee_stream.json"
"""The file in a checkpoint that says how its run divided the rows."""


class ResumeCallback(TrainerCallback):
    """Makes a `Trainer` that resumes from a checkpoint go on with the next row and with the saved weights.

    - `Trainer` replays all batches of the epoch up to the checkpoint and throws them away. With this callback the
      stream yields placeholders in their place, and no volume is touched. The rows that follow are the same with and
      without it.
    - With another number of ranks, workers or rows in a batch, or another order, the rows that follow would be others:
      such a run is refused.
    - `Trainer` of transformers 5.24 saves some models (Qwen2.5-VL) under names that it does not find again, and goes on
      with the weights that it began with. Here they are loaded as `from_pretrained` loads them.

    Args:
        stream: The `train_dataset`.

    Examples:
        >>> from reasonknee_hf.train import ResumeCallback, training_stream
        >>> stream = training_stream(rk.load_dataset("full", split="train", streaming=True, source="sample"))
        >>> ResumeCallback(stream).stream is stream
        True
    """

    def __init__(self, stream: TrainingStream) -> None:
        self.stream = stream

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Notes in the checkpoint how the run divides the rows."""
        folder = _checkpoint(args, state)
        if state.is_world_process_zero and folder.is_dir():
            (folder / SETUP).write_text(json.dumps(self._setup(args), indent=2), encoding="utf-8")

    def on_train_begin(
        self,
        args: Any,
        state: Any,
        control: Any,
        train_dataloader: Any = None,
        model: Any = None,
        **_: Any,
    ) -> None:
        """Checks the checkpoint, loads its weights where `Trainer` did not, and tells the stream what is skipped.

        Raises:
            StateError: The run divides rows in another way than the one that saved the checkpoint, or its weights
                cannot be loaded here; the message names both numbers, or the files.
        """
        if state.global_step == 0:
            return
        folder = _checkpoint(args, state)
        if not folder.is_dir():
            logger.warning(
                "resuming from a checkpoint outside of %s: whether its run divided the rows in the same way, and"
                " whether its weights were found, is not checked",
                args.output_dir,
            )
        else:
            self._check(args, folder)
            _load_what_trainer_missed(args, folder, model)
        if args.ignore_data_skip:
            return
        accumulated = args.gradient_accumulation_steps
        # By the rule that `Trainer` itself goes by.
        steps = max(-(-len(train_dataloader) // accumulated), 1)
        epoch, step = divmod(state.global_step, steps)
        self.stream.pass_over(epoch=epoch, batches=step * accumulated, batch_size=args.train_batch_size)

    def on_prediction_step(
        self, args: Any, state: Any, control: Any, eval_dataloader: Any = None, **_: Any
    ) -> None:
        """Refuses to evaluate a stream that ranks do not divide evenly.

        Raises:
            OptionError: There are several ranks, and it was not made by `evaluation_stream`.
        """
        check_ranks(getattr(eval_dataloader, "dataset", None), evaluates=True)

    def _setup(self, args: Any) -> dict[str, Any]:
        return {
            "ranks": args.world_size,
            "loader workers": args.dataloader_num_workers,
            "rows in a batch": args.train_batch_size,
            "batches in a step": args.gradient_accumulation_steps,
            "order": self.stream.describe_order(),
        }

    def _check(self, args: Any, folder: Path) -> None:
        try:
            saved = json.loads((folder / SETUP).read_text(encoding="utf-8"))
        except FileNotFoundError:
            logger.warning("%s does not say how its run divided the rows: that is not checked", folder)
            return
        ours = self._setup(args)
        differing = [
            f"{name}: {saved[name]!r} in the checkpoint, {value!r} now"
            for name, value in ours.items()
            if name in saved and saved[name] != value
        ]
        if differing:
            raise StateError(
                f"{folder} belongs to a run that divides rows in another way ({'; '.join(differing)}): it would skip"
                " and repeat rows. Resume with the settings of that run, or begin a new one from its weights."
            )


def _checkpoint(args: Any, state: Any) -> Path:
    """Where `Trainer` keeps the checkpoint of this step."""
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def _load_what_trainer_missed(args: Any, folder: Path, model: Any) -> None:
    """Loads the full weights of a checkpoint if the model has names for parameters that its files lack."""
    from safetensors import safe_open

    files = sorted(folder.glob("model*.safetensors"))
    if model is None or not files:  # adapters, or another format: what `Trainer` loads strictly by itself
        return
    held: set[str] = set()
    for file in files:
        with safe_open(file, "pt") as tensors:
            held.update(tensors.keys())
    tied = set(getattr(model, "_tied_weights_keys", None) or ())
    missed = [name for name in model.state_dict() if name not in held and name not in tied]
    if not missed:
        return
    if args.deepspeed or getattr(args, "fsdp", None):
        raise StateError(
            f"{folder} holds {len(missed)} parameters under other names, such as {missed[0]!r}, and they cannot be"
            " loaded into a model that is divided among ranks. Load the model from the checkpoint by from_pretrained."
        )
    saved = type(model).from_pretrained(folder, dtype=model.dtype)
    model.load_state_dict(saved.state_dict())
    logger.warning("%s: loaded %d parameters that Trainer had not found by their names", folder, len(missed))
