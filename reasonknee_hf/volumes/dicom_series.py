"""One DICOM series as a NIfTI file: slices in, sorted and checked, header and voxels out. Nothing is resampled.

Own code over `pydicom`, because a series must be right or refused: converters drop, guess or split where slices
are missing, come twice or belong to several series.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from reasonknee_hf.errors import ExtraMissingError, VolumeDataError, VolumeFormatError
from reasonknee_hf.volumes.orientation import Affine, axis_codes, reorder
from reasonknee_hf.volumes.voxels import Array

# What all slices share, and what it means where they do not. Numbers are compared up to rounding.
_SHARED = {
    "SeriesInstanceUID": "belongs to another series: the folder mixes several; keep one",
    "EchoTime": "is of another echo: the series holds several; keep the slices of one",
    "Rows": "has another size",
    "Columns": "has another size",
    "PixelSpacing": "has another spacing of pixels",
    "ImageOrientationPatient": "lies in another plane",
    "PixelRepresentation": "has voxels of another type",
}
_UNEVEN = 0.01  # of the distance between slices: positions are decimal texts, rounded by their writer
_DRIFT = 0.01  # mm by which slices may be shifted sideways before the grid is sheared
# A scanner numbers the series of a session 1, 2, 3: only a number as long as the wanted one can name the series.
_RUNNING = frozenset({"SeriesNumber"})


@dataclass(frozen=True)
class Series:
    """A series in the form of a NIfTI file.

    Attributes:
        header: All bytes before the voxels.
        voxels: Array of three axes in the order of the file (first axis fastest); `None` where only the header was
            asked for.
        nbytes: Bytes of header and voxels.
    """

    header: bytes
    voxels: Array | None
    nbytes: int

    def pieces(self) -> Iterator[bytes]:
        """The bytes of the file, a slice at a time."""
        assert self.voxels is not None
        yield self.header
        for index in range(self.voxels.shape[2]):
            yield self.voxels[:, :, index].tobytes("F")


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
    files: Iterable[tuple[str, BinaryIO]], name: str, wanted: Mapping[str, str], axes: str | None = None
) -> Series:
    """Reads all slices of a series.

    Args:
        files: Name and content of each file; any order.
        name: What to call the series in errors.
        wanted: DICOM keyword → text that its value must contain where the files state one, e.g.
            `{"PatientID": "9000001", "SeriesDescription": "DESS_RIGHT"}`.
        axes: Axis codes of the result, such as "PIR"; as the slices lie by default.

    Returns:
        [`Series`]: int16 where all values fit, else the smallest type that holds them; float32 where a rescale slope
        leaves no integers.

    Raises:
        VolumeFormatError: No single series of evenly spaced slices, or not the one that is wanted. The message names
            series and instance.
        VolumeDataError: A file is cut or cannot be decoded.
        ExtraMissingError: `pydicom` is not installed.
    """
    slices = [_slice(file, title, name, wanted, pixels=True) for title, file in files]
    slices, affine = _stack(slices, name)
    voxels = _voxels(slices).transpose(2, 1, 0)
    return _series(voxels.shape, voxels.dtype, affine, axes, voxels)


def read_ends(
    ends: Iterable[tuple[str, BinaryIO]], count: int, name: str, wanted: Mapping[str, str], axes: str | None
) -> Series | None:
    """The header of a series, from its first and last file alone.

    Returns:
        The same header as [`read_series`], without voxels; `None` where two slices do not settle it, because names do
        not follow positions, or the type hangs on the values.

    Raises:
        VolumeFormatError, VolumeDataError, ExtraMissingError: As for [`read_series`], as far as the two slices show it.
    """
    found = [_slice(file, title, name, wanted, pixels=False) for title, file in ends]
    first = found[0].data
    bits, signed = int(first.BitsStored), bool(first.PixelRepresentation)
    if len(found) < 2 or bits > 16 or (bits == 16 and not signed) or _rescale(first) != (1.0, 0.0):
        return None
    _, affine = _stack(found, name)
    step = float(np.linalg.norm(affine[:3, 2])) / (count - 1)
    stated = first.get("SpacingBetweenSlices") or first.get("SliceThickness")
    if not stated or abs(step - float(stated)) > _UNEVEN * step:
        return None
    affine[:3, 2] /= count - 1
    shape = (int(first.Columns), int(first.Rows), count)
    return _series(shape, np.dtype(np.int16), affine, axes, None)


def _series(
    shape: Sequence[int], dtype: Any, affine: Affine, axes: str | None, voxels: Array | None
) -> Series:
    import nibabel

    order = reorder(axis_codes(affine), axes or axis_codes(affine))
    stored = (shape[0], shape[1], shape[2])
    header = nibabel.Nifti1Header()
    header.set_data_dtype(dtype)
    header.set_data_shape(order.shape(stored))
    placed = order.affine(affine, stored)
    header.set_qform(placed, 1)
    header.set_sform(placed, 1)
    header.set_xyzt_units("mm")
    header["vox_offset"], header["magic"] = 352, b"n+1"
    header.set_slope_inter(1, 0)
    start = header.binaryblock + bytes(4)
    size = len(start) + int(np.prod(shape)) * np.dtype(dtype).itemsize
    return Series(start, None if voxels is None else order.array(voxels), size)


# --- one slice -----------------------------------------------------------------------------------------------


def _slice(file: BinaryIO, title: str, name: str, wanted: Mapping[str, str], *, pixels: bool) -> _Slice:
    try:
        import pydicom
    except ImportError as error:
        raise ExtraMissingError(
            f"series {name} is DICOM, which needs pydicom: pip install 'reasonknee_hf[dicom]'"
        ) from error
    try:
        data = pydicom.dcmread(file, stop_before_pixels=not pixels)
        part = _Slice(title, data)
        _check_kind(part, name)
        _check_identity(part, name, wanted)
        if pixels:
            part.plane = _rescaled(data, _pixels(part, name))
            del data.PixelData
            data._pixel_array = None
            file.close()  # the dataset holds on to it, and so would to all bytes of the slice
    except (
        pydicom.errors.InvalidDicomError,
        EOFError,
        ValueError,
        AttributeError,
        TypeError,
        KeyError,
    ) as error:
        if isinstance(error, VolumeFormatError):
            raise
        raise VolumeDataError(
            f"series {name}: {title} is no whole DICOM slice ({type(error).__name__}: {error}); fetch it again"
        ) from error
    return part


def _check_kind(part: _Slice, name: str) -> None:
    data = part.data
    lacking = [
        tag
        for tag in ("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing")
        if not data.get(tag)
    ]
    if int(data.get("NumberOfFrames") or 1) > 1 or int(data.get("SamplesPerPixel") or 1) > 1:
        raise VolumeFormatError(
            f"series {name}: {part} holds several frames or colours; only grey slices, one a file, are read"
        )
    if lacking:
        raise VolumeFormatError(
            f"series {name}: {part} does not say where it lies (no {', '.join(lacking)}); it is no slice of a volume"
        )


def _check_identity(part: _Slice, name: str, wanted: Mapping[str, str]) -> None:
    for keyword, text in wanted.items():
        found = str(part.data.get(keyword) or "").strip()
        comparable = found and not (keyword in _RUNNING and len(found) < len(text))
        if comparable and text.casefold() not in found.casefold():
            raise VolumeFormatError(
                f"series {name}: {part} says {keyword} {found!r}, but {text!r} is wanted there: it is another series"
            )


def _pixels(part: _Slice, name: str) -> Array:
    data = part.data
    syntax = data.file_meta.TransferSyntaxUID
    try:
        plane: Array = data.pixel_array
    except (RuntimeError, NotImplementedError) as error:  # what pydicom raises where no decoder is installed
        raise VolumeFormatError(
            f"series {name}: {part} is compressed ({syntax.name}) and no installed decoder reads it; install one "
            "(pip install pylibjpeg pylibjpeg-libjpeg pylibjpeg-openjpeg) or decompress the files"
        ) from error
    return plane.astype(plane.dtype.newbyteorder("="), copy=False)


def _rescale(data: Any) -> tuple[float, float]:
    slope, intercept = data.get("RescaleSlope"), data.get("RescaleIntercept")
    return (1.0 if slope is None else float(slope), float(intercept or 0))


def _rescaled(data: Any, plane: Array) -> Array:
    slope, intercept = _rescale(data)
    if (slope, intercept) == (1.0, 0.0):
        return plane
    values = plane * slope + intercept
    whole = np.rint(values)
    return whole.astype(np.int32) if np.array_equal(whole, values) else values.astype(np.float32)


# --- all slices ----------------------------------------------------------------------------------------------


def _stack(slices: list[_Slice], name: str) -> tuple[list[_Slice], Affine]:
    """The slices in order along their normal, and the affine (RAS+) of (column, row, slice)."""
    if not slices:
        raise VolumeFormatError(f"series {name} holds no DICOM file")
    _check_shared(slices, name)
    first = slices[0].data
    along_row, along_column = np.array(first.ImageOrientationPatient, dtype=np.float64).reshape(2, 3)
    normal = np.cross(along_row, along_column)
    places = {id(part): float(normal @ part.position) for part in slices}
    slices = sorted(slices, key=lambda part: places[id(part)])
    if len(slices) == 1:
        step = normal * float(first.get("SpacingBetweenSlices") or first.get("SliceThickness") or 1.0)
    else:
        _check_even(slices, np.array([places[id(part)] for part in slices]), name)
        step = (slices[-1].position - slices[0].position) / (len(slices) - 1)
        drift = float(np.linalg.norm(step - normal * (normal @ step))) * (len(slices) - 1)
        if drift > _DRIFT:
            raise VolumeFormatError(
                f"series {name}: {slices[-1]} is shifted sideways by {drift:.3g} mm against {slices[0]}: no grid"
            )
    row_step, column_step = (float(edge) for edge in first.PixelSpacing)
    affine = np.eye(4)
    affine[:3, :3] = np.stack([along_row * column_step, along_column * row_step, step], axis=1)
    affine[:3, 3] = slices[0].position
    return slices, np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine


def _check_shared(slices: list[_Slice], name: str) -> None:
    first = slices[0]
    known: dict[str, _Slice] = {}
    for part in slices:
        for keyword, meaning in _SHARED.items():
            if not _same(first.data.get(keyword), part.data.get(keyword)):
                raise VolumeFormatError(
                    f"series {name}: {part} {meaning} ({keyword} {part.data.get(keyword)}, {first} has "
                    f"{first.data.get(keyword)})"
                )
        twin = known.setdefault(str(part.data.get("SOPInstanceUID", part.name)), part)
        if twin is not part:
            raise VolumeFormatError(
                f"series {name}: {part} is the same instance as {twin}; remove one of them"
            )


def _same(one: Any, other: Any) -> bool:
    if one == other or one is None or other is None:
        return bool(one == other)
    try:
        return bool(np.allclose(np.array(one, float), np.array(other, float), rtol=1e-5, atol=1e-5))
    except ValueError:
        return False


def _check_even(slices: list[_Slice], places: Affine, name: str) -> None:
    steps = np.diff(places)
    usual = float(np.median(steps))
    for at in np.flatnonzero(np.abs(steps - usual) > _UNEVEN * abs(usual)).tolist() or (
        [0] if usual < 1e-3 else []
    ):
        before, behind, step = slices[at], slices[at + 1], float(steps[at])
        if step < 1e-3:
            raise VolumeFormatError(
                f"series {name}: {before} and {behind} lie at the same place; keep one of them"
            )
        lost = round(step / usual) - 1
        what = f"{lost} missing there; fetch the series again" if lost > 0 else "slices must be evenly spaced"
        raise VolumeFormatError(
            f"series {name}: {before} and {behind} are {step:.4g} mm apart, others {usual:.4g} mm: {what}"
        )


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
