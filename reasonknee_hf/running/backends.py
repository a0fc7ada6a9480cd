"""Who answers: a model of `transformers` in this process, an OpenAI-compatible server, or a function."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from typing import Any, Literal, get_args
from zlib import crc32

from reasonknee_hf.errors import ExtraMissingError, OptionError, ReasonKneeError
from reasonknee_hf.prompting.chats import Style, messages, picture_blocks
from reasonknee_hf.running.asking import Asked, Backend, BackendError
from reasonknee_hf.running.openai_backend import OpenAIBackend

logger = logging.getLogger(__name__)
BackendName = Literal["transformers", "openai", "function"]
BACKENDS: tuple[str, ...] = get_args(BackendName)


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
        seed: Where answers are sampled: that of a batch is made of this number and the id of its first question.
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
        seed: int = 0,
        generation: Mapping[str, Any],
    ) -> None:
        self.model, self.revision = model, revision
        self.generation: Mapping[str, Any] = dict(generation)
        self.version = _version("transformers")
        self._device, self._dtype, self._batch_size, self._seed = device, dtype, batch_size, seed
        self._collator: Any = None
        self._answered = False

    def check(self) -> str | None:
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
        self._longest = None if limit is None else limit - int(self.generation.get("max_new_tokens", 0))
        return getattr(self._model.config, "_commit_hash", None)

    def answers(self, asked: Iterable[Asked], style: Style) -> Iterator[tuple[Asked, str | Exception]]:
        """As in [`Backend`], in batches; rows that do not go into one are asked one by one."""
        from reasonknee_hf.train.collator import Collator

        self._collator = Collator(
            self._processor, **{name: getattr(style, name) for name in Style.__dataclass_fields__}
        )
        left = iter(asked)
        while batch := list(islice(left, self._batch_size)):
            yield from zip(batch, self._batch(batch), strict=True)

    def _batch(self, asked: Sequence[Asked]) -> list[str | Exception]:
        import torch

        rows, drawn = [one.row for one in asked], [one.drawn for one in asked]
        try:
            batch = self._collator.drawn(rows, [d.view for d in drawn], [d.pictures for d in drawn])
            length = batch["input_ids"].shape[1]
            if self._longest is not None and length > self._longest:
                kind = ValueError if self._answered else BackendError
                raise kind(
                    f"{rows[0].get('id')}: {length} tokens, more than the {self._longest} that {self.model} takes"
                    " beside its answer. Take fewer or smaller frames (view=, size=)."
                )
            torch.manual_seed(crc32(f"{self._seed} {rows[0].get('id')}".encode()))
            with torch.inference_mode():
                said = self._model.generate(**batch.to(self._model.device), **self.generation)
        except BackendError as error:
            return [error] * len(asked)
        except (RuntimeError, ValueError, TypeError, ReasonKneeError) as error:
            if len(asked) == 1:
                return [error]
            return [one for each in asked for one in self._batch([each])]
        self._answered = True
        return list(self._processor.tokenizer.batch_decode(said[:, length:], skip_special_tokens=True))


class FunctionBackend:
    """A Python function `module:name` that takes a chat, as `train.conversation` makes it, and returns text.

    Args:
        where: `module:name`, or the function.
    """

    name, videos, version = "function", True, "-"

    def __init__(
        self, where: str | Callable[[list[dict[str, Any]]], str], *, generation: Mapping[str, Any]
    ) -> None:
        self.generation: Mapping[str, Any] = dict(generation)
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

    def answers(self, asked: Iterable[Asked], style: Style) -> Iterator[tuple[Asked, str | Exception]]:
        """As in [`Backend`], one by one."""
        for one in asked:
            chat = messages(
                one.row, style, one.drawn.view, picture_blocks(one.drawn.view, one.drawn.pictures)
            )
            said: Any
            try:
                said = self._function(chat)
                if not isinstance(said, str):
                    raise TypeError(f"{self.model} returned a {type(said).__name__}, not a text")
            except Exception as error:
                logger.warning("%s: %r", one.row.get("id"), error)
                said = error
            yield one, said


def make_backend(
    name: str, model: Any, *, url: str | None, generation: Mapping[str, Any], **options: Any
) -> Backend:
    """The backend of a name; options that are `None` are left out.

    Raises:
        OptionError: There is no such backend, or an option is missing or not one of it.
    """
    given = {key: value for key, value in options.items() if value is not None}
    if not isinstance(generation, Mapping):
        raise OptionError(f"generation= is a mapping of options, not {generation!r}.")
    try:
        if name == "transformers":
            return TransformersBackend(
                model, generation={"max_new_tokens": 512, "do_sample": False, **generation}, **given
            )
        if name == "openai":
            if url is None:
                raise OptionError("the backend openai needs url=, such as http://localhost:8000/v1.")
            seed = {"seed": given.pop("seed")} if "seed" in given else {}
            return OpenAIBackend(
                model,
                url=url,
                generation={"max_tokens": 512, "temperature": 0, **seed, **generation},
                **given,
            )
        if name == "function":
            return FunctionBackend(model, generation=generation, **given)
    except TypeError as error:
        raise OptionError(
            f"the backend {name} has no such option: {str(error).rpartition(' ')[2]}"
        ) from error
    raise OptionError(
        f"There is no backend {name!r}. Valid: {', '.join(BACKENDS)}. A model that vLLM, SGLang or llama.cpp serves is"
        " asked with openai."
    )
