"""Files of a release, written with the same bytes every time: NIfTI, cut zip archives, JSON lists."""

from __future__ import annotations

import gzip
import json
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Box = list[int]
"""`[start_slice, end_slice, x_min, x_max, y_min, y_max]`, ends inclusive, in slice-first array order."""

_ZIP_TIME = (2025, 5, 15, 0, 0, 0)


def write_text(path: Path, text: str) -> None:
    """Writes UTF-8 with the line ends of `text`, on every system."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())


def write_records(path: Path, records: Iterable[dict[str, object]]) -> None:
    """Writes one JSON list, record by record."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="\n") as out:
        separator = "[\n"
        for record in records:
            out.write(separator + json.dumps(record, indent=4, ensure_ascii=False))
            separator = ",\n"
        out.write("[]\n" if separator == "[\n" else "\n]\n")


def nifti_bytes(array: NDArray[Any], affine: NDArray[np.float64]) -> bytes:
    """A gzipped NIfTI-1 file of `array` in its stored order; `affine` (RAS+, mm) is qform and sform."""
    import nibabel
    import numpy as np

    image = nibabel.Nifti1Image(np.asfortranarray(array), affine)
    image.header.set_xyzt_units("mm")
    image.set_qform(affine, code=1)
    image.set_sform(affine, code=1)
    # Noise shrinks no further at higher levels; they only take longer.
    return gzip.compress(image.to_bytes(), compresslevel=4, mtime=0)


def write_nifti(path: Path, array: NDArray[Any], affine: NDArray[np.float64]) -> None:
    """Writes `nifti_bytes` and the folders above the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(nifti_bytes(array, affine))


def label_bounds(labels: NDArray[np.uint8]) -> dict[int, Box]:
    """Inclusive bounds `[start_slice, end_slice, x_min, x_max, y_min, y_max]` of each label of a mask."""
    import numpy as np

    # One pass: which labels occur at which index of each axis.
    bounds: dict[int, Box] = {}
    for axis in range(3):
        lines = np.moveaxis(labels, axis, 0).reshape(labels.shape[axis], -1)
        present = np.zeros((len(lines), 256), dtype=bool)
        for index, line in enumerate(lines):
            present[index] = np.bincount(line, minlength=256) > 0
        for label in np.flatnonzero(present.any(axis=0)):
            where = np.flatnonzero(present[:, label])
            bounds.setdefault(int(label), []).extend((int(where[0]), int(where[-1])))
    return bounds


def union(boxes: Sequence[Box]) -> Box | None:
    """The smallest box around all `boxes`; `None` where there are none."""
    if not boxes:
        return None
    return [(min, max)[side % 2](box[side] for box in boxes) for side in range(6)]


def zip_member(name: str) -> zipfile.ZipInfo:
    """The entry of a file or, where `name` ends with a slash, of a folder; always of the same date."""
    info = zipfile.ZipInfo(name, date_time=_ZIP_TIME)
    info.create_system = 3
    info.external_attr = (0o40755 << 16 | 0x10) if name.endswith("/") else 0o100644 << 16
    return info


def cut_archive(archive: Path, second: Path) -> None:
    """Cuts an archive in two within the data of a member, as `split` cuts wherever the size says."""
    with zipfile.ZipFile(archive) as masks:
        members = [info for info in masks.infolist() if not info.is_dir()]
        middle = members[len(members) // 2]
    cut = middle.header_offset + 30 + len(middle.filename) + middle.compress_size // 2
    with archive.open("r+b") as first, second.open("wb") as rest:
        first.seek(cut)
        while chunk := first.read(1 << 20):
            rest.write(chunk)
        first.truncate(cut)
