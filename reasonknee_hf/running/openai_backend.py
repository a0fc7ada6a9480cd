"""Asks any server that speaks the chat completions of OpenAI."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from http.client import HTTPException
from typing import Any

from reasonknee_hf import environment
from reasonknee_hf.hub.wire.retries import PASSING, Patience, retry_after
from reasonknee_hf.prompting.chats import Style, messages
from reasonknee_hf.running.asking import Asked, BackendError


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: it would carry the key to another place, and a POST would become a GET."""

    def redirect_request(self, *_: Any) -> None:
        return None


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
        self.model = model
        self.generation: Mapping[str, Any] = dict(generation)
        self._url, self._at_once, self._timeout = url.rstrip("/"), concurrency, timeout
        self._key = key or environment.openai_key()
        self._opener = urllib.request.build_opener(_Stay)
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

    def answers(self, asked: Iterable[Asked], style: Style) -> Iterator[tuple[Asked, str | Exception]]:
        """As in [`Backend`]; `concurrency` questions are under way at any time."""
        pool = ThreadPoolExecutor(max_workers=self._at_once)
        running: dict[Future[str | Exception], Asked] = {}
        try:
            for one in asked:
                running[pool.submit(self._one, one, style)] = one
                if len(running) >= self._at_once:
                    yield from _finished(running)
            while running:
                yield from _finished(running)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

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
            told = self._call("chat/completions", {"model": self.model, "messages": chat, **self.generation})
            text = told["choices"][0]["message"]["content"]
            if not isinstance(text, str) or not text.strip():
                raise ValueError("an empty answer")
        except (BackendError, OSError, HTTPException, ValueError, KeyError, IndexError, TypeError) as error:
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
                with self._opener.open(request, timeout=self._timeout) as answer:
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


def _finished(running: dict[Future[str | Exception], Asked]) -> Iterator[tuple[Asked, str | Exception]]:
    """Takes out what is done, and waits for something to be."""
    for future in wait(running, return_when=FIRST_COMPLETED).done:
        yield running.pop(future), future.result()
