"""Rows as chats: what `transformers` processors and TRL take."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import index
from os import PathLike
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from reasonknee_hf.dataset.contract import described
from reasonknee_hf.errors import OptionError, PredictionError, RecordError
from reasonknee_hf.prompting.lessons import Coordinates, Lessons, RegionAs, check_choice, lessons_of, name_of
from reasonknee_hf.prompting.recipes import Recipe, get_recipe, plan_view
from reasonknee_hf.prompting.view import View
from reasonknee_hf.volumes.volume import KneeVolume

Message = dict[str, Any]


@dataclass(frozen=True)
class Style:
    """How rows become chats; the options of [`conversation`] and of [`Collator`], checked once.

    Args:
        setting: `zero_shot`, `instruction` or `gt_region`; as the dataset has them.
        view: Name of a view, or a [`Recipe`]; see `recipes`.
        target: What the assistant says, one of the dataset's targets; `None` for a chat that ends with the user.
        coordinates: Boxes in `voxels` of the volume, as the bench scores them, or as the `view` shows them.
        region_as: With the setting `gt_region`: `text`, `crop` (the view is cut to it), or `both`.
        prompts: Text by question id instead of the rows' prompts.
        system: Text of a system message.
        clip: With `coordinates="view"`, take the visible part of a box that reaches beyond the view.
        regions: Box by row id that views are made around instead of the true one: what a model proposed before, as a
            mapping or as a file of JSON lines `{"id", "bbox"}`, ends inclusive.
        seed: With `jitter` in the view, what its crops are drawn by, beside the row's id and the epoch.
        dataset: Short name of the dataset that rows come from; the first one that is known by default.
        asked_only: The chat ends with the user also where a target is given, which then only says what is asked for.

    Raises:
        OptionError: An option has no such value; or the view would be made around the true box, of which the model is
            to say where it is: its place and size alone would give the answer away.
    """

    setting: str = "zero_shot"
    view: str | Recipe = "upstream"
    target: str | None = "grades"
    coordinates: Coordinates = "voxels"
    region_as: RegionAs = "both"
    prompts: Mapping[str, str] | None = None
    system: str | None = None
    clip: bool = False
    regions: Mapping[str, Sequence[int]] | str | PathLike[str] | None = None
    seed: int = 0
    dataset: str | None = None
    asked_only: bool = False

    @property
    def said(self) -> str | None:
        """What the assistant says; `None` where the chat ends with the user."""
        return None if self.asked_only else self.target

    @cached_property
    def lessons(self) -> Lessons:
        """What the dataset says to training."""
        return lessons_of(self.dataset)

    def __post_init__(self) -> None:
        check_choice("setting", self.setting, self.lessons.settings)
        check_choice("coordinates", self.coordinates, get_args(Coordinates))
        check_choice("region_as", self.region_as, get_args(RegionAs))
        if self.target is not None:
            check_choice("target", self.target, self.lessons.targets)
        recipe = get_recipe(self.view)
        if isinstance(self.regions, (str, PathLike)):
            object.__setattr__(self, "regions", read_regions(self.regions))
        if recipe.kind != "planes" and recipe.tells_region and not self._may_know_region:
            raise OptionError(
                f"the view {recipe.name!r} is cut around the true box, and the model is to say where that is"
                f" (setting {self.setting!r}, target {self.target!r}): size and place of its frames would tell. Take a"
                " view that does not ('jitter', 'upstream', 'o1'), regions= with boxes that were proposed, a target"
                " without a box, or the setting 'gt_region'"
            )

    @property
    def _may_know_region(self) -> bool:
        """Whether the model is told the true region, or never asked for it, or is shown a proposed one."""
        asks = self.target is None or self.target in self.lessons.box_targets
        return self.setting == "gt_region" or self.regions is not None or not asks

    def region(self, row: Mapping[str, Any]) -> Sequence[int] | None:
        """The box that the view of a row is made around; `None` for views that are made around none.

        Raises:
            RecordError: `regions` has none for the row.
        """
        if isinstance(self.regions, Mapping):
            if row.get("id") not in self.regions:
                raise RecordError(
                    f"{name_of(row)}: regions= has no box for it, but for {len(self.regions):,} other rows"
                )
            return self.regions[str(row["id"])]
        if get_recipe(self.view).tells_region and not self._may_know_region:
            return None  # planes meet in the middle of the volume then
        box: Sequence[int] | None = row.get("bbox")
        return box

    @property
    def recipe(self) -> Recipe:
        """The recipe of the view: with a true region to be seen, the given one cut to it."""
        recipe = get_recipe(self.view)
        if self.setting == "gt_region" and self.region_as != "text" and not recipe.crop:
            if recipe.kind == "planes":
                raise OptionError(
                    "the view 'planes' is not cut to a region: take region_as='text' or another view"
                )
            return get_recipe(recipe, slices="region", crop=True)
        return recipe


def conversation(row: Mapping[str, Any], **options: Any) -> list[Message]:
    """The chat about one row, pixels in memory.

        conversation(row, setting="gt_region", view="eight", target="box_grades")

    Args:
        row: A row of any config with questions.
        options: Those of [`Style`]: `setting`, `view`, `target`, `coordinates`, `region_as`, `prompts`,
            `system`, `clip`, `regions`, `seed`, `dataset`, `asked_only`.

    Returns:
        Messages `{"role", "content"}`. The content is a list of blocks: `{"type": "video", "video": array}`
        with an RGB array of shape (frames, height, width, 3), or `{"type": "image", "image": PIL image}` for
        each picture; then `{"type": "text", "text": …}`. Chats are built when they are needed and never
        stored in Arrow.

    Raises:
        OptionError: An option has no such value.
        RecordError: The row lacks what its chat says: a box, grades, reasoning.
        VolumeMissingError: The row's volume is not there.

    Examples:
        >>> from reasonknee_hf.train import conversation
        >>> chat = conversation(row, view="o1", target="grades")
        >>> [message["role"] for message in chat]
        ['user', 'assistant']
    """
    style = make_style(options)
    view = row_view(row, style)
    pictures = view.draw(row_volume(row))
    return messages(row, style, view, picture_blocks(view, pictures))


def messages(
    row: Mapping[str, Any], style: Style, view: View, pictures: list[dict[str, Any]]
) -> list[Message]:
    """The chat about one row around picture blocks that were made for it."""
    text = style.lessons.user_text(
        row,
        style.setting,
        style.target,
        view,
        coordinates=style.coordinates,
        region_as=style.region_as,
        prompts=style.prompts,
        clip=style.clip,
        placed=style.recipe.needs_region,
    )
    text = "\n".join(filter(None, (view.sides, text)))
    chat = [{"role": "user", "content": [*pictures, {"type": "text", "text": text}]}]
    if style.system is not None:
        chat.insert(0, {"role": "system", "content": [{"type": "text", "text": style.system}]})
    answer = answer_text(row, style, view)
    if answer is not None:
        chat.append({"role": "assistant", "content": [{"type": "text", "text": answer}]})
    return chat


def answer_text(row: Mapping[str, Any], style: Style, view: View) -> str | None:
    """What the assistant says, with its box in the coordinates of the style; `None` without a target."""
    if style.said is None or style.target is None:
        return None
    words = style.lessons
    if style.target in words.box_targets and style.coordinates == "view":
        return words.target_text(row, style.target, box=words.region_of(row, view, "view", style.clip))
    return words.target_text(row, style.target)


def row_view(row: Mapping[str, Any], style: Style) -> View:
    """The layout of what a model sees of a row. Reads the headers of its volume and its mask.

    Raises:
        GridMismatchError: The row's box, and every box that a model answers, lives on another grid than the volume.
    """
    volume = row_volume(row, style.dataset)
    volume.check_box_grid()
    return plan_view(
        style.recipe,
        volume.shape,
        spacing=volume.spacing,
        axcodes=volume.axcodes,
        region=style.region(row),
        name=name_of(row),
        # Rows of a `training_stream` know the epoch in which they came.
        draw=f"{style.seed} {row.get('id')} {getattr(row, 'epoch', 0)}",
    )


def row_volume(row: Mapping[str, Any], dataset: str | None = None) -> KneeVolume:
    """The volume of a row of a dataset, by its short name; of the first one that is known by default.

    Raises:
        OptionError: The rows have no column `image`, or it holds something else than a lazy volume.
        RecordError: The row's volume is null.
    """
    if "image" not in row:
        raise OptionError(
            f"{name_of(row)} has no column 'image', only {', '.join(row) or 'none'}. A Trainer with"
            " remove_unused_columns=True drops the columns that the model does not name: set"
            " remove_unused_columns=False, as training_arguments() does"
        )
    volume = row["image"]
    if volume is None:
        raise RecordError(
            f"{name_of(row)}: its volume is null. Load with on_error='skip' to leave such rows out, or give the"
            " folder of your volumes as images="
        )
    if not isinstance(volume, KneeVolume):
        of = described(dataset)
        axes = of.features(next(iter(of.configs)), None, False)["image"].axes
        raise OptionError(
            f"{name_of(row)}: its image is a {type(volume).__name__}, not a KneeVolume. Pass rows as"
            " load_dataset gives them, without a torch or numpy format; for a dataset that was read back from"
            f" disk, call cast_column('image', reasonknee_hf.VolumeFeature(axes={axes!r})) first"
        )
    return volume


def read_regions(path: str | PathLike[str]) -> dict[str, list[int]]:
    """Box by row id, out of a file of JSON lines `{"id": …, "bbox": [six integers]}`.

    Raises:
        PredictionError: A line is not such an object, or names a row again; the message gives its number.
    """
    regions: dict[str, list[int]] = {}
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(filter(str.strip, lines), 1):
            try:
                entry = json.loads(line)
                name, box = entry["id"], [index(end) for end in entry["bbox"]]
            except (ValueError, KeyError, TypeError) as error:
                raise PredictionError(
                    f"{path}, line {number}: {error!r}. Give id and bbox, six integers."
                ) from None
            if len(box) != 6 or name in regions:
                what = "is named twice" if name in regions else f"has a box of {len(box)} numbers"
                raise PredictionError(f"{path}, line {number}: row {name} {what}.")
            regions[name] = box
    return regions


def picture_blocks(view: View, pictures: npt.NDArray[np.uint8]) -> list[dict[str, Any]]:
    """Content blocks of drawn pictures: one video, or one image each."""
    if view.kind == "video":
        return [{"type": "video", "video": np.repeat(pictures[..., np.newaxis], 3, axis=-1)}]
    from PIL import Image

    return [{"type": "image", "image": Image.fromarray(picture).convert("RGB")} for picture in pictures]


def make_style(options: Mapping[str, Any]) -> Style:
    """The style of these options.

    Raises:
        OptionError: There is no such option, or it has no such value.
    """
    valid = Style.__dataclass_fields__
    for option in options:
        check_choice("option of a conversation", option, list(valid))
    return Style(**options)
