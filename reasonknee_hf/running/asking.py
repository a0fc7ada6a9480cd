"""What is asked of a model, and what one that can be asked is."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from reasonknee_hf.errors import ReasonKneeError
from reasonknee_hf.prompting.chats import Style
from reasonknee_hf.prompting.view import View


class BackendError(ReasonKneeError, RuntimeError):
    """A model cannot be asked at all: it is not there, takes no images, or the server refuses. Says what to change."""


@dataclass(frozen=True)
class Drawn:
    """A view that was drawn, shared by all questions that see the same."""

    view: View
    pictures: npt.NDArray[np.uint8]

    @cached_property
    def urls(self) -> list[str]:
        """The pictures as data URLs of PNG files."""
        from PIL import Image

        found = []
        for picture in self.pictures:
            buffer = BytesIO()
            Image.fromarray(picture).save(buffer, "png", compress_level=1)
            found.append(f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}")
        return found


@dataclass(frozen=True)
class Asked:
    """One question: the row, and what is seen of it."""

    row: Mapping[str, Any]
    drawn: Drawn


class Backend(Protocol):
    """Answers questions.

    Attributes:
        name, version, model, generation: For the record of a run.
        videos: Whether it takes videos as such.
    """

    name: str
    version: str
    videos: bool
    model: str
    generation: Mapping[str, Any]

    def check(self) -> str | None:
        """Refuses, before a volume is read, what could not be asked. Returns the commit of the model if it has one.

        Raises:
            BackendError: The model cannot be asked.
        """

    def answers(self, asked: Iterable[Asked], style: Style) -> Iterator[tuple[Asked, str | Exception]]:
        """Each question with the text of its answer, or why there is none, as they come.

        A [`BackendError`] among them says that asking on is useless.
        """
