"""Names in errors: which row and which file a failure belongs to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from reasonknee_hf.errors import (
    EndpointError,
    FileMissingError,
    GridMismatchError,
    OptionError,
    ReasonKneeError,
    RecordError,
    UnreachableError,
    VolumeDataError,
    VolumeFormatError,
    VolumeMissingError,
)
from reasonknee_hf.hub.tree import could_not_connect
from reasonknee_hf.volumes.volume_bytes import is_local

_NAMED = (
    VolumeDataError,
    VolumeFormatError,
    GridMismatchError,
    RecordError,
    OptionError,
    VolumeMissingError,
)


@contextmanager
def named_errors(name: Callable[[], str], mask: bool, path: str | None) -> Iterator[None]:
    """Puts a name in front of the message of errors about a volume, once.

    Args:
        name: gives the row and the file; asked for only when there is an error.
        mask: whether the volume is a mask; that changes the advice for a missing one.
        path: where the volume lies, if not in memory.

    Raises:
        VolumeMissingError: instead of any other `FileNotFoundError` about a file.
        UnreachableError: instead of a `FileNotFoundError` by which a filesystem says that it could not connect.
        VolumeDataError: instead of what else the system says about a local file, such as `PermissionError`.
    """
    try:
        yield
    except EndpointError as error:
        if not str(error).startswith(f"{name()}: "):  # in place: kinds differ in what they are made of
            error.args = (f"{name()}: {error.args[0]}", *error.args[1:])
        raise
    except (*_NAMED, FileNotFoundError) as error:
        if could_not_connect(error):
            reason = f"{type(error.__cause__).__name__}: {error.__cause__}"
            raise UnreachableError(f"{name()}: it cannot be asked for ({reason})") from error
        if not isinstance(error, _NAMED):
            raise VolumeMissingError(f"{name()}: {_advice(error, mask)}") from error
        if str(error).startswith(name()):
            raise
        raise type(error)(f"{name()}: {error}") from error
    except OSError as error:  # of a file that is not local it may be the connection
        if path is None or not is_local(path) or isinstance(error, ReasonKneeError):
            raise
        raise VolumeDataError(
            f"{name()}: the file cannot be read ({error.strerror or error}); {_next_step(error)}"
        ) from error


def _next_step(error: OSError) -> str:
    if isinstance(error, IsADirectoryError):
        return (
            "a folder is no NIfTI file: a series of DICOM is read by 'dicom://series.nii::' before its folder, and a"
            " folder of volumes is given as images="
        )
    return "check its permissions and the disk"


def _advice(error: FileNotFoundError, mask: bool) -> str:
    reason = str(error) if isinstance(error, FileMissingError) else "no such file"
    if mask:
        return f"the mask cannot be opened ({reason})"
    return (
        f"the volume cannot be opened ({reason}). Volumes may be under terms of their own and not part of this release:"
        " the card of the dataset says who gives them out; give as images= the folder or URL that holds yours"
    )
