"""The settings that trainers need for a stream of rows."""

from __future__ import annotations

import inspect
from typing import Any

from reasonknee_hf.errors import ExtraMissingError, OptionError

# What our stream needs, and what goes wrong without it.
_NEEDED: dict[str, tuple[Any, str]] = {
    "remove_unused_columns": (
        False,
        "drops the columns that the model's forward does not name: the volume, the box",
    ),
}
_NEEDED_OF_LAUNCHER: dict[str, tuple[Any, str]] = {
    "dispatch_batches": (
        False,
        "cuts batches made on rank 0 into pieces for all ranks, through the pixels of a row",
    ),
    "split_batches": (False, "cuts each batch into pieces for all ranks, so every rank decodes every scan"),
}


def training_arguments(output_dir: str, cls: Any = None, **options: Any) -> Any:
    """Arguments for `Trainer` or a trainer of TRL with the settings that our stream needs.

    | option | value | why |
    |---|---|---|
    | `remove_unused_columns` | `False` | the collator needs columns that the model's forward does not name |
    | `accelerator_config` | `dispatch_batches` and `split_batches` off | every rank reads its own scans |
    | `dataset_kwargs` (TRL's SFT) | `skip_prepare_dataset` | the collator makes the chats, with their pixels
    |
    | `max_length` (TRL's SFT) | `None` | a cut chat has fewer visual tokens than frames |
    | `shuffle_dataset` (TRL's GRPO) | `False` | a buffer of prompts with pixels would be filled before the first step |

    Args:
        output_dir: Where checkpoints go.
        cls: `TrainingArguments` by default; `trl.SFTConfig` and its kind work as well.
        options: Any options of `cls`. They go before the table, and are refused where they contradict it.

    Raises:
        OptionError: An option would drop columns or dispatch batches; the message names it.
        ExtraMissingError: `transformers` is not installed.

    Examples:
        >>> from reasonknee_hf.train import training_arguments
        >>> training_arguments("out", max_steps=10).remove_unused_columns
        False
    """
    if cls is None:
        try:
            import transformers
        except ImportError as error:
            raise ExtraMissingError(
                "training needs transformers: pip install 'reasonknee_hf[train]'"
            ) from error
        cls = transformers.TrainingArguments
    launcher = options.pop("accelerator_config", None) or {}
    launcher = dict(launcher) if isinstance(launcher, dict) else launcher.to_dict()
    for option, (value, _) in _NEEDED_OF_LAUNCHER.items():
        launcher.setdefault(option, value)
        if launcher[option] is None:
            launcher[option] = value
    settings = {option: value for option, (value, _) in _NEEDED.items()}
    known = inspect.signature(cls).parameters
    if "dataset_kwargs" in known:
        settings["dataset_kwargs"] = {"skip_prepare_dataset": True} | (
            options.pop("dataset_kwargs", None) or {}
        )
    if "max_length" in known:
        settings["max_length"] = None
    if "shuffle_dataset" in known:
        settings["shuffle_dataset"] = False
    arguments = cls(output_dir, **(settings | options), accelerator_config=launcher)
    check_arguments(arguments)
    return arguments


def check_arguments(arguments: Any) -> None:
    """Refuses trainer arguments that would drop columns of our rows or dispatch batches from rank 0.

    Args:
        arguments: `TrainingArguments` or of a class derived from it.

    Raises:
        OptionError: The first option that has to change.

    Examples:
        >>> from reasonknee_hf.train import check_arguments, training_arguments
        >>> check_arguments(training_arguments("out", max_steps=10))
    """
    launcher = arguments.accelerator_config
    for holder, needed, prefix in (
        (arguments, _NEEDED, ""),
        (launcher, _NEEDED_OF_LAUNCHER, "accelerator_config."),
    ):
        for option, (value, harm) in needed.items():
            found = getattr(holder, option)
            if found != value:
                raise OptionError(
                    f"{prefix}{option}={found!r} {harm}. Set it to {value!r}, or use training_arguments()"
                )
