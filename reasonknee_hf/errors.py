"""Every exception of this package.

All derive from [`ReasonKneeError`]. Each leaf also derives from the builtin that a caller would catch without
knowing this package (`FileNotFoundError`, `OSError`, `ValueError`, ...), so existing handlers keep working.
A message names the row or file, the endpoint and revision where one was asked, what was found, and the next step.
"""

from __future__ import annotations


class ReasonKneeError(Exception):
    """Base of all errors raised on purpose by `reasonknee_hf`.

    Examples:
        >>> try:
        ...     rk.load_dataset("bensh", source="sample")
        ... except rk.ReasonKneeError as error:
        ...     print(type(error).__name__)
        ...
        OptionError
    """


# --- calls -----------------------------------------------------------------------------------------------------


class OptionError(ReasonKneeError, ValueError):
    """An unknown config, split, option or value. The message lists the valid ones."""


class ExtraMissingError(ReasonKneeError, ImportError):
    """An optional dependency is needed. The message names the extra to install."""


class StateError(ReasonKneeError, ValueError):
    """A saved iteration state does not belong to this dataset. The message names what differs."""


# --- the release and its tables ----------------------------------------------------------------------------------


class ReleaseError(ReasonKneeError, ValueError):
    """A release lacks something it must have, or a table of it cannot be read."""


class FileMissingError(ReasonKneeError, FileNotFoundError):
    """A file that was asked for is not in the release."""


class VolumeMissingError(FileMissingError):
    """A row's volume is neither in the release nor under `images=`."""


class AmbiguousPathError(ReasonKneeError, ValueError):
    """A published path fits several files of the release, or climbs out of it."""


class AnnotationError(ReasonKneeError, ValueError):
    """An annotation file is not the JSON it should be. The message gives byte offset and record number."""


class RecordError(ReasonKneeError, ValueError):
    """One record does not fit the row schema. The message names the row and what does not fit."""


# --- volumes -----------------------------------------------------------------------------------------------------


class VolumeFormatError(ReasonKneeError, ValueError):
    """A file is not NIfTI, or is of a kind that is refused by name (RGB, complex, a real fourth axis)."""


class VolumeDataError(ReasonKneeError, OSError):
    """The voxels of a file are truncated, fail their checksum or cannot be read."""


class VolumeTypeError(OptionError, TypeError):
    """A value or a column cannot be stored as a volume. `datasets` then tries another type, because of `TypeError`."""


class GridMismatchError(ReasonKneeError, ValueError):
    """Two volumes do not lie on the same grid. The message says by how much."""


# --- bytes from endpoints ----------------------------------------------------------------------------------------


class EndpointError(ReasonKneeError, OSError):
    """An endpoint did not give what was asked. Base of the kinds below; raised itself when all endpoints failed."""


class UnreachableError(EndpointError, ConnectionError):
    """No connection, or no answer in time."""


class ThrottledError(EndpointError):
    """The endpoint limits the rate of requests and the wait it asks for is over the cap."""


class ForbiddenError(EndpointError, PermissionError):
    """The endpoint wants a (different) token, or access to a gated repository."""


class RemoteMissingError(EndpointError, FileMissingError):
    """The repository or the revision does not exist at the endpoint. A file that is listed is never missing."""


class IntegrityError(EndpointError):
    """What came back is not what was asked: wrong status, range, length, identity, hash or checksum."""


class AnswerError(IntegrityError):
    """An endpoint's answer is wrong. That says something about the endpoint and nothing about the release."""


class PointerError(IntegrityError):
    """A file holds the text that git-LFS leaves in place of its content."""


class OfflineError(EndpointError, ConnectionError):
    """Offline mode is on and the bytes are not cached."""


def is_outage(error: BaseException) -> bool:
    """Whether an error tells of who was asked for a file, and nothing of the file: it may be there and right."""
    return isinstance(error, EndpointError) and (
        isinstance(error, AnswerError) or not isinstance(error, IntegrityError)
    )


# --- archives ----------------------------------------------------------------------------------------------------


class ArchiveError(ReasonKneeError, OSError):
    """A zip archive, or the parts it was cut into, cannot be read."""


class MemberMissingError(ArchiveError, FileMissingError):
    """The archive holds no such member."""


class UnsafeNameError(ArchiveError, ValueError):
    """A member's name would leave the target folder."""


# --- scoring -----------------------------------------------------------------------------------------------------


class PredictionError(ReasonKneeError, ValueError):
    """A prediction file cannot be read. A single bad answer is not an error: it is scored as invalid."""


# --- publishing --------------------------------------------------------------------------------------------------


class PublishError(ReasonKneeError, ValueError):
    """What would be written or pushed could not be loaded back. Raised before anything is sent."""
