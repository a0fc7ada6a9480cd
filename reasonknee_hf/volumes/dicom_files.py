"""A DICOM series as one NIfTI file of a filesystem, so that whatever reads volumes reads series as well.

    dicom://PatientID=9000001/SeriesDescription=DESS_RIGHT/axes=PIR/10300001.nii::/downloads/9000001/20041222/10300001

Behind `::` stands the folder of the slices, or a tar of them (`.tar`, `.tar.gz`, `.tgz`), local or any URL; before it
a name for the file and, as folders above it, what the series must say of itself (see `read_series`) and the axis codes
that are wanted. A tar is read as a stream and never unpacked to disk.

Own code over `pydicom`, because a series must be right or refused: converters drop, guess or split where slices are
missing, come twice or belong to several series. Nothing is resampled. Errors name the series and the instance.
"""

from __future__ import annotations

import io
import re
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import quote, unquote

import fsspec
import numpy as np
from fsspec.spec import AbstractFileSystem

from reasonknee_hf.errors import ExtraMissingError, ReasonKneeError, VolumeDataError, VolumeFormatError
from reasonknee_hf.volumes.orientation import Affine, axis_codes, reorder
from reasonknee_hf.volumes.volume_bytes import gzip_file, named_errors
from reasonknee_hf.volumes.voxels import Array

TARS = (".tar", ".tar.gz", ".tgz")
_BESIDE = re.compile(
    r"(^|/)(\.[^/]*|DICOMDIR|Thumbs\.db|[^/]*\.(csv|txt|json|xml|md5|html?|pdf|jpe?g|png))$", re.I
)
"""Names of files that lie beside slices and are none. Anything else must be a slice: a broken one is never skipped."""


def series_url(series: str, name: str, axes: str, wanted: Mapping[str, str]) -> str:
    """URL of a series as a NIfTI file.

    Args:
        series: Path or URL of its folder or tar.
        name: What to call the file; ends in `.nii`.
        axes: Axis codes, such as "PIR".
        wanted: What the series must say of itself; see [`read_series`].
    """
    said = "".join(f"{keyword}={quote(text, safe='')}/" for keyword, text in wanted.items())
    return f"dicom://{said}axes={axes}/{name}::{series}"


