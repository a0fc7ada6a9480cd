"""Names in errors: which row and which file a failure belongs to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from reasonknee_hf.errors import (
    FileMissingError,
    GridMismatchError,
    OptionError,
    RecordError,
    VolumeDataError,
    VolumeFormatError,
    VolumeMissingError,
)


@contextmanager
def named_errors(name: str, mask: bool) -> Iterator[None]:
    """Puts a name in front of the message of errors about a volume, once.

    Args:
        name: the row and the file.
        mask: whether the volume is a mask; that changes the advice for a missing one.

    Raises:
        VolumeMissingError: instead of any other `FileNotFoundError`.
    """
    try:
        yield
    except (VolumeDataError, VolumeFormatError, GridMismatchError, RecordError, OptionError) as error:
        if str(error).startswith(name):
            raise
        raise type(error)(f"{name}: {error}") from error
    except VolumeMissingError as error:
        if str(error).startswith(name):
            raise
        raise VolumeMissingError(f"{name}: {error}") from error
    except FileNotFoundError as error:
        raise VolumeMissingError(f"{name}: {_advice(error, mask)}") from error


def _advice(error: FileNotFoundError, mask: bool) -> str:
    if isinstance(error, FileMissingError):
        reason = str(error)
    elif error.__cause__ is not None:  # fsspec says "not found" also where it could not connect
        reason = f"{type(error.__cause__).__name__}: {error.__cause__}"
    else:
        reason = "no such file"
    if mask:
        return f"the mask cannot be opened ({reason})"
    return (
        f"the volume cannot be opened ({reason}). The MRI volumes are shared by the Osteoarthritis Initiative"
        " under its own data-use agreement (https://nda.nih.gov/oai) and may not be part of this release: get"
        " them there, keep the relative paths, and give their folder or URL as images="
    )
