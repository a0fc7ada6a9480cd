"""What a prepared dataset knows of itself, and keeps through every transform."""

from __future__ import annotations

import re
from copy import deepcopy
from typing import Any

import datasets

from reasonknee_hf.dataset.faults import FaultLog
from reasonknee_hf.errors import OptionError


class PreparedInfo(datasets.DatasetInfo):
    """The info of a prepared dataset. `datasets` copies it to whatever is made of that dataset.

    It sees to it that volumes stay lazy: the cached result of a transform takes its columns from its file, which
    names the stock type, and knows neither masks nor the names of their labels.

    Args:
        info: What the builder says.
        folder: Where the dataset was prepared.
    """

    def __init__(self, info: datasets.DatasetInfo, folder: str) -> None:
        super().__init__(**vars(info))
        self.folder = folder

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "features":
            if value is None:
                # So says `map` before it takes the columns from the file.
                self.__dict__["_before"] = self.features
            elif self.features is None and (before := self.__dict__.pop("_before", None)) is not None:
                value = _with_our_types(value, before)
        super().__setattr__(name, value)

    def copy(self) -> PreparedInfo:
        return deepcopy(self)


def fault_logs(dataset: datasets.Dataset) -> list[FaultLog]:
    """Where the faults of the splits that a prepared dataset was made of are kept.

    Raises:
        OptionError: Nothing tells which splits, or where they were prepared.
    """
    info, splits = dataset.info, re.findall(r"(\w+)(?:\[.*?\])?(?:\(.*?\))?", str(dataset.split or ""))
    if not isinstance(info, PreparedInfo) or not splits or not {*splits} <= {*(info.splits or ())}:
        raise OptionError(
            f"nothing tells what was left out of this dataset of split {dataset.split}: it was not loaded by"
            " reasonknee_hf, or was put together or read back from disk since. Ask for the report of what"
            " load_dataset gave."
        )
    return [FaultLog(f"{info.folder}/{split}") for split in splits]


def _with_our_types(features: datasets.Features, before: datasets.Features) -> datasets.Features:
    """The types of before in the place of those that are written like them."""
    return datasets.Features(
        {
            name: before[name] if name in before and _written(before[name]) == _written(type_) else type_
            for name, type_ in features.items()
        }
    )


def _written(type_: Any) -> Any:
    return datasets.Features({"": type_}).to_dict()
