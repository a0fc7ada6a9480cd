"""How families of models want slices: as pictures or as a video, how many, how large."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from reasonknee_hf.prompting.recipes import Recipe, get_recipe


@dataclass(frozen=True)
class Preset:
    """One family.

    Args:
        name: What it is called.
        pattern: Found in names of its models, whatever the case.
        kind: `images` or `video`.
        size: Height and width of frames in pixels, as its processor sees them without resampling twice; `None`: as
            they are stored.
        fps: Frames a second that a video is told to have.
    """

    name: str
    pattern: str
    kind: str
    size: int | None = None
    fps: float = 2.0


PRESETS: tuple[Preset, ...] = (
    Preset("qwen2.5-vl", r"qwen2\.5-?vl", "video", 392),  # patches of 28 pixels
    Preset("qwen3-vl", r"qwen3-?vl", "video", 384),  # patches of 32 pixels
    Preset("internvl", r"internvl", "images", 448),
    Preset("gemma-3", r"gemma-?3|medgemma", "images", 896),
    Preset("llava-onevision", r"llava-onevision", "video", 384),
    Preset("smolvlm", r"smolvlm|idefics3", "images", 384),
)
"""All take 32 slices of the middle, pictures in front of the text. Sizes are those of the families' own processors."""


def preset_of(model: str) -> Preset | None:
    """The preset of a model by its name; `None` for a family that is not known.

    Examples:
        >>> from reasonknee_hf.running import preset_of
        >>> preset_of("Qwen/Qwen2.5-VL-7B-Instruct").kind
        'video'
    """
    return next((preset for preset in PRESETS if re.search(preset.pattern, model, re.IGNORECASE)), None)


def view_for(model: str, view: str | Recipe | None, *, videos: bool, **changes: Any) -> Recipe:
    """The view of a run: the one that is given, or that of the family.

    Args:
        model: Name of the model.
        view: Name of a recipe, or one; `None` for the slices of the family.
        videos: Whether the backend takes videos; if not, their frames are shown as pictures.
        changes: Fields of the recipe to change, such as `size`.
    """
    preset = preset_of(model)
    if view is None and preset is not None:
        recipe = get_recipe("o1", **{"kind": preset.kind, "size": preset.size, "fps": preset.fps} | changes)
    else:
        recipe = get_recipe("o1" if view is None else view, **changes)
    return recipe if videos or recipe.kind != "video" else get_recipe(recipe, kind="images")
