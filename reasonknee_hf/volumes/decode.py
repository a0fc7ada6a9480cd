"""One file to its header, or to its header and voxels, wherever it lies and however it is packed."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import lru_cache
from typing import Any, TypeVar

from reasonknee_hf.errors import (
    OfflineError,
    OptionError,
    VolumeDataError,
    VolumeFormatError,
    VolumeMissingError,
    is_outage,
)
from reasonknee_hf.volumes import volume_bytes as source
from reasonknee_hf.volumes.header import HEADER_BYTES, NiftiHeader, parse_header, stored_fields
from reasonknee_hf.volumes.orientation import Affine
from reasonknee_hf.volumes.volume_bytes import plain
from reasonknee_hf.volumes.volume_cache import Decoded
from reasonknee_hf.volumes.voxels import Array, as_labels, read_header, read_stored, scaled

logger = logging.getLogger(__name__)

T = TypeVar("T")


def load_header(path: str | None, data: bytes | None = None) -> NiftiHeader:
    """Reads the header only: one read of a few kB.

    Raises:
        VolumeFormatError: the file is not NIfTI, or of a kind that is refused by name.
        FileNotFoundError: there is no such file.
    """
    path = _header_half(path, data)
    return _surely(path, data, lambda content: parse_header(source.plain_start(path, content, HEADER_BYTES)))


@lru_cache(maxsize=512)
def known_header(path: str, state: tuple[int, ...]) -> NiftiHeader | None:
    """The header of a file in a state (see `identity`), remembered; None where it cannot be read, said once.

    Raises:
        EndpointError: it cannot be reached.
    """
    try:
        return load_header(path)
    except (OSError, VolumeFormatError) as error:
        if is_outage(error) and not isinstance(error, OfflineError):
            raise  # it is out of reach now, and would tell the next time
        logger.warning(
            "boxes go by axis codes alone, without a look at the mask that they were drawn on: %s", error
        )
        return None


def load_voxels(
    path: str | None, data: bytes | None = None, *, mask: bool = False, stop: int | None = None
) -> Decoded:
    """Reads header and voxels in one pass over the file.

    Args:
        path: local path or URL; for an `.hdr` / `.img` pair the name of either half.
        data: the bytes of the file, which are then used instead of `path`.
        mask: give integer labels instead of grey values.
        stop: read only so many slices along the slowest axis of the file, and stop there.

    Returns:
        Header and read-only voxels in file order: stored type where there is no slope, float32 where there is
        one, the smallest unsigned type for a mask.

    Raises:
        VolumeFormatError: the file is not NIfTI, of a kind that is refused by name, or a mask whose voxels
            are no labels.
        VolumeDataError: the file is cut or fails its checksum.
        FileNotFoundError: there is no such file.
    """
    path = _header_half(path, data)

    def load(content: bytes | None) -> tuple[NiftiHeader, Array | None]:
        with _plain_pieces(path, content) as pieces:
            header, taken = read_header(pieces)
            return header, read_stored(pieces, header, taken, stop) if header.single_file else None

    header, stored = _surely(path, data, load)
    if stored is not None:
        return _decoded(header, stored, mask)
    if path is None:
        raise VolumeFormatError(
            "this is the header of an .hdr/.img pair and the voxels are in a file that was not given"
        )
    with _plain_pieces(_half(path, "img"), None) as pieces:
        return _decoded(header, read_stored(pieces, header, stop=stop), mask)


def _surely(path: str | None, data: bytes | None, work: Callable[[bytes | None], T]) -> T:
    """What `work` makes of a file; where that is broken, of the whole file, verified, before the file is blamed.

    What comes out of the network is proved right at its end only, and what is wrong with it is often met before.
    """
    try:
        return work(data)
    except (VolumeDataError, VolumeFormatError):
        verified = source.verified(path) if data is None and path is not None else None
        if verified is None:
            raise
        return work(verified)


def check_file(data: bytes) -> None:
    """Reads the bytes of a whole file once and keeps nothing.

    Raises:
        VolumeFormatError: they are not NIfTI, of a kind that is refused by name, or half of a pair.
        VolumeDataError: they are cut or fail their checksum.
    """
    with _plain_pieces(None, data) as pieces:
        header, taken = read_header(pieces)
        if not header.single_file:
            raise VolumeFormatError(
                "this is the header of an .hdr/.img pair, whose voxels are in another file; store it as .nii.gz"
            )
        wanted = header.offset + math.prod(header.shape) * header.dtype.itemsize
        found = len(taken) + sum(map(len, pieces))
    if found < wanted:
        raise VolumeDataError(f"the file ends after {found} of {wanted} bytes; it is cut, fetch it again")


def identity(path: str) -> tuple[int | str, ...]:
    """What tells apart two states of a file, or of both files of a pair; see `source.identity`."""
    other = next(
        (other for own, other in (("img", "hdr"), ("hdr", "img")) if source.is_half(path, own)), None
    )
    if other is None:
        return source.identity(path)
    halves = [path, *filter(source.exists, source.pair_names(path, other))]
    return tuple(part for half in halves for part in source.identity(half))


def nibabel_image(path: str | None, data: bytes | None, header: NiftiHeader) -> Any:
    """The file as a `nibabel` image over its plain bytes in memory; `header` is that of the file."""
    from io import BytesIO

    import nibabel

    kind = getattr(nibabel, f"Nifti{header.version}{'Image' if header.single_file else 'Pair'}")
    files = kind.make_file_map()
    if header.single_file or path is None:
        files["image"].fileobj = BytesIO(_plain_file(path, data))
    else:
        files["header"].fileobj = BytesIO(_plain_file(_header_half(path, None)))
        files["image"].fileobj = BytesIO(_plain_file(_half(path, "img")))
    return kind.from_file_map(files)


def stating(path: str | None, data: bytes | None, affine: Affine) -> bytes:
    """The plain file with an sform that states an affine (in mm); not a bit of the voxels changes.

    Raises:
        OptionError: the file is half of a pair.
    """
    plain_file = bytearray(_plain_file(path, data))
    header = parse_header(bytes(plain_file[:HEADER_BYTES]))
    if not header.single_file:
        raise OptionError("half of an .hdr/.img pair cannot be stored in a row: convert it to .nii first")
    fields = stored_fields(plain_file, header.version, header.byte_order)
    fields["sform_code"] = 1
    fields["srow_x"], fields["srow_y"], fields["srow_z"] = affine[:3] / header.unit
    return bytes(plain_file)


def _plain_file(path: str | None, data: bytes | None = None) -> bytes:
    """The whole plain (inflated) file as bytes."""
    with _plain_pieces(path, data) as pieces:
        return b"".join(bytes(piece) for piece in pieces)


def _header_half(path: str | None, data: bytes | None) -> str | None:
    """Where the header of a file lies, given the name of either half where it is a pair."""
    return path if data is not None or path is None or not source.is_half(path, "img") else _half(path, "hdr")


@contextmanager
def _plain_pieces(path: str | None, data: bytes | None) -> Iterator[Iterator[bytes | memoryview]]:
    with closing(source.chunks(path, data)) as raw:  # type: ignore[type-var]
        yield plain(raw)


def _decoded(header: NiftiHeader, stored: Array, mask: bool) -> Decoded:
    array = as_labels(stored, header) if mask else scaled(stored, header)
    array.flags.writeable = False
    return Decoded(header, array)


def _half(path: str, want: str) -> str:
    """The name of one half of a pair, given the name of either."""
    names = [path] if source.is_half(path, want) else source.pair_names(path, want)
    for name in names:
        if source.exists(name):
            return name
    half = "header" if want == "hdr" else "voxels"
    raise VolumeMissingError(f"{path} is half of a pair and the {half} are missing: no {' or '.join(names)}")
