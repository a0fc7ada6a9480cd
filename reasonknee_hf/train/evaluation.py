"""Evaluation inside a `Trainer`, on any number of ranks: every row counts once, and metrics know its id.

    class RowTrainer(RowEvaluation, Trainer): ...

    trainer = RowTrainer(..., eval_dataset=evaluation_stream(rows), compute_metrics=score)

`compute_metrics` gets [`EvaluatedRows`]. Importing this module imports `transformers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from accelerate.utils import gather_object
from transformers import EvalPrediction

from reasonknee_hf.train.collator import IGNORED, Reference
from reasonknee_hf.train.trainer_stream import check_ranks


class EvaluatedRows(EvalPrediction):
    """What `compute_metrics` gets: all rows once, in the order of their ids.

    Args:
        references: What the batches kept about the rows, see [`~reasonknee_hf.train.collator.Reference`].
        predictions: A row's tokens, or what `preprocess_logits_for_metrics` makes of its logits; -100 behind them.
        label_ids: A row's labels, -100 where there are none.

    Examples:
        >>> from reasonknee_hf.train import EvaluatedRows
        >>> EvaluatedRows([], None, None).ids
        []
    """

    def __init__(self, references: Sequence[Reference], predictions: Any, label_ids: Any) -> None:
        super().__init__(predictions, label_ids)
        self.references = list(references)

    @property
    def ids(self) -> list[str]:
        """The id of each row."""
        return [reference.id for reference in self.references]


class _Row(NamedTuple):
    reference: Reference
    prediction: Any
    labels: Any


class RowEvaluation:
    """Goes before a trainer's class, and makes its evaluation count every row of an `evaluation_stream` once.

    - Rows that only fill batches are left out of metrics and of the loss.
    - Predictions are the likeliest token at each place, unless `preprocess_logits_for_metrics` is given: the logits
      of a vocabulary do not travel between ranks. With `generation` they are the tokens that the model says.
    - The loss is the mean over all tokens of answers, whatever batches they came in.

    Examples:
        >>> from reasonknee_hf.train import RowEvaluation
        >>> from transformers import Trainer
        >>> class RowTrainer(RowEvaluation, Trainer):
        ...     generation = {"max_new_tokens": 8}
        ...
        >>> RowTrainer.generation["max_new_tokens"]
        8
    """

    generation: dict[str, Any] | None = None
    """Options of `generate`, such as `{"max_new_tokens": 64}`, for a collator without a target."""

    args: Any
    compute_metrics: Any
    preprocess_logits_for_metrics: Any

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> Any:
        """As in `Trainer`, which makes the steps.

        Raises:
            OptionError: Ranks would get different numbers of batches, or not every row.
        """
        check_ranks(dataloader.dataset, evaluates=True)
        self._rows: list[_Row] = []
        self._losses: list[tuple[float, int]] = []
        compute, self.compute_metrics = self.compute_metrics, None
        self._only_loss = (
            self.args.prediction_loss_only if prediction_loss_only is None else prediction_loss_only
        )
        try:
            loop: Any = super()
            output = loop.evaluation_loop(dataloader, description, True, ignore_keys, metric_key_prefix)
        finally:
            self.compute_metrics = compute
        rows = sorted(gather_object(self._rows), key=lambda row: row.reference.id)
        losses = gather_object(self._losses)
        predictions, labels = _stacked([r.prediction for r in rows]), _stacked([r.labels for r in rows])
        metrics = dict(output.metrics)
        if tokens := sum(count for _, count in losses):
            metrics[f"{metric_key_prefix}_loss"] = sum(loss * count for loss, count in losses) / tokens
        if compute is not None and predictions is not None:
            found = compute(EvaluatedRows([row.reference for row in rows], predictions, labels))
            metrics |= {f"{metric_key_prefix}_{name}": value for name, value in found.items()}
        return output._replace(
            predictions=predictions, label_ids=labels, metrics=metrics, num_samples=len(rows)
        )

    def prediction_step(
        self, model: Any, inputs: Any, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> Any:
        """As in `Trainer`; keeps what the step says about each row."""
        if self.generation is not None and not self._only_loss:
            loss, labels, predictions = None, None, self._generated(inputs)
        else:
            step: Any = super()
            loss, logits, labels = step.prediction_step(model, inputs, self._only_loss, ignore_keys)
            predictions = None if logits is None else self._predicted(logits, labels)
        if loss is not None:
            counted = int((inputs["labels"] != IGNORED).sum())
            if counted:  # otherwise all of them fill the batch
                self._losses.append((float(loss), counted))
        for number, reference in enumerate(inputs.references):
            if not reference.is_padding:
                self._rows.append(_Row(reference, _at(predictions, number), _at(labels, number)))
        return loss, None, None

    def _predicted(self, logits: Any, labels: Any) -> Any:
        if self.preprocess_logits_for_metrics is not None:
            return self.preprocess_logits_for_metrics(logits, labels)
        return (logits[0] if isinstance(logits, tuple) else logits).argmax(-1)

    def _generated(self, inputs: Any) -> Any:
        trainer: Any = self
        model = trainer.accelerator.unwrap_model(trainer.model)
        said = model.generate(**trainer._prepare_inputs(inputs), **(self.generation or {}))
        return said[:, inputs["input_ids"].shape[1] :]


def _at(values: Any, number: int) -> Any:
    """What concerns one row, in the memory of the machine."""
    if values is None:
        return None
    value = torch.atleast_1d(values[number]).cpu()
    return value.float() if value.is_floating_point() else value  # numpy knows no bfloat16


def _stacked(values: Sequence[Any]) -> Any:
    """What concerns all rows in one array, -100 behind the shorter ones."""
    known = [value for value in values if value is not None]
    return torch.nn.utils.rnn.pad_sequence(known, True, IGNORED).numpy() if known else None
