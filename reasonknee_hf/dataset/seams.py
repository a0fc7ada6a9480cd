"""Where this package leans on the inside of `datasets`, all in one place, with the versions it was seen in.

| name | what for | seen in |
| --- | --- | --- |
| `iterable_dataset.ExamplesIterable` | base of the innermost iterable of our streams | 3.6 … 5.2 |
| `ExamplesIterable._init_state_dict`, `._state_dict` | the place of a stream lies in them | 3.6 … 5.2 |
| `ex_iterable`, `ex_iterables` of iterables | the sources of one, down to ours | 3.6 … 5.2 |
| `IterableDataset._ex_iterable`, `._formatting`, `._distributed` | what a stream is made of | 3.6 … 5.2 |
| `IterableDataset._state_dict` | the state until the next iteration begins | 3.6 … 5.2 |
| `IterableDataset._prepare_ex_iterable_for_iteration` | epoch and rank reach our iterable here | 3.6 … 5.2 |
| `DatasetBuilder._as_streaming_dataset_single` | where a builder makes a stream | 3.6 … 5.2 |

`load.dataset_module_factory` and `inspect.dataset_module_factory`, by which `register` teaches a name, are public, and
so is `IterableDataset.__init__`, by which a stream stays ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from functools import wraps
from typing import Any

import datasets
from datasets.iterable_dataset import ExamplesIterable

# What gives its rows one by one or in batches, in order, whatever part of the shards it reads. Others count rows.
_BY_ROWS = {
    "FilteredExamplesIterable",
    "FormattedExamplesIterable",
    "MappedExamplesIterable",
    "RebatchedArrowExamplesIterable",
    "SelectColumnsIterable",
}


def leaves(iterable: Any) -> Iterator[Any]:
    """The iterables that a chain of iterables begins with."""
    sources = _sources(iterable)
    if not sources:
        yield iterable
    for source in sources:
        yield from leaves(source)


def with_leaves(iterable: Any, change: Callable[[Any], Any]) -> Any:
    """A copy of a chain whose first iterables are replaced. What is shared with other chains stays as it is."""
    if not _sources(iterable):
        return change(iterable)
    twin = copy(iterable)
    if hasattr(twin, "ex_iterable"):
        twin.ex_iterable = with_leaves(twin.ex_iterable, change)
    else:
        twin.ex_iterables = [with_leaves(source, change) for source in twin.ex_iterables]
    return twin


def only_by_rows(iterable: Any, ours: type) -> bool:
    """Whether a chain begins with one of ours alone, and nothing in it counts rows."""
    while type(iterable).__name__ in _BY_ROWS:
        iterable = iterable.ex_iterable
    return isinstance(iterable, ours)


def stays(ours: type[datasets.IterableDataset], leaf: type[ExamplesIterable]) -> None:
    """Makes every stream that begins with a `leaf` one of `ours`.

    Each transform of `datasets`, and `split_dataset_by_node`, `interleave_datasets` and `concatenate_datasets`, makes
    a plain `IterableDataset`. Its constructor is the one place that all of them pass.
    """
    original = datasets.IterableDataset.__init__
    if getattr(original, "_keeps", None) == leaf.__name__:
        return

    @wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if type(self) is datasets.IterableDataset and any(
            isinstance(s, leaf) for s in leaves(self._ex_iterable)
        ):
            self.__class__ = ours
            self._prepare_ex_iterable_for_iteration()  # its state is that of our class

    __init__._keeps = leaf.__name__  # type: ignore[attr-defined]
    datasets.IterableDataset.__init__ = __init__


def _sources(iterable: Any) -> list[Any]:
    source = getattr(iterable, "ex_iterable", None)
    return [source] if source is not None else list(getattr(iterable, "ex_iterables", ()))
