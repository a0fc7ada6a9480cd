"""What a derived version can add to a row: pictures of the box, and the region of the box as a NIfTI file."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from reasonknee_hf.dataset.joining import BROKEN, insist_on_broken
from reasonknee_hf.errors import ExtraMissingError, GridMismatchError, RecordError
from reasonknee_hf.look.planes import Scene, scene, side_by_side
from reasonknee_hf.publish.job import Job
from reasonknee_hf.publish.volume_files import accept_broken
from reasonknee_hf.volumes import boxes
from reasonknee_hf.volumes.orientation import Array
from reasonknee_hf.volumes.volume import KneeVolume

_PERCENTILES = (1.0, 99.0)
_PICTURE_SIDE = 192  # pixels of the longer side of one plane


def with_pictures(rows: Iterable[dict[str, Any]], job: Job) -> Iterator[dict[str, Any]]:
    """Rows with the pictures that were asked for; null where there is no volume or no box.

    Raises:
        RecordError: The box of a row leaves its volume and `on_error` is `"raise"`; else the pictures are null.
        VolumeFormatError, VolumeDataError: The same for a volume that cannot be read.
    """
    wanted = job.derived
    volumes = _Volumes(job)
    for row in rows:
        volume = volumes.of(row)
        box = None if volume is None else _box_inside(volume, row, job)
        if wanted.previews:
            row["preview"] = None
        if wanted.frames:
            row["frames"] = None
        if volume is not None and box is not None:
            if wanted.previews:
                shown = _scene(volume).with_box(box)
                row["preview"] = _png_file(side_by_side(shown, _PICTURE_SIDE), row["id"])
            if wanted.frames:
                row["frames"] = _frame_files(volume, box, wanted.frames, row["id"])
        yield row


def crop_rows(rows: Iterable[dict[str, Any]], job: Job) -> Iterator[dict[str, Any]]:
    """One row for each question with a box: its region as a NIfTI file of its own.

    Raises:
        RecordError: The box of a row leaves its volume and `on_error` is `"raise"`; else there is no crop of it.
        VolumeFormatError, VolumeDataError: The same for a volume that cannot be read.
    """
    volumes = _Volumes(job)
    for row in rows:
        volume = volumes.of(row)
        box = None if volume is None else _box_inside(volume, row, job)
        if volume is None or box is None:
            continue
        content, inner = crop_file(volume, box, job.derived.crop_margin)
        named = {"bytes": content, "path": f"{row['id']}.nii.gz"}
        yield {
            "id": row["id"],
            "scan_id": row["scan_id"],
            "bbox": row["bbox"],
            "crop_bbox": inner,
            "crop": named,
        }


def crop_file(volume: KneeVolume, box: boxes.Box, margin_mm: float = 0.0) -> tuple[bytes, list[int]]:
    """The region of a box as a compressed NIfTI file whose affine keeps every voxel where it was.

    Args:
        volume: Slice-first volume.
        box: `[start_slice, end_slice, x_min, x_max, y_min, y_max]`, ends inclusive.
        margin_mm: Grow the region on all sides first, as far as the volume goes.

    Returns:
        The file, its array slice-first, and the box in the region's own indices.
    """
    import nibabel

    grown = boxes.grow_box(box, margin_mm, volume.spacing, volume.shape) if margin_mm else list(box)
    low = np.array(grown[::2])
    affine = volume.affine.copy()
    affine[:3, 3] += affine[:3, :3] @ low
    image = nibabel.Nifti1Image(np.ascontiguousarray(volume.crop(grown, copy=False)), affine)
    image.header.set_xyzt_units("mm")
    inner = [int(end) - int(low[number // 2]) for number, end in enumerate(box)]
    return gzip.compress(image.to_bytes(), 6, mtime=0), inner


def _frame_files(volume: KneeVolume, box: boxes.Box, count: int, row_id: str) -> list[dict[str, Any]]:
    """`count` slices of the box, from its first to its last, cut to its extent in the plane."""
    grey = _greys(volume)
    region = volume.crop(box, copy=False)
    numbers = np.round(np.linspace(0, region.shape[0] - 1, count)).astype(int)
    return [_png_file(grey(region[number]).T, f"{row_id}_{box[0] + number}") for number in numbers]


class _Volumes:
    """The volumes of rows in turn; each is decoded once as long as its rows lie together."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._features = job.opened().dataset.features(job.config, None, True)
        self._path: str | None = None
        self._volume: KneeVolume | None = None

    def of(self, row: dict[str, Any]) -> KneeVolume | None:
        """The volume of a row; `None` where it has none or no box, or cannot be read and that is accepted."""
        stored = row.get("image")
        if stored is None or row["bbox"] is None:
            return None
        if stored["path"] != self._path:
            self._path, self._volume = stored["path"], None
            scan = {"scan_id": row["scan_id"], "image": stored, "mask": row.get("mask")}
            volume = self._features.decode_example(scan)["image"]
            try:
                volume.load()
                volume.check_box_grid()
                self._volume = volume
            except (*BROKEN, GridMismatchError) as error:
                insist_on_broken(error, self._job.opened())
                accept_broken(self._job, f"the volume of {row['id']}", error)
        return self._volume


def _box_inside(volume: KneeVolume, row: dict[str, Any], job: Job) -> list[int] | None:
    try:
        return boxes.check_box(row["bbox"], volume.shape)
    except RecordError as error:
        if job.on_error == "raise":
            raise RecordError(
                f"{row['id']}: {error}. Pass on_error='null' for no picture or crop of it."
            ) from None
        return None


@lru_cache(maxsize=1)
def _scene(volume: KneeVolume) -> Scene:
    return scene(volume)


@lru_cache(maxsize=1)
def _window(volume: KneeVolume) -> tuple[float, float]:
    """Lowest and highest voxel shown, the same for all pictures of a volume."""
    sample = volume.array()[::4, ::4, ::4]
    low, high = (float(value) for value in np.nanpercentile(sample, _PERCENTILES))
    return low, high


def _greys(volume: KneeVolume) -> Callable[[Array], Array]:
    """A function from voxels to grey values."""
    low, high = _window(volume)
    span = max(high - low, 1e-6)

    def grey(voxels: Array) -> Array:
        scaled = (np.nan_to_num(voxels.astype(np.float32), nan=low) - low) * (255 / span)
        return np.clip(np.round(scaled), 0, 255).astype(np.uint8)

    return grey


def _png_file(pixels: Array, name: str) -> dict[str, Any]:
    try:
        from PIL import Image
    except ImportError:
        raise ExtraMissingError(
            "Previews and frames are drawn by Pillow: pip install 'reasonknee_hf[viz]'."
        ) from None
    sink = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(sink, "PNG", compress_level=3)
    return {"bytes": sink.getvalue(), "path": f"{name}.png"}
