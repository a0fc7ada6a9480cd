"""NIfTI files for tests of `reasonknee_hf.volumes`, written by `nibabel`: so two implementations meet."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import nibabel
import numpy as np

# The grid of a published volume in small: slices run left-right on the last axis, in plane posterior and
# inferior.
PIR = np.array([[0.0, 0.0, 0.7, -3.0], [-0.5, 0.0, 0.0, 4.0], [0.0, -0.5, 0.0, 5.0], [0.0, 0.0, 0.0, 1.0]])
# The same with slices on the first axis.
RPI = PIR[:, [2, 0, 1, 3]]


def voxels(shape: tuple[int, ...] = (8, 9, 5), dtype: Any = np.int16, seed: int = 0) -> np.ndarray:
    """Random voxels that use the range of their type, at most 0..1000."""
    top = 1000 if np.dtype(dtype).kind == "f" else min(1000, np.iinfo(dtype).max)
    return np.random.default_rng(seed).integers(0, top, shape, endpoint=True).astype(dtype)


def image(
    array: np.ndarray, affine: np.ndarray | None = PIR, *, second: bool = False, qform: Any = None
) -> Any:
    """A `nibabel` image with an sform, or with a qform too."""
    kind = nibabel.Nifti2Image if second else nibabel.Nifti1Image
    made = kind(array, affine, dtype=array.dtype)
    if affine is not None:
        made.set_sform(affine, 1)
        made.set_qform(qform, 1 if qform is not None else 0)
    return made


def plain_bytes(array: np.ndarray, affine: np.ndarray | None = PIR, **options: Any) -> bytes:
    """The bytes of a `.nii` file."""
    return image(array, affine, **options).to_bytes()


def gzip_bytes(array: np.ndarray, affine: np.ndarray | None = PIR, **options: Any) -> bytes:
    """The bytes of a `.nii.gz` file."""
    return gzip.compress(plain_bytes(array, affine, **options), 6, mtime=0)


def write(path: Path, array: np.ndarray, affine: np.ndarray | None = PIR, **options: Any) -> Path:
    """Writes a file, compressed where its name ends in `.gz`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes((gzip_bytes if path.suffix == ".gz" else plain_bytes)(array, affine, **options))
    return path


def patched(data: bytes, at: int, value: bytes) -> bytes:
    """Bytes of a plain file with some of them replaced, for headers that no writer would write."""
    return data[:at] + value + data[at + len(value) :]
