"""From rows to a batch: the only place where rows become model inputs."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

from reasonknee_hf.errors import ExtraMissingError, OptionError, RecordError
from reasonknee_hf.prompting.chats import (
    Style,
    answer_text,
    make_style,
    messages,
    row_view,
    row_volume,
)
from reasonknee_hf.prompting.lessons import name_of
from reasonknee_hf.prompting.view import View
from reasonknee_hf.train.trainer_stream import PaddingRow, check_ranks, passed_over
from reasonknee_hf.volumes.volume_cache import volume_cache

logger = logging.getLogger(__name__)

IGNORED = -100
"""The label of tokens that no loss is taken of."""


@dataclass(frozen=True)
class Reference:
    """What a batch keeps about one of its rows, beside the tensors.

    Args:
        id: The row's id.
        question_id: Its question.
        bbox: Its true box in voxels.
        grades: Its true grades by short attribute name.
        answer: The text the model is trained to say; `None` without a target.
        view: The layout of what the model sees, with the way back from its coordinates to voxels.
        is_padding: Whether the row only fills the batch of a rank, and counts in no metric; it has no labels.
    """

    id: str
    question_id: int | None
    bbox: tuple[int, ...] | None
    grades: dict[str, int]
    answer: str | None
    view: View
    is_padding: bool = False


class Batch(dict[str, Any]):
    """Tensors by name, for `model(**batch)`, and `references`: one [`Reference`] a row, in order.

    The list is an attribute, so that launchers and models see tensors only. It survives pickling between
    processes, `to(device)` and `pin_memory()`. `Trainer` hands the batch to `training_step` with it and makes
    a plain copy without it for the model.

    Examples:
        >>> from reasonknee_hf.train import Collator, get_recipe
        >>> batch = Collator(processor, view=get_recipe("o1", size=28), target="grades")([row])
        >>> batch.references[0].id == row["id"]
        True
    """

    references: Sequence[Reference] = ()

    def __init__(
        self, tensors: Mapping[str, Any] | None = None, references: Sequence[Reference] = ()
    ) -> None:
        super().__init__(tensors or {})
        self.references = references

    def to(self, device: Any, non_blocking: bool = False) -> Batch:
        """The batch on another device."""
        moved = {name: tensor.to(device, non_blocking=non_blocking) for name, tensor in self.items()}
        return Batch(moved, self.references)

    def pin_memory(self) -> Batch:
        """The batch in pinned memory."""
        return Batch({name: tensor.pin_memory() for name, tensor in self.items()}, self.references)


class Collator:
    """Makes batches of rows: chats, pixels, tokens, labels.

        Collator(processor, view="jitter", target="box_grades")

    All tokens but those of the target have the label -100. Pixels go from the cached volume to the processor
    in memory. Without a target the batch is made for `generate`: padded on the left, no labels.

    Args:
        processor: A `transformers` processor with a chat template, and with a video processor if the view is
            a video.
        max_length: The most tokens a row may have; a longer one is an error, since a cut chat has fewer
            visual tokens than frames.
        augment: Changes each row first, such as [`~reasonknee_hf.train.augment.Augment`].
        processor_kwargs: More options for the processor's call.
        cache_bytes: Size of the cache of decoded volumes in each process that makes batches, such as
            `loader_sizes().cache_bytes`; that of `volumes.cache` by default.
        options: Those of [`~reasonknee_hf.prompting.chats.Style`]: `setting`, `view`, `target`,
            `coordinates`, `region_as`, `prompts`, `system`, `clip`, `regions`, `seed`, `dataset`.

    Raises:
        OptionError: An option has no such value, or the processor cannot take the view.

    Examples:
        >>> from reasonknee_hf.train import Collator, get_recipe
        >>> collator = Collator(processor, view=get_recipe("o1", size=28), target="grades")
        >>> sorted(collator([row]))
        ['attention_mask', 'image_grid_thw', 'input_ids', 'labels', 'mm_token_type_ids', 'pixel_values']
    """

    def __init__(
        self,
        processor: Any,
        *,
        max_length: int | None = None,
        augment: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
        processor_kwargs: Mapping[str, Any] | None = None,
        cache_bytes: int | None = None,
        **options: Any,
    ) -> None:
        self.style: Style = make_style(options)
        self.processor = processor
        self.max_length = max_length
        self.augment = augment
        if augment is not None and self.style.regions is not None:
            raise OptionError(
                "boxes given as regions= are those of the rows before augment= changes them; leave one out"
            )
        self.processor_kwargs = dict(processor_kwargs or {})
        self.cache_bytes = cache_bytes
        _check_processor(processor, self.style)

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> Batch:
        """Makes a batch.

        Args:
            rows: Rows as `load_dataset` gives them; their volumes may differ in shape.

        Raises:
            RecordError: A row lacks what its chat says, or is longer than `max_length`.
            VolumeMissingError: A row's volume is not there.
            OptionError: Rows come without their columns, or batches are dispatched from rank 0.
        """
        _refuse_loader()
        if passed_over(rows):
            return Batch()
        padding = [isinstance(row, PaddingRow) for row in rows]
        if self.cache_bytes is not None and volume_cache().max_bytes != self.cache_bytes:
            volume_cache().resize(self.cache_bytes)
        if self.augment is not None:
            rows = [self.augment(row) for row in rows]
        views = [row_view(row, self.style) for row in rows]
        pictures = [view.draw(row_volume(row)) for row, view in zip(rows, views, strict=True)]
        return self.drawn(rows, views, pictures, padding)

    def drawn(
        self,
        rows: Sequence[Mapping[str, Any]],
        views: Sequence[View],
        pictures: Sequence[npt.NDArray[np.uint8]],
        padding: Sequence[bool] = (),
    ) -> Batch:
        """A batch of rows whose views have been drawn.

        Args:
            rows: The rows.
            views: What `row_view` laid out for each.
            pictures: What each view drew: frames, height, width.
            padding: Which rows only fill the batch; none by default.
        """
        padding = list(padding) or [False] * len(rows)
        prompts, answers = zip(
            *(self._texts(row, view) for row, view in zip(rows, views, strict=True)), strict=True
        )
        tensors = self._process(list(prompts), list(views), list(pictures), list(map(name_of, rows)))
        if self.style.said is not None:
            tensors = self._with_answers(tensors, list(answers))
        self._check_length(tensors, rows)
        if "labels" in tensors:
            tensors["labels"][padding] = IGNORED
        references = [
            _reference(row, self.style, view, is_padding)
            for row, view, is_padding in zip(rows, views, padding, strict=True)
        ]
        return Batch(tensors, references)

    def __getstate__(self) -> dict[str, Any]:
        _refuse_loader()  # a spawned worker knows nothing of the launcher; here its loader is known
        return self.__dict__

    # --- text -----------------------------------------------------------------------------------------------

    def _texts(self, row: Mapping[str, Any], view: View) -> tuple[str, str]:
        """The chat up to where the assistant speaks, and what the template makes of its answer."""
        blocks = (
            [{"type": "video"}] if view.kind == "video" else [{"type": "image"} for _ in range(view.pictures)]
        )
        chat = messages(row, self.style, view, blocks)
        template = self.processor.apply_chat_template
        if self.style.said is None:
            return template(chat, tokenize=False, add_generation_prompt=True), ""
        prompt: str = template(chat[:-1], tokenize=False, add_generation_prompt=True)
        whole: str = template(chat, tokenize=False)
        answer = chat[-1]["content"][0]["text"]
        if not whole.startswith(prompt) or answer not in whole[len(prompt) :]:
            raise OptionError(
                f"{name_of(row)}: the chat template of {type(self.processor).__name__} does not write the answer as"
                " it is after its generation prompt, so it cannot be told which tokens to train on. Some templates"
                " of reasoning models cut <think> out: take another target, or give the processor a plain template"
            )
        return prompt, whole[len(prompt) :]

    def _process(
        self, prompts: list[str], views: list[View], pictures: list[npt.NDArray[np.uint8]], names: list[str]
    ) -> dict[str, Any]:
        """The processor's tensors of the prompts, as its `apply_chat_template(tokenize=True)` makes them."""
        import torch

        options: dict[str, Any] = {"padding": True, "padding_side": "right", "return_tensors": "pt"}
        if self.style.said is None:
            options["padding_side"] = "left"
        rgb = [torch.from_numpy(p).unsqueeze(1).expand(-1, 3, -1, -1) for p in pictures]
        if views[0].kind == "video":
            options |= {
                "videos": rgb,
                "video_metadata": [_metadata(view) for view in views],
                "do_sample_frames": False,
            }
            if getattr(self.processor.video_processor, "cap_pixels_per_frame", True) is None:
                options["cap_pixels_per_frame"] = False  # all pixels; unset, it warns at every start
        else:
            options["images"] = [list(each) for each in rgb]
        first = self.processor.tokenizer.bos_token
        if first is not None and prompts[0].startswith(first):
            options["add_special_tokens"] = (
                False  # the template has written it; `apply_chat_template` does the same
            )
        try:
            return dict(self.processor(text=prompts, **(options | self.processor_kwargs)))
        except (ValueError, RuntimeError, TypeError, IndexError) as error:
            counts = [view.pictures for view in views]
            if len(set(counts)) == 1:
                raise
            shown = ", ".join(f"{name} has {count}" for name, count in zip(names, counts, strict=True))
            said = str(error).splitlines()[0]
            raise RecordError(
                f"{type(self.processor).__name__} takes no batch of rows with different numbers of frames ({shown}):"
                f" {said}. Take a view that gives each row as many ('o1', 'eight', 'jitter'), or one row a batch"
            ) from error

    def _with_answers(self, tensors: dict[str, Any], answers: list[str]) -> dict[str, Any]:
        """Appends the tokens of the answers and makes labels of them.

        They are tokenized apart from the prompts, so that training sees the tokens that generation starts from.
        """
        import torch

        tokenizer = self.processor.tokenizer
        shape, kept = tensors["input_ids"].shape, tensors["attention_mask"].bool()
        said = [
            torch.tensor(tokenizer(answer, add_special_tokens=False)["input_ids"], dtype=torch.long)
            for answer in answers
        ]
        per_token = {name: tensor for name, tensor in tensors.items() if tensor.shape == shape}
        per_token["labels"] = torch.full(shape, IGNORED)
        ends = {"input_ids": said, "labels": said, "attention_mask": [torch.ones_like(ids) for ids in said]}
        zeros = [torch.zeros_like(ids) for ids in said]
        padding = {"input_ids": tokenizer.pad_token_id, "labels": IGNORED}
        for name, tokens in per_token.items():
            joined = [
                torch.cat([row[mask], end])
                for row, mask, end in zip(tokens, kept, ends.get(name, zeros), strict=True)
            ]
            tensors[name] = torch.nn.utils.rnn.pad_sequence(
                joined, batch_first=True, padding_value=padding.get(name, 0)
            )
        return tensors

    def _check_length(self, tensors: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
        lengths = tensors["attention_mask"].sum(dim=1).tolist()
        for row, length in zip(rows, lengths, strict=True):
            if self.max_length is not None and length > self.max_length:
                raise RecordError(
                    f"{name_of(row)}: its chat has {length} tokens, more than max_length={self.max_length}. Take a"
                    " smaller view (size= of a recipe, 'region', 'eight'), or a larger max_length"
                )


def _reference(row: Mapping[str, Any], style: Style, view: View, is_padding: bool) -> Reference:
    return Reference(
        id=str(row.get("id", "")),
        question_id=row.get("question_id"),
        bbox=None if row.get("bbox") is None else tuple(int(end) for end in row["bbox"]),
        grades={item["attribute"]: int(item["grade"]) for item in row.get("grades") or ()},
        answer=answer_text(row, style, view),
        view=view,
        is_padding=is_padding,
    )


def _metadata(view: View) -> dict[str, Any]:
    frames = view.pictures
    return {
        "total_num_frames": frames,
        "fps": view.fps,
        "duration": frames / view.fps,
        "frames_indices": list(range(frames)),
        "height": view.size[0],
        "width": view.size[1],
    }


def _check_processor(processor: Any, style: Style) -> None:
    if find_spec("torch") is None:
        raise ExtraMissingError("training needs torch: pip install 'reasonknee_hf[train]'")
    name = type(processor).__name__
    if not hasattr(processor, "apply_chat_template") or not hasattr(processor, "tokenizer"):
        raise OptionError(f"a {name} is no multimodal processor: pass AutoProcessor.from_pretrained(model)")
    kind = style.recipe.kind
    if kind == "video" and style.recipe.fps >= 5:
        logger.warning(
            "the view %r tells %g frames a second: models that count time in half seconds (Qwen2.5-VL) give several"
            " frames one position. The published fine-tuning tells 4.",
            style.recipe.name,
            style.recipe.fps,
        )
    if kind == "video" and getattr(processor, "video_processor", None) is None:
        raise OptionError(
            f"{name} has no video processor, and the view {style.recipe.name!r} is a video. Show the slices as"
            f" images: view=get_recipe({style.recipe.name!r}, kind='images'), or take 'o1' or 'planes'. (Where the"
            " model does know videos, its video processor needs torchvision: pip install 'reasonknee_hf[train]')"
        )
    if kind != "video" and getattr(processor, "image_processor", None) is None:
        raise OptionError(f"{name} has no image processor, and the view {style.recipe.name!r} is images")
    if processor.tokenizer.pad_token_id is None:
        raise OptionError(
            f"the tokenizer of {name} has no padding token; set tokenizer.pad_token = tokenizer.eos_token"
        )


def _refuse_loader() -> None:
    """Refuses to feed a loader of `accelerate` whose ranks get unequal parts, or pieces of batches made on rank 0.

    That would cut tensors of pixels, which have a row for each patch, by the number of rows.
    """
    if "accelerate.state" not in sys.modules:
        return
    from accelerate.state import GradientState, PartialState

    loader = GradientState().active_dataloader
    if loader is not None:
        check_ranks(loader.dataset, evaluates=False)
    if type(loader).__name__ == "DataLoaderDispatcher" and PartialState().num_processes > 1:
        raise OptionError(
            "dispatch_batches is on (the default for streams): batches made on rank 0 would be cut into pieces for"
            " the other ranks. Set dispatch_batches=False, as training_arguments() does, or"
            " Accelerator(dataloader_config=DataLoaderConfiguration(dispatch_batches=False))"
        )
