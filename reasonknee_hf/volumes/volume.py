"""The lazy volume that rows carry."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from reasonknee_hf import volumes as room
from reasonknee_hf.errors import GridMismatchError, OptionError
from reasonknee_hf.volumes import boxes, orientation, views
from reasonknee_hf.volumes import grid as grids
from reasonknee_hf.volumes.orientation import Affine, Array
from reasonknee_hf.volumes.stored import StoredVolume
from reasonknee_hf.volumes.voxels import label_counts, structure_id


class KneeVolume(StoredVolume):
    """A NIfTI volume or mask that costs nothing until it is touched.

    | touch | reads | allocates |
    |---|---|---|
    | `path`, `repr`, pickling | nothing | nothing |
    | `header`, `shape`, `affine`, `spacing`, `axcodes` | the first 4 kB of the file | nothing |
    | `array()`, `crop(box)`, `frames()`, `labels()`, ... | the whole file, once for all volumes of the same file | one array of the stored type (45 MiB for 160x384x384 int16), kept in the cache of the process |
    | `crop(box, whole=False)` | the file up to the end of the box on its slowest axis | that part |
    | `nifti` | the whole file | its plain bytes |

    `shape`, `affine`, `spacing`, `axcodes`, `array()` and boxes all speak of the **slice-first** array: the axis that
    slices lie along (left-right in the world, by the affine, if `across` is not given) comes first, the other two keep
    their order. Nothing
    is ever resampled. `oriented("RAS")` gives the same volume in another order, `header` and `nifti` speak of the
    file as stored. No descriptor stays open, and the object pickles as its path (or bytes), never with voxels.

    Boxes live on a grid, not on a file. Where `axes` says on which (rows know it), axes of the file that run
    otherwise are flipped and put in that order, so that the same box is the same anatomy whatever wrote the file;
    all that takes a box first compares the corners with those of `grid_mask`, the mask that boxes were drawn on.
    Without `axes` the order is that of the file, and boxes are those of this very file.

    Args:
        path: local path, as text or a path object, or any URL that fsspec opens; None where only bytes are known.
        data: the bytes of the file (or a buffer, which is copied), used instead of `path`.
        mask: voxels are labels: integers, checked.
        label: what to call the volume in errors, such as the row's id.
        labels: names of structures and their ids, for masks.
        axes: axis codes, as stored, of the grid that boxes live on, such as "PIR"; those of the file by default.
        across: a letter of the axis that slices lie along: R (left-right), A or S (head-feet).

    Attributes:
        stated: shape and spacing, as stored, by the row; compared with the header when that is read.
        grid_mask: the mask on whose grid boxes live; None where only `axes` tells.
        axes_unknown: whether the volume is of a row that was read back without its axes, so that boxes are refused.

    Examples:
        >>> volume = row["image"]
        >>> volume.shape, volume.axcodes, volume.crop(row["bbox"]).shape
        ((27, 128, 112), 'RPI', (5, 17, 26))
    """  # noqa: E501

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        data: bytes | bytearray | memoryview | None = None,
        *,
        mask: bool = False,
        label: str | None = None,
        labels: Mapping[str, int] | None = None,
        axes: str | None = None,
        across: str = "R",
    ) -> None:
        super().__init__(path, data, mask=mask, label=label, axes=axes)
        self._across = across
        self._names = labels
        self.grid_mask: KneeVolume | None = None
        self.axes_unknown = False
        self._same_grid: KneeVolume | None = None  # the mask that was found to lie on the same grid

    def __repr__(self) -> str:
        what = repr(self.path) if self._data is None else f"{self.path!r}, {len(self._data)} bytes"
        extra = "".join([", mask" if self.mask else "", f", {self._codes}" if self._codes else ""])
        return f"KneeVolume({what}{extra})"

    def _repr_html_(self) -> str:
        """What a notebook shows: the facts of the header and three planes. Reads the whole file."""
        return room.notebook_html(self)

    # --- place and order ------------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of `array()`: (slices, x, y) unless oriented otherwise."""
        return self._reorder.shape(self.header.shape)

    @property
    def affine(self) -> Affine:
        """4x4 from an index into `array()` to mm in the RAS+ world."""
        return self._reorder.affine(self._stored_affine, self.header.shape)

    @property
    def spacing(self) -> tuple[float, float, float]:
        """Distance between neighbouring voxels along each axis of `array()`, in mm."""
        a, b, c = (float(edge) for edge in np.linalg.norm(self.affine[:3, :3], axis=0))
        return a, b, c

    @property
    def axcodes(self) -> str:
        """Direction in which each axis of `array()` grows, such as "RPI"; the closest if oblique."""
        return self._codes or orientation.slice_first_codes(self._axes or self._stored_codes, self._across)

    def oriented(self, codes: str) -> KneeVolume:
        """The same volume with its axes in another order, such as "RAS". Never resampled; reads nothing.

        Published boxes are slice-first; `oriented_box` moves one into the new order. Rows store files, so that
        a volume in another order cannot be put back into one.
        """
        return self._copy(_codes=orientation.check_codes(codes))

    def assume(self, codes: str) -> KneeVolume:
        """The same volume, with axis codes of the file if its header states no place, else unchanged.

        A row stores such a volume as a file that states it.
        """
        return self._copy(_assumed=orientation.check_codes(codes), _same_grid=None)

    def oriented_box(self, box: boxes.Box) -> list[int]:
        """A published (slice-first) box in the axis order of this volume."""
        self.check_box_grid()
        published = self._copy(_codes=None)
        return boxes.move_box(box, orientation.reorder(published.axcodes, self.axcodes), published.shape)

    def slice_first_box(self, box: boxes.Box) -> list[int]:
        """A box in the axis order of this volume as a slice-first box."""
        back = orientation.reorder(self.axcodes, self._copy(_codes=None).axcodes)
        return boxes.move_box(box, back, self.shape)

    def with_voxels(self, array: Array) -> KneeVolume:
        """A volume in memory with other voxels, given in the order of `array()`, that stands where this one stands."""
        import nibabel

        data = nibabel.Nifti1Image(np.asfortranarray(array), self.affine).to_bytes()
        new = {"path": None, "_data": data, "_header": None, "grid_mask": None, "_same_grid": None}
        return self._copy(**new, _axes=self.axcodes, _assumed=self.axcodes)

    def check_box_grid(self) -> None:
        """Checks that boxes of the row hold for these voxels. Reads the header of the mask, once for all volumes.

        Does nothing without `grid_mask`; one that cannot be read says so in the log, and axis codes alone decide.

        Raises:
            GridMismatchError: the header says nothing, or corners of the two are more than 0.05 voxels apart. Where
                `assume` took the place of the header, shapes are compared.
        """
        if self.axes_unknown:
            raise GridMismatchError(
                f"{self.label or self.path}: the table was read back from disk and does not say on which axes its"
                " boxes live. Cast the column with VolumeFeature(axes=...), those of the dataset, e.g. axes='PIR'"
            )
        mask = self.grid_mask
        if mask is None or mask is self._same_grid or not mask.header_is_known():
            return
        own, other = self._copy(_codes=None), mask._copy(_codes=None)
        with self._named_errors():
            assumed = not self.header.placed and own.shape == other.shape
            grids.check_equal(own.grid, own.grid if assumed else other.grid, f"the mask {other.path}")
        self._same_grid = mask

    # --- voxels ---------------------------------------------------------------------------------------------

    def array(self, nan: float | None = None) -> Array:
        """All voxels, slice-first: a read-only view of the cached array in file order, not a copy.

        Args:
            nan: a value to put in place of NaN, in a copy; by default NaN stays NaN (see `nan_count`).

        Returns:
            Array of `shape`, native byte order. Stored type where the file has no slope, else float32; the
            smallest unsigned type for masks.

        Raises:
            VolumeDataError: the file is cut, fails its checksum or cannot be read.
            VolumeFormatError: not NIfTI, a kind that is refused by name, or no transform and none assumed.
            VolumeMissingError: there is no such file.
        """
        stored = self._decoded().array  # first, because it brings the header along
        array = self._reorder.array(stored)
        return array if nan is None or self.nan_count() == 0 else np.where(np.isnan(array), nan, array)

    def crop(
        self,
        box: boxes.Box,
        *,
        margin_mm: float = 0.0,
        clip: bool = False,
        whole: bool = True,
        copy: bool = True,
    ) -> Array:
        """The region of a box, in memory as in the file (a copy in C order costs four to ten times as much).

        Args:
            box: six ints in the axis order of this volume, ends inclusive.
            margin_mm: grow the box by that much first, as far as the volume goes.
            clip: take the part inside the volume where the box leaves it; see `boxes.clip_box` for that part.
            whole: with False, a volume that is not cached yet is read only as far as the box needs.
            copy: with False, a read-only view, for what is going to copy it anyway: it costs nothing, and
                keeps the whole volume in memory for as long as it is kept itself.

        Raises:
            RecordError: the box is malformed or leaves the volume.
            GridMismatchError: the box lives on another grid; see `check_box_grid`.
        """
        stored = self._decoded().array if whole else None
        self.check_box_grid()
        with self._named_errors():
            ends = boxes.clip_box(box, self.shape) if clip else boxes.check_box(box, self.shape)
            if margin_mm:
                ends = boxes.grow_box(ends, margin_mm, self.spacing, self.shape)
        file_box = self._file_box(ends)
        if stored is None:
            stored = self._decoded(stop=file_box[5] + 1).array
        region = self._reorder.array(stored[boxes.box_slices(file_box)])
        return (
            region.copy(order="K") if copy else region
        )  # K: in memory as in the file, and no step is negative

    def slices(
        self, n: int | None = None, *, around: boxes.Box | None = None, consecutive: bool = False
    ) -> Array:
        """A copy of some slices, `(n, x, y)`, in the stored type; see `slice_indices` for which."""
        return views.select(self.array(), self.slice_indices(n, around=around, consecutive=consecutive))

    def slice_indices(
        self, n: int | None = None, *, around: boxes.Box | None = None, consecutive: bool = False
    ) -> list[int]:
        """Which slices `slices` and `frames` take: rising, distinct, `result[frame]` is the slice.

        Args:
            n: how many; all (of the box) by default.
            around: a box; choose inside its slice range, which is widened evenly where it has fewer than `n`.
            consecutive: neighbours around the middle, instead of slices spread evenly from end to end.
        """
        if around is not None:
            self.check_box_grid()
        with self._named_errors():
            return views.slice_indices(self.shape[0], n, around=around, consecutive=consecutive)

    def frames(
        self,
        window: views.Window = "upstream",
        n: int | None = None,
        size: int | tuple[int, int] | None = None,
        *,
        around: boxes.Box | None = None,
        consecutive: bool = False,
    ) -> views.Frames:
        """Slices as 8-bit pictures in memory.

        Args:
            window: "upstream", "o1", "percentile", "header" or (low, high); the formulas stand in
                `reasonknee_hf.volumes.views`. `"o1"` alone also takes the published script's 32 slices.
            n, around, consecutive: which slices; see `slice_indices`.
            size: resize frames to (size, size) or (height, width), bilinear; needs Pillow.

        Returns:
            uint8 array `(n, x, y)`: rows run along axis 1 of `array()`, columns along axis 2, as published.
        """
        array = self.array()
        if isinstance(window, str) and window == "o1" and n is None and around is None:
            indices = views.o1_indices(len(array))
        else:
            indices = self.slice_indices(n, around=around, consecutive=consecutive)
        chosen = array if len(indices) == len(array) else views.select(array, indices)
        with self._named_errors():
            pictures = views.frames(chosen, views.levels(window, array, chosen, self.header))
        return pictures if size is None else views.resize(pictures, size)

    def nan_count(self) -> int:
        """How many voxels are NaN."""
        array = self.array()
        return int(np.isnan(array).sum()) if array.dtype.kind == "f" else 0

    # --- masks ----------------------------------------------------------------------------------------------

    def labels(self) -> dict[int, str | int]:
        """The ids in a mask, without background 0, each with its name, or itself where it has none."""
        with self._named_errors():
            self._demand_mask()
        found, _ = label_counts(self._decoded().array)
        names = {number: name for name, number in (self._names or {}).items()}
        return {int(number): names.get(int(number), int(number)) for number in found if number != 0}

    def structure(self, name: str | int) -> Array:
        """Where a structure is: a boolean array of `shape`, all False where the mask lacks it.

        Args:
            name: name of the structure, with blanks or underscores, or its id.
        """
        with self._named_errors():
            self._demand_mask()
            where: Array = self.array() == structure_id(name, self._names)
            return where

    def structure_box(self, name: str | int) -> list[int] | None:
        """The box around a structure in the axis order of this volume, None where the mask lacks it."""
        return boxes.box_of(self.structure(name))

    # --- pairs ----------------------------------------------------------------------------------------------

    @property
    def grid(self) -> grids.Grid:
        """Where the voxels of `array()` lie. Reads the header only."""
        return grids.Grid(self.shape, self.affine)

    def relation_to(self, image: KneeVolume) -> grids.Relation:
        """Whether this lies on the grid of an image: "equal", "same space" (another grid) or "different"."""
        return grids.relation(image.grid, self.grid)

    def array_on(self, image: KneeVolume) -> Array:
        """The labels of this mask on the grid of an image: as they are on equal grids, else the nearest.

        Raises:
            GridMismatchError: the two lie in different spaces.
        """
        self._demand_mask()
        with self._named_errors():
            if grids.check_relation(image.grid, self.grid) == "equal":
                return self.array()
        return grids.resample(self.array(), self.grid, image.grid)

    # --- inside ---------------------------------------------------------------------------------------------

    def _copy(self, **changes: Any) -> KneeVolume:
        other = KneeVolume.__new__(KneeVolume)
        other.__dict__.update(self.__dict__ | changes)
        return other

    def _demand_mask(self) -> None:
        if not self.mask:
            raise OptionError("this volume is an image, not a mask; it has no labels")

    @property
    def _reorder(self) -> orientation.Reorder:
        return orientation.reorder(self._stored_codes, self.axcodes)

    def _file_box(self, ends: list[int]) -> list[int]:
        """A box in the axis order of this volume as one in the order of the file."""
        return boxes.move_box(ends, orientation.reorder(self.axcodes, self._stored_codes), self.shape)
