"""Callbacks for `transformers.Trainer`; importing this module imports `transformers`."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from reasonknee_hf.train.trainer_stream import TrainingStream


class ResumeCallback(TrainerCallback):
    """Lets a `Trainer` that resumes from a checkpoint pass over what it has seen without touching a volume.

    `Trainer` replays all batches of the epoch up to the checkpoint and throws them away. With this callback
    the stream yields placeholders in their place. The rows that follow are the same with and without it.

    Args:
        stream: The `train_dataset`.
    """

    def __init__(self, stream: TrainingStream) -> None:
        self.stream = stream

    def on_train_begin(
        self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **_: Any
    ) -> None:
        """Tells the stream what `Trainer` is going to throw away, by the rule that `Trainer` itself
        goes by."""
        if state.global_step == 0 or args.ignore_data_skip:
            return
        accumulated = args.gradient_accumulation_steps
        steps = max(-(-len(train_dataloader) // accumulated), 1)
        epoch, step = divmod(state.global_step, steps)
        self.stream.pass_over(epoch=epoch, batches=step * accumulated, batch_size=args.train_batch_size)
