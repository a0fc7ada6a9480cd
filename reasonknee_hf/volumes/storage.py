"""How a volume looks to code that knows only mappings."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, Mapping
from typing import Any, TypeVar

Self = TypeVar("Self", bound="ReadsAsStored")


class ReadsAsStored:
    """Reads as the mapping `storage`, which is what an Arrow column holds.

    `datasets` re-encodes a decoded value that a mapped function touched only if it knows its type or finds a
    mapping. Without this, `dataset.map(function)` fails wherever `function` looks at a volume.
    """

    @property
    def storage(self) -> dict[str, Any]:
        """What an Arrow column stores for this volume: `{"bytes": ..., "path": ...}`. Reads nothing."""
        raise NotImplementedError

    def __getitem__(self, key: str) -> Any:
        return self.storage[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.storage)

    def __len__(self) -> int:
        return len(self.storage)

    def keys(self) -> KeysView[str]:
        """The keys of `storage`."""
        return self.storage.keys()

    def items(self) -> ItemsView[str, Any]:
        """The items of `storage`."""
        return self.storage.items()

    def pin_memory(self: Self, device: Any = None) -> Self:
        """Nothing to pin: there are no voxels here. Keeps loaders of torch from taking the volume apart."""
        return self


Mapping.register(ReadsAsStored)
