"""Names in errors: which row and which file a failure belongs to."""

from __future__ import annotations

from collections.abc import Callable

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


class NamedErrors:
    """Context manager that puts a name in front of the message of errors about a volume, once.

    Args:
        name: gives the row and the file; asked for only when there is an error.
        mask: whether the volume is a mask; that changes the advice for a missing one.
        path: where the volume lies, if not in memory.

    Raises:
        VolumeMissingError: instead of any other `FileNotFoundError` about a file.
        UnreachableError: instead of a `FileNotFoundError` by which a filesystem says that it could not connect.
        VolumeDataError: instead of what else the system says about a local file, such as `PermissionError`.
    """

    __slots__ = ("_mask", "_name", "_path")

    def __init__(self, name: Callable[[], str], mask: bool, path: str | None) -> None:
        self._name = name
        self._mask = mask
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        if isinstance(error, EndpointError) and not isinstance(error, VolumeDataError):
            name = f"{self._name()}: "
            if not str(error).startswith(name):  # in place: kinds differ in what they are made of
                error.args = (f"{name}{error.args[0]}", *error.args[1:])
            return
        if not isinstance(error, (*_NAMED, FileNotFoundError)):
            local = self._path is not None and is_local(self._path)  # elsewhere it may be the connection
            if local and isinstance(error, OSError) and not isinstance(error, ReasonKneeError):
                raise VolumeDataError(
                    f"{self._name()}: the file cannot be read ({error.strerror or error}); {_next_step(error)}"
                ) from error
            return
        name = self._name()
        if could_not_connect(error):
            reason = f"{type(error.__cause__).__name__}: {error.__cause__}"
            raise UnreachableError(f"{name}: it cannot be asked for ({reason})") from error
        if not isinstance(error, _NAMED):
            raise VolumeMissingError(f"{name}: {_advice(error, self._mask)}") from error
        if not str(error).startswith(name):
            raise type(error)(f"{name}: {error}") from error


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
