"""Scans and their rows, for a person who looks at one scan at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import datasets

from reasonknee_hf.config_names import OwnConfig
from reasonknee_hf.dataset.contract import described
from reasonknee_hf.dataset.loading import load_dataset
from reasonknee_hf.errors import OptionError
from reasonknee_hf.look.page import case_page, row_facts


@dataclass(frozen=True)
class Case:
    """One scan.

    Args:
        rows: Its rows without volumes, class labels by name; one row without a question where it has none.
        page: The page that shows its volume, and can go to each row by its number; `None` where it has no volume.
    """

    rows: tuple[Mapping[str, Any], ...]
    page: str | None


class Cases:
    """The scans of one source.

    Args:
        dataset: Short name of the dataset; the first one that is known by default.
        places: `source`, `revision`, `endpoint` and `images`, as for `load_dataset`.

    Raises:
        ReasonKneeError: The dataset is not known, or the source cannot be opened.
    """

    def __init__(self, dataset: str | None = None, **places: Any) -> None:
        self.dataset = described(dataset)
        self._places = places
        self.release = self.dataset.open(**places)
        self.splits = tuple(self.release.splits)
        self.case = lru_cache(maxsize=8)(self._case)  # a page of a real volume has 5 to 10 MB

    def scan_ids(self, split: str) -> list[str]:
        """The scans of a split, in published order."""
        return [scan.scan_id for scan in self.release.scans(split)]

    def structures(self) -> list[str]:
        """What questions ask about."""
        return list(dict.fromkeys(question.structure for question in self.dataset.questions.values()))

    def _case(self, split: str, scan_id: str) -> Case:
        configs = self.dataset.configs.items()
        asks = [name for name, config in configs if config.asks and not config.hidden and not config.chosen]
        for config in (*asks, *(name for name, config in configs if not config.asks)):
            rows = self._rows(config, split, scan_id)
            if rows:
                facts = [row_facts(row) for row in rows]
                image, mask = rows[0].get("image"), rows[0].get("mask")
                page = image and case_page(image, mask=mask, **facts[0], after=facts[1:], embedded=True)
                plain = tuple({k: v for k, v in row.items() if k not in ("image", "mask")} for row in rows)
                return Case(plain, page)
        return Case(({"id": scan_id, "scan_id": scan_id},), None)

    def _rows(self, config: str, split: str, scan_id: str) -> list[dict[str, Any]]:
        name = OwnConfig(f"{self.dataset.name}/{config}")
        config_splits = self.dataset.configs[config].splits
        if config_splits is not None and split not in config_splits:
            return []
        options: dict[str, Any] = {"split": split, "streaming": True, "scans": [scan_id], "on_error": "null"}
        try:
            stream: Any = load_dataset(name, **options, **self._places)
        except OptionError:  # the config has no such split, or no row of the scan
            return []
        labels = {k: f for k, f in stream.features.items() if isinstance(f, datasets.ClassLabel)}
        return [
            row | {k: f.int2str(row[k]) for k, f in labels.items() if row.get(k) is not None}
            for row in stream
        ]