class DicomSeriesFileSystem(AbstractFileSystem):
    """The file system of `dicom://` URLs; `fsspec` opens them by itself.

    Args:
        fo: Path of the folder or tar in the target filesystem.
        target_protocol, target_options: The filesystem that holds it.
    """

    protocol = "dicom"
    cachable = False

    def __init__(
        self,
        fo: str,
        target_protocol: str | None = None,
        target_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.fo = fo.rstrip("/")
        self.target = fsspec.filesystem(target_protocol or "file", **(target_options or {}))

    def stream(self, path: str) -> Iterator[bytes]:
        """The bytes of the file in pieces; the series is read before the first."""
        header, voxels = self._read(path)
        yield header
        for index in range(voxels.shape[2]):
            yield voxels[:, :, index].tobytes("F")

    def header(self, path: str) -> bytes:
        """All bytes before the voxels: from the first and last slice of a folder where they settle them."""
        return self._header(path).header

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        series = self._header(path)
        size = len(series.header) + series.voxels.nbytes
        return {**self.target.info(self.fo), "name": path, "size": size, "type": "file"}

    def _open(self, path: str, mode: str = "rb", **options: Any) -> BinaryIO:
        return io.BytesIO(b"".join(self.stream(path)))

    # --- inside ----------------------------------------------------------------------------------------------

    def _header(self, path: str) -> Series:
        if not self.fo.endswith(TARS):
            names = self._names()
            ends = self._files(names[:: max(1, len(names) - 1)], start=True)
            with self._named_errors():
                found = read_ends(ends, len(names), *_wishes(path))
            if found is not None:
                return found
        return self._read(path)

    def _read(self, path: str) -> Series:
        files = self._tar_files() if self.fo.endswith(TARS) else self._files(self._names())
        with self._named_errors():
            return read_series(files, *_wishes(path))

    def _named_errors(self) -> AbstractContextManager[None]:
        return named_errors(lambda: f"series {self.fo}", False, None)

    def _names(self) -> list[str]:
        """Names of the slices, the shorter first: `2` before `10`."""
        files = [entry["name"] for entry in self.target.ls(self.fo, detail=True) if entry["type"] == "file"]
        return sorted(
            (name for name in files if not _BESIDE.search(name)), key=lambda name: (len(name), name)
        )

    def _files(self, names: list[str], start: bool = False) -> Iterator[tuple[str, BinaryIO]]:
        for name in names:
            with self.target.open(name, "rb") as file:
                yield name.rpartition("/")[2], file if start else io.BytesIO(file.read())

    def _tar_files(self) -> Iterator[tuple[str, BinaryIO]]:
        with self.target.open(self.fo, "rb") as packed:
            file = packed if self.fo.endswith(".tar") else gzip_file(packed)
            try:
                with tarfile.open(fileobj=file, mode="r|") as tar:
                    for member in tar:
                        content = tar.extractfile(member)
                        if content is not None and not _BESIDE.search(member.name):
                            yield member.name.rpartition("/")[2], io.BytesIO(content.read())
                while file.read(1 << 20):  # to the end, where the checksum is verified
                    pass
            except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
                raise VolumeDataError(f"the tar is not whole ({error}); fetch it again") from error


def _wishes(path: str) -> tuple[dict[str, str], str | None]:
    pairs = [part.split("=", 1) for part in path.split("/") if "=" in part]
    wanted = {keyword: unquote(text) for keyword, text in pairs}
    return wanted, wanted.pop("axes", None)


_PLACED_BY = ("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing")
# What all slices of a series have in common; numbers up to rounding.
_SHARED = ("SeriesInstanceUID", "EchoTime", "Rows", "Columns", "PixelRepresentation", *_PLACED_BY[1:])
_UNEVEN = 0.01  # of the distance between slices: positions are decimal texts, rounded by their writer
_DRIFT = 0.01  # mm by which slices may be shifted sideways before the grid is sheared
_SAME_PLACE = 1e-3  # mm
# A scanner numbers the series of a session 1, 2, 3: only a number as long as the wanted one can name the series.
_RUNNING = ("SeriesNumber", "AccessionNumber")


class Series(NamedTuple):
    """A series in the form of a NIfTI file.

    Attributes:
        header: All bytes before the voxels.
        voxels: Array of three axes in the order of the file (first axis fastest). Of a series of which only the header
            was asked for it has the right shape and type, and no values.
    """

    header: bytes
    voxels: Array


@dataclass
class _Slice:
    name: str
    data: Any  # the pydicom dataset, without pixels
    plane: Array | None = None

    def __str__(self) -> str:
        return f"instance {self.data.get('InstanceNumber', '?')} ({self.name})"

    @property
    def position(self) -> Affine:
        return np.array(self.data.ImagePositionPatient, dtype=np.float64)


def read_series(
    files: Iterable[tuple[str, BinaryIO]], wanted: Mapping[str, str], axes: str | None = None
) -> Series:
    """Reads all slices of a series.

    Args:
        files: Name and content of each file; any order.
        wanted: DICOM keyword → text that its value must contain where the files state one, e.g.
            `{"PatientID": "9000001", "SeriesDescription": "DESS_RIGHT"}`.
        axes: Axis codes of the result, such as "PIR"; as the slices lie by default.

    Returns:
        [`Series`]: int16 where all values fit, else the smallest type that holds them; float32 where a rescale slope
        leaves no integers.

    Raises:
        VolumeFormatError: No single series of evenly spaced slices, or not the one that is wanted.
        VolumeDataError: A file is cut or cannot be decoded.
        ExtraMissingError: `pydicom` is not installed.
    """
    slices, affine = _stack([_slice(file, name, wanted, pixels=True) for name, file in files])
    return _series(_voxels(slices).transpose(2, 1, 0), affine, axes)


def read_ends(
    ends: Iterable[tuple[str, BinaryIO]], count: int, wanted: Mapping[str, str], axes: str | None
) -> Series | None:
    """The header of a series of `count` slices, from its first and last file alone.

    Returns:
        The same header as [`read_series`], without voxels; `None` where two slices do not settle it, because names do
        not follow positions, or the type hangs on the values.

    Raises:
        VolumeFormatError, VolumeDataError, ExtraMissingError: As for [`read_series`], as far as the two slices show it.
    """
    slices, affine = _stack([_slice(file, name, wanted, pixels=False) for name, file in ends])
    first = slices[0].data
    stated = float(first.get("SpacingBetweenSlices") or first.get("SliceThickness") or 0)
    affine[:3, 2] /= max(1, count - 1)
    step = float(np.linalg.norm(affine[:3, 2]))
    settled = abs(step - stated) <= _UNEVEN * step and _rescale(first) == (1.0, 0.0)
    if not settled or first.BitsStored > (16 if first.PixelRepresentation else 15):
        return None
    shape = (int(first.Columns), int(first.Rows), count)
    return _series(np.broadcast_to(np.int16(0), shape), affine, axes)


def _series(voxels: Array, affine: Affine, axes: str | None) -> Series:
    import nibabel

    order = reorder(axis_codes(affine), axes or axis_codes(affine))
    columns, rows, slices = voxels.shape
    placed, voxels = order.affine(affine, (columns, rows, slices)), order.array(voxels)
    header = nibabel.Nifti1Header()
    header.set_data_dtype(voxels.dtype)
    header.set_data_shape(voxels.shape)
    header.set_qform(placed, 1)
    header.set_sform(placed, 1)
    header.set_xyzt_units("mm")
    header.set_slope_inter(1, 0)
    header["vox_offset"], header["magic"] = 352, b"n+1"
    return Series(header.binaryblock + bytes(4), voxels)


# --- one slice -----------------------------------------------------------------------------------------------


def _slice(file: BinaryIO, name: str, wanted: Mapping[str, str], *, pixels: bool) -> _Slice:
    try:
        import pydicom
    except ImportError as error:
        raise ExtraMissingError("DICOM needs pydicom: pip install 'reasonknee_hf[dicom]'") from error
    try:
        part = _Slice(name, pydicom.dcmread(file, stop_before_pixels=not pixels))
        _check_slice(part, wanted)
        if pixels:
            part.plane = _pixels(part)
            del part.data.PixelData
            part.data._pixel_array = None
            file.close()  # the dataset holds on to it, and so would to all bytes of the slice
    except ReasonKneeError:
        raise
    except Exception as error:  # of many kinds where a file is damaged
        raise VolumeDataError(
            f"{name} is no whole DICOM slice ({type(error).__name__}: {error}); fetch it again"
        ) from error
    return part


def _check_slice(part: _Slice, wanted: Mapping[str, str]) -> None:
    data = part.data
    if int(data.get("NumberOfFrames") or 1) > 1 or int(data.get("SamplesPerPixel") or 1) > 1:
        raise VolumeFormatError(
            f"{part} holds several frames or colours; only grey slices, one a file, are read"
        )
    for keyword in _PLACED_BY:
        if not data.get(keyword):
            raise VolumeFormatError(f"{part} has no {keyword}, and so no place: it is no slice of a volume")
    for keyword, text in wanted.items():
        found = str(data.get(keyword) or "").strip()
        comparable = found and (keyword not in _RUNNING or len(found) >= len(text))
        if comparable and text.casefold() not in found.casefold():
            raise VolumeFormatError(
                f"{part} says {keyword} {found!r}, but {text!r} is wanted: it is another series"
            )


def _pixels(part: _Slice) -> Array:
    data = part.data
    try:
        plane: Array = data.pixel_array
    except (RuntimeError, NotImplementedError) as error:  # what pydicom raises where no decoder is installed
        raise VolumeFormatError(
            f"{part} is compressed ({data.file_meta.TransferSyntaxUID.name}) and no installed decoder reads it; pip "
            "install pylibjpeg pylibjpeg-libjpeg pylibjpeg-openjpeg, or decompress the files"
        ) from error
    slope, intercept = _rescale(data)
    if (slope, intercept) == (1.0, 0.0):
        return plane.astype(plane.dtype.newbyteorder("="), copy=False)
    values = plane * slope + intercept
    whole = np.rint(values)
    return whole.astype(np.int32) if np.array_equal(whole, values) else values.astype(np.float32)


def _rescale(data: Any) -> tuple[float, float]:
    slope, intercept = data.get("RescaleSlope"), data.get("RescaleIntercept")
    return 1.0 if slope is None else float(slope), float(intercept or 0)


# --- all slices ----------------------------------------------------------------------------------------------


def _stack(slices: list[_Slice]) -> tuple[list[_Slice], Affine]:
    """The slices in order along their normal, and the affine (RAS+) of (column, row, slice)."""
    if not slices:
        raise VolumeFormatError("there is no DICOM file")
    _check_shared(slices)
    first = slices[0].data
    along_row, along_column = np.array(first.ImageOrientationPatient, dtype=np.float64).reshape(2, 3)
    normal = np.cross(along_row, along_column)
    slices = sorted(slices, key=lambda part: float(normal @ part.position))
    if len(slices) == 1:
        step = normal * float(first.get("SpacingBetweenSlices") or first.get("SliceThickness") or 1.0)
    else:
        _check_even(slices, np.diff([float(normal @ part.position) for part in slices]))
        way = slices[-1].position - slices[0].position
        drift = float(np.linalg.norm(way - normal * (normal @ way)))
        if drift > _DRIFT:
            raise VolumeFormatError(
                f"{slices[-1]} is shifted sideways by {drift:.3g} mm against {slices[0]}: no grid"
            )
        step = way / (len(slices) - 1)
    row_step, column_step = (float(edge) for edge in first.PixelSpacing)
    affine = np.eye(4)
    affine[:3, :3] = np.stack([along_row * column_step, along_column * row_step, step], axis=1)
    affine[:3, 3] = slices[0].position
    return slices, np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine


def _check_shared(slices: list[_Slice]) -> None:
    first = slices[0]
    known: dict[str, _Slice] = {}
    for part in slices:
        for keyword in _SHARED:
            one, other = part.data.get(keyword), first.data.get(keyword)
            if not _same(one, other):
                raise VolumeFormatError(
                    f"{part} has another {keyword} than {first} ({one}, {other}): the files are of several series or "
                    "echoes; keep one"
                )
        twin = known.setdefault(str(part.data.get("SOPInstanceUID", part.name)), part)
        if twin is not part:
            raise VolumeFormatError(f"{part} is the same instance as {twin}; remove one of them")


def _same(one: Any, other: Any) -> bool:
    if one == other or isinstance(one, str):
        return bool(one == other)
    return bool(np.allclose(np.array(one, float), np.array(other, float), rtol=1e-5, atol=1e-5))


def _check_even(slices: list[_Slice], steps: Affine) -> None:
    usual = float(np.median(steps))
    uneven = np.flatnonzero(np.abs(steps - usual) > _UNEVEN * usual)
    at = int(steps.argmin() if steps.min() < _SAME_PLACE else uneven[0] if len(uneven) else -1)
    if at < 0:
        return
    pair, step = f"{slices[at]} and {slices[at + 1]}", float(steps[at])
    if step < _SAME_PLACE:
        raise VolumeFormatError(f"{pair} lie at the same place; keep one of them")
    lost = round(step / usual) - 1
    what = f"{lost} missing there; fetch the series again" if lost > 0 else "slices must be evenly spaced"
    raise VolumeFormatError(f"{pair} are {step:.4g} mm apart, others {usual:.4g} mm: {what}")


def _voxels(slices: list[_Slice]) -> Array:
    """All planes, (slice, row, column), in the type of the result; each plane is let go as it is copied."""
    planes = [part.plane for part in slices if part.plane is not None]
    kind = np.result_type(*{plane.dtype for plane in planes})
    out = np.empty((len(planes), *planes[0].shape), dtype=kind)
    for index, part in enumerate(slices):
        out[index], part.plane, planes[index] = part.plane, None, np.zeros(0)
    if kind.kind == "f":
        return out.astype(np.float32, copy=False)
    if out.min() >= -(2**15) and out.max() < 2**15:
        return out.view(np.int16) if kind == np.uint16 else out.astype(np.int16, copy=False)
    return out if kind == np.uint16 else out.astype(np.int32, copy=False)
