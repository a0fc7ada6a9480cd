"""What a model is asked: the settings of the benchmark as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from reasonknee_hf.errors import OptionError, RecordError
from reasonknee_hf.knee.scoring.settings import item_prompt
from reasonknee_hf.knee.training.targets import BOX_KEY, BOX_TARGETS, Target, row_question
from reasonknee_hf.prompting.lessons import Coordinates, RegionAs, check_choice, name_of
from reasonknee_hf.prompting.view import View

Setting = Literal["zero_shot", "instruction", "gt_region"]
SETTINGS: tuple[str, ...] = get_args(Setting)


def user_text(
    row: Mapping[str, Any],
    setting: Setting,
    target: Target | None,
    view: View,
    *,
    coordinates: Coordinates = "voxels",
    region_as: RegionAs = "both",
    prompts: Mapping[str, str] | None = None,
    clip: bool = False,
    placed: bool = False,
) -> str:
    """What the user says about a row.

    In voxels the text is the one that `reasonknee bench prompts` writes for the same setting, so that a model
    is asked in training what it is asked in the benchmark. With the setting `gt_region`, the true region
    stands in it unless `region_as` is `crop`. A target with a box asks for one; where the view was cut out around a
    region, a sentence before it says which part of the volume is seen, since voxels count from the volume's edge. In
    the coordinates of the view, both boxes are those of the view, and the text says how they count.

    Args:
        row: A row.
        setting: `zero_shot`, `instruction` or `gt_region`, see `knee.scoring.settings`.
        target: What will be answered; `None` if that is not known.
        view: What the model sees.
        coordinates: What boxes are given and asked for in.
        region_as: With `gt_region`, how the model learns of the region.
        prompts: Text by question id (`"1"` to `"69"`) instead of the row's prompt, such as one of the
            published question files. With `instruction` it is taken to hold the instructions already.
        clip: With `coordinates="view"`, tell the visible part of a region that reaches beyond the view.
        placed: Whether the view was cut out around a region.

    Raises:
        OptionError: There is no such setting, or `prompts` lacks the row's question.
        RecordError: The row lacks a prompt, or a box that the setting tells.
    """
    check_choice("setting", setting, SETTINGS)
    text = _prompt(row, prompts)
    question = row_question(row) if setting != "zero_shot" else None
    region = None
    if setting == "gt_region" and region_as != "crop":
        region = region_of(row, view, coordinates, clip)
    guided = prompts is not None
    if placed and coordinates == "voxels" and target in BOX_TARGETS and (place := view.describe_place()):
        text = f"{place}\n{text}"
    if coordinates == "voxels":
        return item_prompt(text, question, setting, region, target in BOX_TARGETS, guided=guided)
    text = item_prompt(text, question, setting, None, False, guided=guided)
    if region is not None:
        text = f"The structure lies in the region {region} of what you see: {view.describe_box()}.\n{text}"
    if target in BOX_TARGETS:
        text += f'\nGive the region you judged as "{BOX_KEY}" in the same JSON object: {view.describe_box()}.'
    return text


def region_of(row: Mapping[str, Any], view: View, coordinates: Coordinates, clip: bool = False) -> list[int]:
    """The row's box in the given coordinates.

    Raises:
        RecordError: The row has none, or the view does not show it all and `clip` is off.
    """
    check_choice("coordinates", coordinates, get_args(Coordinates))
    if row.get("bbox") is None:
        raise RecordError(
            f"{name_of(row)}: it has no box (bbox is null), so its region cannot be told. Take the setting"
            " 'zero_shot' or 'instruction', or drop such rows"
        )
    box = [int(end) for end in row["bbox"]]
    if coordinates == "voxels":
        return box
    try:
        return view.to_view(box, clip=clip)
    except RecordError as error:
        raise RecordError(f"{name_of(row)}: {error}") from error


def _prompt(row: Mapping[str, Any], prompts: Mapping[str, str] | None) -> str:
    if prompts is not None:
        number = str(row_question(row).id)
        if number not in prompts:
            raise OptionError(
                f"prompts= has no text for question {number}; it has the keys"
                f" {', '.join(list(prompts)[:5])}, …"
            )
        return prompts[number].strip()
    if not row.get("prompt"):
        raise RecordError(f"{name_of(row)}: it has no prompt. Drop such rows, or pass prompts=")
    return str(row["prompt"]).strip()
