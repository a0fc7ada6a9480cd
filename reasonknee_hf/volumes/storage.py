"""How a volume looks to code that knows only mappings and arrays."""

from __future__ import annotations

import os
from collections.abc import ItemsView, Iterator, KeysView, Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from reasonknee_hf.errors import OptionError
from reasonknee_hf.volumes.orientation import Array

_KEYS = ("bytes", "path")
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
        return iter(_KEYS)

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
