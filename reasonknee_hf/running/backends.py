"""Who answers: a model of `transformers` in this process, an OpenAI-compatible server, or a function."""

from __future__ import annotations

import base64
import json
import logging
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from http.client import HTTPException
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from io import BytesIO
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from reasonknee_hf import environment
from reasonknee_hf.errors import ExtraMissingError, OptionError, ReasonKneeError
from reasonknee_hf.hub.wire.retries import PASSING, Patience, retry_after
from reasonknee_hf.train.chats import Style, messages, picture_blocks
from reasonknee_hf.train.view import View

logger = logging.getLogger(__name__)
BACKENDS = ("transformers", "openai", "function")


class BackendError(ReasonKneeError, RuntimeError):
    """A model cannot be asked at all: it is not there, takes no images, or the server refuses. Says what to change."""


@dataclass(frozen=True)
class Drawn:
    """A view that was drawn, shared by all questions that see the same."""

    view: View
    pictures: npt.NDArray[np.uint8]
    held: dict[str, Any] = field(default_factory=dict)  # what a backend made of them

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
        name, version: For the record of a run.
        videos: Whether it takes videos as such.
        at_once: How many questions it is given together.
    """

    name: str
    version: str
    videos: bool
    at_once: int

    def check(self) -> None:
        """Refuses, before a volume is read, what could not be asked. Raises [`BackendError`]."""

    def answer(self, asked: Sequence[Asked], style: Style) -> list[str | Exception]:
        """The text of each answer, or why there is none. Raises [`BackendError`] where asking on is useless."""


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


class TransformersBackend:
    """A model that `AutoModelForImageTextToText` loads.

    Args:
        model, revision: As `from_pretrained` takes them.
        device, dtype: As torch names them; by default a GPU if there is one, and the type of the weights.
        batch_size: Questions that are answered together.
        generation: Options of `generate`.
    """

    name, videos = "transformers", True

    def __init__(
        self,
        model: str,
        *,
        revision: str | None = None,
        device: str | None = None,
        dtype: str | None = None,
        batch_size: int = 4,
        generation: Mapping[str, Any],
    ) -> None:
        self.model, self.revision, self.at_once = model, revision, batch_size
        self.version = _version("transformers")
        self._device, self._dtype, self._generation = device, dtype, dict(generation)
        self._collators: dict[int, Any] = {}

    def check(self) -> None:
        """Loads processor and model.

        Raises:
            BackendError: There is no such model, or it takes no images.
            ExtraMissingError: `transformers` or torch is not installed.
        """
        try:
            import torch
            from transformers import AutoModelForImageTextToText, AutoProcessor
        except ImportError as error:
            raise ExtraMissingError(
                "the backend transformers needs the extra train: pip install 'reasonknee_hf[train]'"
            ) from error
        try:
            self._processor = AutoProcessor.from_pretrained(self.model, revision=self.revision)
            if getattr(self._processor, "image_processor", None) is None:
                raise BackendError(f"{self.model} takes no images: its processor has no image processor.")
            made = AutoModelForImageTextToText.from_pretrained(
                self.model, revision=self.revision, dtype=self._dtype or "auto"
            )
        except (OSError, ValueError, KeyError) as error:
            said = str(error).strip().splitlines()[0]
            raise BackendError(
                f"{self.model}: no model that answers about images can be loaded: {said}"
            ) from error
        device = self._device or ("cuda" if torch.cuda.is_available() else "cpu")
        self._model = made.eval().to(device)
        limit = getattr(self._model.config.get_text_config(), "max_position_embeddings", None)
        self._longest = None if limit is None else limit - int(self._generation.get("max_new_tokens", 0))

    def answer(self, asked: Sequence[Asked], style: Style) -> list[str | Exception]:
        """As in [`Backend`]; rows that do not go into one batch are asked one by one."""
        import torch

        from reasonknee_hf.train.collator import Collator

        key = id(style)
        if key not in self._collators:
            options = {name: getattr(style, name) for name in Style.__dataclass_fields__}
            self._collators[key] = Collator(self._processor, **options)
        rows, drawn = [one.row for one in asked], [one.drawn for one in asked]
        try:
            batch = self._collators[key].drawn(rows, [d.view for d in drawn], [d.pictures for d in drawn])
            length = batch["input_ids"].shape[1]
            if self._longest is not None and length > self._longest:
                raise BackendError(
                    f"{rows[0].get('id')}: {length} tokens, more than the {self._longest} that {self.model} takes"
                    " beside its answer. Take fewer or smaller frames (view=, size=)."
                )
            with torch.inference_mode():
                said = self._model.generate(**batch.to(self._model.device), **self._generation)
        except BackendError:
            raise
        except (RuntimeError, ValueError, TypeError, ReasonKneeError) as error:
            if len(asked) == 1:
                return [error]
            return [one for each in asked for one in self.answer([each], style)]
        texts = self._processor.tokenizer.batch_decode(said[:, length:], skip_special_tokens=True)
        return list(texts)


class OpenAIBackend:
    """Any server that speaks the chat completions of OpenAI: vLLM, SGLang, llama.cpp, hosted ones.

    Args:
        model: As the server calls it.
        url: Its address, up to and with `/v1`.
        key: Sent as bearer; by default `OPENAI_API_KEY`.
        concurrency: Questions that are asked at the same time.
        generation: More members of the request, such as `max_tokens`.
        timeout: Seconds for one answer.
    """

    name, videos = "openai", False
    version = "chat completions"

    def __init__(
        self,
        model: str,
        *,
        url: str,
        key: str | None = None,
        concurrency: int = 8,
        generation: Mapping[str, Any],
        timeout: float = 600,
    ) -> None:
        self.model, self.at_once, self._timeout = model, concurrency, timeout
        self._url, self._generation = url.rstrip("/"), dict(generation)
        self._key = key or environment.openai_key()
        self._answered = False

    def check(self) -> None:
        """Asks the server for its models.

        Raises:
            BackendError: There is no server, it speaks something else, refuses the key, or has no such model.
        """
        told = self._call("models", None)
        names = [one.get("id") for one in told.get("data") or () if isinstance(one, Mapping)]
        if names and self.model not in names:
            raise BackendError(
                f"{self._url} has no model {self.model!r}, but {', '.join(map(str, names[:8]))}."
            )

    def answer(self, asked: Sequence[Asked], style: Style) -> list[str | Exception]:
        """As in [`Backend`]; all at the same time."""
        with ThreadPoolExecutor(max_workers=self.at_once) as pool:
            return list(pool.map(lambda one: self._one(one, style), asked))

    def _one(self, asked: Asked, style: Style) -> str | Exception:
        view = asked.drawn.view
        chat = messages(asked.row, style, view, [{"type": "image"}] * len(asked.drawn.pictures))
        urls = iter(asked.drawn.urls)
        for message in chat:
            message["content"] = [
                block if block["type"] == "text" else {"type": "image_url", "image_url": {"url": next(urls)}}
                for block in message["content"]
            ]
        try:
            told = self._call("chat/completions", {"model": self.model, "messages": chat, **self._generation})
            text = told["choices"][0]["message"]["content"]
            if not isinstance(text, str) or not text.strip():
                raise ValueError("an empty answer")
        except BackendError:
            raise
        except (OSError, HTTPException, ValueError, KeyError, IndexError, TypeError) as error:
            return error
        self._answered = True
        return text

    def _call(self, action: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        """One request, tried again while that may help.

        Raises:
            BackendError: Asking on is useless.
            OSError, HTTPException, ValueError: It failed, also when tried again.
        """
        headers = {"Content-Type": "application/json"} | (
            {"Authorization": f"Bearer {self._key}"} if self._key else {}
        )
        data = None if body is None else json.dumps(body).encode()
        # A server that never answered is not waited for as long as one that did.
        longest = environment.retry_time() if self._answered else min(10.0, environment.retry_time())
        patience = Patience(f"asking {self._url}", longest)
        while True:
            asked_for = None
            try:
                request = urllib.request.Request(f"{self._url}/{action}", data, headers)
                with urllib.request.urlopen(request, timeout=self._timeout) as answer:
                    told = json.loads(answer.read())
                if not isinstance(told, dict):
                    raise ValueError(f"{type(told).__name__} instead of an object")
                return told
            except urllib.error.HTTPError as error:
                said = error.read(300).decode("utf-8", "replace").strip()
                if error.code not in PASSING:
                    useless = error.code in (401, 403, 404) or body is None or not self._answered
                    what = f"{self._url} answered {error.code} for {action}: {said}"
                    raise (BackendError if useless else ValueError)(what) from error
                failed: Exception = OSError(f"status {error.code}: {said}")
                asked_for = retry_after(error.headers)
            except (OSError, HTTPException, ValueError) as error:
                failed = error
            if not patience.wait(failed, asked_for):
                if body is None:
                    raise BackendError(
                        f"no model server that speaks JSON answers at {self._url} ({failed}). Start one, e.g. `vllm"
                        f" serve {self.model}`, and pass its address as url=, up to /v1."
                    ) from failed
                raise failed


class FunctionBackend:
    """A Python function `module:name` that takes a chat, as `train.conversation` makes it, and returns text.

    Args:
        where: `module:name`, or the function.
    """

    name, videos, at_once = "function", True, 1
    version = "-"

    def __init__(self, where: str | Callable[[list[dict[str, Any]]], str]) -> None:
        self.model = where if isinstance(where, str) else f"{where.__module__}:{where.__qualname__}"
        self._where = where

    def check(self) -> None:
        """Imports the function.

        Raises:
            BackendError: There is none.
        """
        if callable(self._where):
            self._function: Callable[[list[dict[str, Any]]], str] = self._where
            return
        module, _, name = self._where.partition(":")
        try:
            self._function = getattr(import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise BackendError(
                f"{self._where!r} names no function that can be imported ({error})."
            ) from error

    def answer(self, asked: Sequence[Asked], style: Style) -> list[str | Exception]:
        """As in [`Backend`], one by one."""
        found: list[str | Exception] = []
        for one in asked:
            blocks = picture_blocks(one.drawn.view, one.drawn.pictures)
            try:
                found.append(str(self._function(messages(one.row, style, one.drawn.view, blocks))))
            except Exception as error:
                logger.warning("%s: %r", one.row.get("id"), error)
                found.append(error)
        return found


def make_backend(
    name: str, model: Any, *, url: str | None, generation: Mapping[str, Any], **options: Any
) -> Backend:
    """The backend of a name; options that are `None` are left out.

    Raises:
        OptionError: There is no such backend, or an option is missing or not one of it.
    """
    given = {key: value for key, value in options.items() if value is not None}
    try:
        if name == "transformers":
            return TransformersBackend(
                model, generation={"max_new_tokens": 512, "do_sample": False, **generation}, **given
            )
        if name == "openai":
            if url is None:
                raise OptionError("the backend openai needs url=, such as http://localhost:8000/v1.")
            return OpenAIBackend(
                model, url=url, generation={"max_tokens": 512, "temperature": 0, **generation}, **given
            )
        if name == "function":
            return FunctionBackend(model, **given)
    except TypeError as error:
        raise OptionError(f"the backend {name} has no such option: {error}") from error
    raise OptionError(f"There is no backend {name!r}. Valid: {', '.join(BACKENDS)}.")
