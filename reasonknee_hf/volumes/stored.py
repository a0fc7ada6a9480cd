"""One file of a volume as it lies there: its header, its voxels in file order, and what a row stores of it."""

from __future__ import annotations

import logging
import os
from collections.abc import ItemsView, Iterator, KeysView, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt

from reasonknee_hf.errors import GridMismatchError, OptionError, VolumeFormatError
from reasonknee_hf.volumes import decode, orientation
from reasonknee_hf.volumes.header import NiftiHeader
from reasonknee_hf.volumes.orientation import Affine, Array
from reasonknee_hf.volumes.volume_bytes import is_local, named_errors
from reasonknee_hf.volumes.volume_cache import Decoded, volume_cache

logger = logging.getLogger(__name__)


_KEYS = ("bytes", "path")
_ROUNDED = 0.01  # share by which a spacing that is told in a few digits may be off
Self = TypeVar("Self", bound="ReadsAsStored")


def storable(path: object, data: object) -> tuple[str | None, bytes | None]:
    """Path and bytes of a volume in the types that an Arrow column stores.

    Args:
        path: text or a path object, or None.
        data: bytes or any buffer of them, or None.

    Raises:
        OptionError: neither is given, or something else.
    """
    if isinstance(path, os.PathLike):
        path = os.fspath(path)
    if data is not None and not isinstance(data, bytes):
        try:
            data = bytes(memoryview(data))  # type: ignore[arg-type]
        except TypeError:
            raise OptionError(f"the bytes of a volume cannot be {type(data).__name__}") from None
    if not isinstance(path, str | None):
        raise OptionError(f"the path of a volume cannot be {type(path).__name__}; give bytes as data=")
    if path is None and data is None:
        raise OptionError("a volume needs a path or bytes")
    return path, data


class ReadsAsStored:
    """Reads as the mapping `storage`, which is what an Arrow column holds, and to `numpy` as its voxels.

    `datasets` re-encodes a decoded value that a mapped function touched only if it knows its type or finds a
    mapping. Without this, `dataset.map(function)` fails wherever `function` looks at a volume.
    """

    @property
    def storage(self) -> dict[str, Any]:
        """What an Arrow column stores for this volume: `{"bytes": ..., "path": ...}`. Reads nothing."""
        raise NotImplementedError

    def array(self) -> Array:
        """All voxels."""
        raise NotImplementedError

    def check_box_grid(self) -> None:
        """Checks that the voxels lie as those of the row's mask."""
        raise NotImplementedError

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        """`array()`, so that `np.asarray` and the numpy and torch formats of `datasets` give voxels."""
        self.check_box_grid()
        array = self.array()
        if min(array.strides) < 0:  # torch takes none such
            array = array.copy(order="K")
        if dtype is not None and np.dtype(dtype) != array.dtype:
            if copy is False:
                raise ValueError(f"voxels of type {array.dtype} become {np.dtype(dtype)} only in a copy")
            return array.astype(dtype)
        return array.copy(order="K") if copy else array

    def __dlpack__(self, **options: Any) -> Any:
        """A copy of the voxels for `torch.as_tensor`, `torch.from_dlpack` and the like."""
        return np.array(self, order="C").__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # memory of the machine

    def __getitem__(self, key: str) -> Any:
        return self.storage[key]

    def __iter__(self) -> Iterator[str]:
        # Who goes through a volume takes it for a list of file names, or for a dict of tensors.
        raise OptionError(
            "a volume is no list of files, and voxels of a file may lie in another order than boxes. Instead of"
            " LoadImage (MONAI) call MetaTensor(torch.as_tensor(volume), affine=torch.as_tensor(volume.affine)); for"
            " TorchIO ScalarImage(tensor=torch.as_tensor(volume)[None], affine=volume.affine); to make batches of rows"
            " pass collate_fn=, such as reasonknee_hf.train.Collator."
        )

    def __len__(self) -> int:
        return len(_KEYS)

    def keys(self) -> KeysView[str]:
        """The keys of `storage`."""
        return dict.fromkeys(_KEYS).keys()

    def items(self) -> ItemsView[str, Any]:
        """The items of `storage`."""
        return self.storage.items()

    def pin_memory(self: Self, device: Any = None) -> Self:
        """Nothing to pin: there are no voxels here. Keeps loaders of torch from taking the volume apart."""
        return self


Mapping.register(ReadsAsStored)


