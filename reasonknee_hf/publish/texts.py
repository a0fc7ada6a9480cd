"""Text files that others may have written: read as they are, written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from reasonknee_hf.errors import PublishError
from reasonknee_hf.hub.disk import write_file

UNFINISHED = f".{'[0-9a-f]' * 16}.part"
"""Glob of what a killed `write_file` leaves."""


def decoded(content: bytes, what: str) -> str:
    """The text of a file, its line ends as they are.

    Raises:
        PublishError: It is not UTF-8.
    """
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PublishError(
            f"{what} is not UTF-8 (byte {error.start} is 0x{content[error.start]:02x}). Save it as UTF-8 first."
        ) from None


def text_of(path: Path) -> str:
    """The text of a local file; empty if there is none."""
    return decoded(path.read_bytes(), str(path)) if path.exists() else ""


def write(path: Path, content: bytes) -> None:
    """Writes a file that appears complete or not at all; what was there stays until then.

    Raises:
        PublishError: The disk is full.
    """
    with disk_full(path.parent, f"{path.name} was not written"):
        write_file(path.resolve(), content)  # a link stays one


@contextlib.contextmanager
def disk_full(folder: Path, what: str) -> Iterator[None]:
    """Says in one clear error that a disk is full.

    Args:
        folder: A folder of that disk.
        what: What was not done.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error):
            raise PublishError(
                f"The disk of {folder} is full; {what}. Make room and run the same command again: finished files are "
                "kept."
            ) from error
        raise
