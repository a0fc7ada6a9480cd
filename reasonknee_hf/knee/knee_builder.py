"""The builder of 3DReasonKnee, which `datasets` finds by this module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reasonknee_hf.dataset.builder import RowsBuilder, RowsConfig, configs_of
from reasonknee_hf.knee.description import KNEE


@dataclass
class ReasonKneeConfig(RowsConfig):
    """Options of one config; each is a keyword of `load_dataset`.

    Args:
        annotations: `"all"`, or `"balanced"` for the published balanced arrays.
        high_fidelity: Scan ids, or a CSV of them, for the config `high_fidelity`.
    """

    high_fidelity: str | Sequence[str] | None = None


class ReasonKnee(RowsBuilder):
    """Builder of the quintuples of 3DReasonKnee."""

    dataset = KNEE
    BUILDER_CONFIG_CLASS = ReasonKneeConfig
    BUILDER_CONFIGS = configs_of(KNEE, ReasonKneeConfig)
    DEFAULT_CONFIG_NAME = next(iter(KNEE.configs))
