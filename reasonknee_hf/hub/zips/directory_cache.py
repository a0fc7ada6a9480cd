"""Directories of archives on disk, for the next process. Safe with many processes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import filelock
from huggingface_hub import cached_assets_path

logger = logging.getLogger(__name__)

# Names the form of the file: the number goes up when the fields of `Location` change.
_MAGIC = b"reasonknee zip directory 1\n"
_DIGEST = 32
# Long enough for a slow line to deliver a directory; after that a process helps itself.
_LOCK_SECONDS = 60


def default_folder() -> Path:
    """The folder below `HF_HOME` that directories are kept in."""
    return Path(cached_assets_path("reasonknee_hf", namespace="archives", subfolder="directories"))


class CachedDirectory:
    """One directory on disk.

    A file that was cut off, changed, or written for something else counts as absent and is written anew. A
    folder that cannot be written to costs speed, not the read.

    Args:
        folder: Made if absent.
        identity: Of the tree the parts lie in, see [`Tree`].
        paths: Of the parts.
        sizes: Of the parts as listed.
    """

    def __init__(
        self, folder: Path, identity: str, paths: Sequence[str], sizes: Sequence[int | None]
    ) -> None:
        self._key = json.dumps([identity, list(paths), list(sizes)])
        self._path = folder / f"{hashlib.sha256(self._key.encode()).hexdigest()[:40]}.zipdir"

    def load(self) -> tuple[dict[str, Any], bytes] | None:
        """The numbers and the bytes that were stored, `None` where there are none to be trusted."""
        try:
            stored = self._path.read_bytes()
        except OSError:
            return None
        body = stored[len(_MAGIC) + _DIGEST :]
        if not stored.startswith(_MAGIC) or stored[len(_MAGIC) : len(_MAGIC) + _DIGEST] != _digest(body):
            logger.info("%s is damaged and will be written anew", self._path)
            return None
        head, _, data = body.partition(b"\n")
        key, numbers = json.loads(head)
        return (numbers, data) if key == self._key else None

    def store(self, numbers: dict[str, Any], data: bytes) -> None:
        """Keeps `numbers` and `data`; atomic, and silent where the disk does not allow it."""
        body = json.dumps([self._key, numbers]).encode() + b"\n" + data
        temporary = None
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(
                dir=self._path.parent, prefix=f"{self._path.stem}-", suffix=".part"
            )
            with os.fdopen(handle, "wb") as file:
                file.write(_MAGIC + _digest(body) + body)
            os.replace(temporary, self._path)
        except OSError as error:
            logger.info("the directory of an archive was not cached: %s", error)
            if temporary is not None:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Lets one process at a time in, so that several that start together fetch the directory once."""
        with contextlib.ExitStack() as stack:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                stack.enter_context(filelock.FileLock(f"{self._path}.lock", timeout=_LOCK_SECONDS))
            except (OSError, filelock.Timeout) as error:
                logger.info("no lock for %s: %s", self._path, error)
            yield


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_DIGEST).digest()