class StoredVolume(ReadsAsStored):
    """What of a `KneeVolume` is about its file alone; the arguments are explained there."""

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        data: bytes | bytearray | memoryview | None,
        *,
        mask: bool,
        label: str | None,
        axes: str | None,
    ) -> None:
        self.path, self._data = storable(path, data)
        self.mask = mask
        self.label = label
        self._axes = None if axes is None else orientation.check_codes(axes)
        self._codes: str | None = None  # wanted axis codes; None is slice-first
        self._assumed: str | None = None  # axis codes of the file, where the file itself does not tell
        self._header: NiftiHeader | None = None
        self.stated: tuple[Sequence[int] | None, Sequence[float] | None] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_header": None}

    @property
    def storage(self) -> dict[str, Any]:
        """What an Arrow column stores for this volume: `{"bytes": ..., "path": ...}`. Reads nothing.

        One with assumed axes is stored as a file that states them, which reads the whole file.

        Raises:
            OptionError: the volume was brought into another order with `oriented`, which no file of a row keeps.
        """
        if self._codes is not None:
            raise OptionError(
                f"{self._name()}: a row stores files, and this volume is its file in the order {self._codes}, which"
                " would be lost. Put the volume of the row back as it was, or .oriented(...).array() in another column"
            )
        if self._assumed is not None and self._stored_codes != self.header.codes:
            with self._named_errors():
                return {"bytes": decode.stating(self.path, self._data, self._stored_affine), "path": None}
        return {"bytes": self._data, "path": self.path}

    @property
    def header(self) -> NiftiHeader:
        """The header of the file, as stored. Reads the first 4 kB once.

        Raises:
            VolumeFormatError: the file is not NIfTI, or of a kind that is refused by name.
            VolumeMissingError: there is no such file.
        """
        if self._header is None:
            with self._named_errors():
                self._header = self._agreeing(decode.load_header(self.path, self._data))
        return self._header

    def _agreeing(self, header: NiftiHeader) -> NiftiHeader:
        """The header, if it says what the row says of shape and spacing."""
        shape, spacing = self.stated or (None, None)
        near = spacing is None or np.allclose(header.zooms, spacing, rtol=_ROUNDED, atol=0)
        if (shape is not None and tuple(shape) != tuple(header.shape)) or not near:
            raise GridMismatchError(
                f"the row tells of a volume of {tuple(shape or ())} voxels of {tuple(spacing or ())} mm, the file has"
                f" {tuple(header.shape)} of {tuple(float(zoom) for zoom in header.zooms)} mm: it is another one."
            )
        return header

    @property
    def nifti(self) -> Any:
        """The file as a `nibabel` image, as stored, not slice-first. Reads the whole file."""
        with self._named_errors():
            return decode.nibabel_image(self.path, self._data, self.header)

    def load(self, *, ahead: bool = False) -> None:
        """Brings the voxels into the cache of the process.

        Args:
            ahead: nobody has asked for the voxels yet, so that this does not count as a touch; see `prefetched`.
        """
        self._decoded(ahead=ahead)

    @property
    def cache_name(self) -> tuple[Any, ...]:
        """What tells the file from others, and masks from images, without a look at it."""
        return (id(self._data) if self.path is None else self.path, self.mask)

    def _key(self) -> tuple[Any, ...]:
        if self._data is not None:
            return ("bytes", len(self._data), hash(self._data), self.mask)
        with self._named_errors():
            return ("path", self.path, decode.identity(self.path or ""), self.mask)

    def _decoded(self, stop: int | None = None, ahead: bool = False) -> Decoded:
        """The whole file, or at least `stop` slices along its slowest axis, from the cache or the file."""

        def load() -> Decoded:
            decoded = decode.load_voxels(self.path, self._data, mask=self.mask, stop=stop)
            for note in decoded.header.notes:
                logger.warning("%s: %s", self._name(), note)
            return decoded

        def enough(found: Decoded) -> bool:
            return found.is_whole or (least is not None and found.array.shape[2] >= least)

        key, least = self._key(), stop
        if key in volume_cache():  # if that is a part that will not do: all of it then, not part after part
            stop = None
        with self._named_errors():
            decoded = volume_cache().get(key, load, enough)
        if not ahead and decoded.is_whole:
            volume_cache().touch(self.cache_name, decoded.array.nbytes)
        with self._named_errors():
            self._header = self._agreeing(decoded.header)
        return decoded

    def _name(self) -> str:
        """The row's id and the file, for messages; names in URLs as people write them."""
        path = self.path if self.path is None or is_local(self.path) else unquote(self.path)
        return ", ".join(word for word in (self.label, path) if word) or "volume from bytes"

    def _named_errors(self) -> AbstractContextManager[None]:
        return named_errors(self._name, self.mask, self.path)

    @property
    def _stored_codes(self) -> str:
        header, assumed = self.header, self._assumed
        if header.codes is not None and (header.placed or (assumed is None and self._axes is None)):
            return header.codes
        if assumed is None:
            what = "states neither qform nor sform" if header.codes is None else "states an identity affine"
            with self._named_errors():
                raise (VolumeFormatError if self._axes is None else GridMismatchError)(
                    f"the header {what}, so nothing tells which axis holds the slices, and where a box lies;"
                    " say it with .assume('PIR') or read it as stored with .nifti"
                )
        return assumed

    @property
    def _stored_affine(self) -> Affine:
        codes, header = self._stored_codes, self.header
        if header.affine is not None and codes == header.codes:
            return header.affine
        return orientation.affine_of_codes(codes, header.zooms)

    def header_is_known(self) -> bool:
        """Whether the header can be read; that of a file is read once for all volumes of the same file."""
        if self._header is None:
            try:
                state = None if self._data is not None else decode.identity(self.path or "")
            except OSError:
                return False
            self._header = self.header if state is None else decode.known_header(self.path or "", state)
        return self._header is not None
