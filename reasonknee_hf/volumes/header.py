"""NIfTI-1 and NIfTI-2 headers: what a file says about its voxels and where they lie in the world.

Where fields lie stands in the tables of `nibabel`. What they mean is own code, because what `nibabel` chooses silently
(which transform, what a NaN slope means) has to be recorded here.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from reasonknee_hf.errors import VolumeFormatError
from reasonknee_hf.volumes.orientation import Affine, axis_codes

HEADER_BYTES = 540  # enough for either version
_TYPES = {
    2: "u1", 4: "i2", 8: "i4", 16: "f4", 64: "f8", 256: "i1", 512: "u2", 768: "u4", 1024: "i8", 1280: "u8",
}  # fmt: skip
_REFUSED_TYPES = {
    1: "one bit a voxel", 32: "complex64", 128: "RGB", 1536: "float128", 1792: "complex128",
    2048: "complex256", 2304: "RGBA",
}  # fmt: skip
_CONVERT = "convert it, as with SimpleITK.WriteImage(SimpleITK.ReadImage(name), 'volume.nii.gz')"
# Marks of other files that hold volumes, where they stand, and what to do with them.
_OTHER_KINDS = (
    (
        b"DICM",
        128,
        "a DICOM file, one slice of a series",
        "read the folder of the series by 'dicom://series.nii::' before it",
    ),
    (b"NRRD", 0, "an NRRD file", _CONVERT),
    (b"ObjectType", 0, "a MetaImage header", _CONVERT),
)
_MILLIMETRES = {1: 1000.0, 3: 0.001}  # xyzt_units codes of metre and micrometre; anything else is taken as mm
# Voxels by which corners may differ before qform and sform are called in conflict. A quaternion of float32 loses that
# much where it stands for nearly half a turn.
_SAME_PLACE = 0.05
_HUGE = 1e100  # no place in the world; beyond it, lengths overflow


@dataclass(frozen=True)
class NiftiHeader:
    """What the header of a NIfTI file says. Arrays and axes are in the order of the file, first axis fastest.

    Attributes:
        version: 1 or 2.
        byte_order: "<" or ">", as stored. Voxels are always handed out in native order.
        single_file: False for the header of an `.hdr` / `.img` pair.
        shape: three axes; trailing axes of length one are removed, missing ones added.
        dtype: stored type of a voxel, in native byte order.
        offset: where the voxels start, in bytes of the plain (inflated) file that holds them.
        slope, intercept: voxel = stored * slope + intercept. 1 and 0 where the file says NaN or a slope of 0.
        cal_min, cal_max: the window that the file proposes, both 0 where it proposes none.
        zooms: edges of a voxel in mm, in file order; positive.
        qform_code, sform_code: as stored.
        affine: 4x4, voxel index to mm in RAS+ world; None where the file has no usable transform.
        codes: axis codes of `affine`, such as "PIR"; None without one.
        placed: whether `affine` says anything. One of unit voxels at the origin is what programs write that lost the
            real one on the way (identity, or the identity of readers that count towards left and back).
        unit: mm of one unit of the file.
        affine_source: "sform", "qform" or "none".
        notes: oddities worth telling, in words, such as transforms in conflict. Most files have none.
    """

    version: int
    byte_order: str
    single_file: bool
    shape: tuple[int, int, int]
    dtype: np.dtype[Any]
    offset: int
    slope: float
    intercept: float
    cal_min: float
    cal_max: float
    zooms: tuple[float, float, float]
    qform_code: int
    sform_code: int
    affine: Affine | None = field(repr=False)
    codes: str | None = None
    placed: bool = False
    unit: float = 1.0
    affine_source: str = "none"
    notes: tuple[str, ...] = ()

    @property
    def scaled(self) -> bool:
        """Whether slope and intercept change the stored values."""
        return (self.slope, self.intercept) != (1.0, 0.0)

    @property
    def nbytes(self) -> int:
        """Bytes of all voxels as stored."""
        return self.shape[0] * self.shape[1] * self.shape[2] * self.dtype.itemsize


def parse_header(start: bytes) -> NiftiHeader:
    """Reads a header from the first bytes of a plain (inflated) file.

    Args:
        start: at least 540 bytes, or the whole file where that is shorter.

    Raises:
        VolumeFormatError: not NIfTI, or a kind that is refused by name (RGB, complex, a fourth axis)
    """
    version, order = _version_and_order(start)
    raw = _fields(start, version, order)
    notes: list[str] = []
    slope, intercept = _scaling(raw, notes)
    dtype = _dtype(raw)
    shape = _shape(raw)
    affine, source = _affine(raw, shape, notes)
    single = raw.magic[:3] in (b"n+1", b"n+2")
    return NiftiHeader(
        version=version,
        byte_order=order,
        single_file=single,
        shape=shape,
        dtype=dtype,
        offset=_offset(raw, single),
        slope=slope,
        intercept=intercept,
        cal_min=raw.cal_min,
        cal_max=raw.cal_max,
        zooms=_zooms(raw),
        qform_code=raw.qform_code,
        sform_code=raw.sform_code,
        affine=affine,
        codes=None if affine is None else axis_codes(affine),
        placed=affine is not None and not np.array_equal(np.abs(affine), np.eye(4)),
        unit=raw.unit,
        affine_source=source,
        notes=tuple(notes),
    )


def stored_fields(start: bytes | bytearray, version: int, order: str) -> Any:
    """The fields at the start of a file by their names in the standard: a view, through which they can be set."""
    from nibabel import nifti1, nifti2

    form = (nifti2 if version == 2 else nifti1).header_dtype.newbyteorder(order)
    return np.frombuffer(start, form, count=1)[0]


def _fields(start: bytes, version: int, order: str) -> SimpleNamespace:
    """The same as numbers, bytes and lists of Python, whose precision is that of calculations."""
    stored = stored_fields(start, version, order)
    fields = SimpleNamespace(**{name: stored[name].tolist() for name in stored.dtype.names})
    fields.unit = _MILLIMETRES.get(fields.xyzt_units & 7, 1.0)
    return fields


def _version_and_order(start: bytes) -> tuple[int, str]:
    if not start:
        raise VolumeFormatError("the file is empty; fetch it again")
    if start.startswith(b"version https://git-lfs"):
        raise VolumeFormatError(
            "this is a Git LFS pointer text, not the volume; fetch the real file (git lfs pull)"
        )
    for mark, at, kind, way in _OTHER_KINDS:
        if start[at : at + len(mark)] == mark:
            raise VolumeFormatError(f"this is {kind}, not NIfTI; {way}")
    if start.lstrip()[:1] == b"<":
        raise VolumeFormatError(
            "this is an HTML or XML page, not a volume; the download was answered by a web page"
        )
    for version, size, magics in ((1, 348, (b"n+1\0", b"ni1\0")), (2, 540, (b"n+2\0", b"ni2\0"))):
        for order in "<>":
            if len(start) >= size and start[:4] == struct.pack(order + "i", size):
                found = start[4:8] if version == 2 else start[344:348]
                if found in magics:
                    return version, order
                raise VolumeFormatError(
                    f"the header has the size of NIfTI-{version} but the mark {found!r} (Analyze 7.5 files"
                    " have none); convert it to NIfTI"
                )
    raise VolumeFormatError(f"not a NIfTI file: it starts with {start[:8]!r}")


def _dtype(raw: SimpleNamespace) -> np.dtype[Any]:
    if raw.datatype in _TYPES:
        return np.dtype("=" + _TYPES[raw.datatype])
    if raw.datatype in _REFUSED_TYPES:
        raise VolumeFormatError(
            f"{_REFUSED_TYPES[raw.datatype]} voxels are not read; convert to one real number a voxel"
        )
    raise VolumeFormatError(f"unknown NIfTI datatype {raw.datatype}; the header is damaged")


def _shape(raw: SimpleNamespace) -> tuple[int, int, int]:
    count = raw.dim[0]
    if not 1 <= count <= 7:
        raise VolumeFormatError(f"the header says {count} axes, NIfTI has 1 to 7; the header is damaged")
    stored = tuple(int(length) for length in raw.dim[1 : count + 1])
    if min(stored) < 1:
        raise VolumeFormatError(
            f"the header says shape {stored}, with an axis below one; the header is damaged"
        )
    shape = list(stored) + [1] * (3 - len(stored))
    while len(shape) > 3 and shape[-1] == 1:
        shape.pop()
    if len(shape) > 3:
        raise VolumeFormatError(
            f"the shape is {stored}: a real axis beyond the third; split it into volumes first"
        )
    return shape[0], shape[1], shape[2]


def _offset(raw: SimpleNamespace, single: bool) -> int:
    offset = raw.vox_offset
    least = raw.sizeof_hdr + 4 if single else 0
    if not np.isfinite(offset) or offset < 0 or (0 < offset < least):
        raise VolumeFormatError(f"the header says that voxels start at byte {offset}; it is damaged")
    return max(int(offset), least)


def _zooms(raw: SimpleNamespace) -> tuple[float, float, float]:
    x, y, z = (
        abs(float(zoom)) * raw.unit or 1.0 for zoom in raw.pixdim[1:4]
    )  # an edge of 0 means: not stated
    return x, y, z


def _scaling(raw: SimpleNamespace, notes: list[str]) -> tuple[float, float]:
    slope, intercept = raw.scl_slope, raw.scl_inter
    if slope == 0 or not np.isfinite(slope):
        return 1.0, 0.0
    if not np.isfinite(intercept):
        notes.append(f"the intercept is {intercept}, taken as 0")
        return slope, 0.0
    return slope, intercept


def _affine(raw: SimpleNamespace, shape: tuple[int, int, int], notes: list[str]) -> tuple[Affine | None, str]:
    """The sform where it is set, else the qform, as the major readers do; the other is compared with it."""
    found: list[tuple[str, Affine]] = []
    for name, code, read in (("sform", raw.sform_code, _sform), ("qform", raw.qform_code, _qform)):
        if code <= 0:  # as the reference library has it; a code below zero is none
            continue
        affine = read(raw)
        if (np.abs(affine) < _HUGE).all() and abs(np.linalg.det(affine[:3, :3])) > 1e-12:
            found.append((name, affine))
        else:
            notes.append(f"the {name} is set but singular, huge or not finite, and is not used")
    if not found:
        return None, "none"
    if len(found) == 2:
        distance = corner_distance(found[0][1], found[1][1], shape)
        if distance > _SAME_PLACE:
            notes.append(f"sform and qform differ by up to {distance:.3g} voxels; the sform is used")
    source, affine = found[0]
    stated, used = np.abs(raw.pixdim[1:4]), np.linalg.norm(affine[:3, :3], axis=0)
    if stated.all() and not np.allclose(stated, used, rtol=0.01):
        notes.append(
            f"pixdim says voxels of {_edges(stated)} and the {source} {_edges(used)}; the {source} is used"
        )
    affine[:3] *= raw.unit
    return affine, source


def _edges(lengths: Affine) -> str:
    return " x ".join(f"{length:.4g}" for length in lengths)


def corner_distance(a: Affine, b: Affine, shape: tuple[int, int, int]) -> float:
    """Largest distance between the two places of a corner voxel, in units of the shortest edge of `a`."""
    ends = np.array(np.meshgrid(*[(0, length - 1) for length in shape], indexing="ij")).reshape(3, -1)
    corners = np.vstack([ends, np.ones(ends.shape[1])])
    edge = float(np.linalg.norm(a[:3, :3], axis=0).min())
    return float(np.linalg.norm((a @ corners - b @ corners)[:3], axis=0).max()) / edge


def _sform(raw: SimpleNamespace) -> Affine:
    affine = np.eye(4)
    affine[:3] = raw.srow_x, raw.srow_y, raw.srow_z
    return affine


def _qform(raw: SimpleNamespace) -> Affine:
    b, c, d = raw.quatern_b, raw.quatern_c, raw.quatern_d
    rest = 1.0 - (b * b + c * c + d * d)
    if rest < -1e-6:  # a unit quaternion within float32 noise, else the header is damaged
        return np.full((4, 4), np.nan)
    a = float(np.sqrt(max(rest, 0.0)))
    rotation = np.array(
        [
            [a * a + b * b - c * c - d * d, 2 * (b * c - a * d), 2 * (b * d + a * c)],
            [2 * (b * c + a * d), a * a + c * c - b * b - d * d, 2 * (c * d - a * b)],
            [2 * (b * d - a * c), 2 * (c * d + a * b), a * a + d * d - b * b - c * c],
        ]
    )
    zooms = np.abs(np.asarray(raw.pixdim[1:4], dtype=np.float64))
    if raw.pixdim[0] < 0:
        zooms[2] = -zooms[2]
    affine = np.eye(4)
    affine[:3, :3] = rotation * zooms
    affine[:3, 3] = raw.qoffset_x, raw.qoffset_y, raw.qoffset_z
    return affine
