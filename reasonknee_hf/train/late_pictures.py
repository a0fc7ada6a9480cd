"""Pictures of prompts that are drawn when their pixels are first used; importing this module imports Pillow.

A trainer that resumes draws the prompts of all steps that were made, and throws them away; one that samples answers
copies each prompt for each of them. Neither looks at pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from PIL import Image

from reasonknee_hf.prompting.view import View
from reasonknee_hf.volumes.volume import KneeVolume


class LatePicture(Image.Image):
    """An RGB picture that is drawn at first use, once for all of its deep copies."""

    _draw: Callable[[], Image.Image] | None = None  # pickled, it is a picture that has been drawn

    def __init__(self, size: tuple[int, int], draw: Callable[[], Image.Image]) -> None:
        super().__init__()
        self._mode, self._size, self._draw = "RGB", size, draw

    def load(self) -> Any:
        """As in Pillow, which calls it before each use of pixels."""
        if self._draw is not None:
            self.im = self._draw().im
            self._draw = None
        return super().load()

    def __deepcopy__(self, memo: dict[int, Any]) -> LatePicture:
        return self


def late_blocks(view: View, volume: KneeVolume) -> list[dict[str, Any]]:
    """Content blocks of a view, one image a picture."""
    draw = cache(partial(view.draw, volume))
    height, width = view.size

    def picture(number: int) -> Image.Image:
        return Image.fromarray(draw()[number]).convert("RGB")

    return [
        {"type": "image", "image": LatePicture((width, height), partial(picture, number))}
        for number in range(view.pictures)
    ]
