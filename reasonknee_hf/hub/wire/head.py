"""The head of an answer within a bounded time: each wait of the standard client is bounded, but not their number."""

from __future__ import annotations

import http.client
import io
import time
from typing import Any


class PunctualResponse(http.client.HTTPResponse):
    """An answer whose head must be there at a time, however often a little of it comes."""

    def __init__(self, *args: Any, deadline: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deadline = deadline

    def begin(self) -> None:
        body = self.fp
        self.fp = _Lines(body, self._deadline)  # type: ignore[assignment]  # the head is read line by line
        try:
            super().begin()
        finally:
            self.fp = body


class _Lines:
    def __init__(self, file: io.BufferedReader, deadline: float) -> None:
        self._file, self._deadline = file, deadline
        self.close = file.close

    def readline(self, limit: int) -> bytes:
        line = b""
        while not line.endswith(b"\n") and len(line) < limit and (there := self._file.peek(1)):
            if time.monotonic() > self._deadline:
                raise TimeoutError("the head of the answer drips")
            end = there.find(b"\n") + 1 or len(there)
            line += self._file.read(min(end, limit - len(line)))
        return line
