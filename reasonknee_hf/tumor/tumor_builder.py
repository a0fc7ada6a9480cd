"""The builder of DeepTumorVQA 2.0, which `datasets` finds by this module."""

from __future__ import annotations

from reasonknee_hf.dataset.builder import RowsBuilder, RowsConfig, configs_of
from reasonknee_hf.tumor.tumor_description import TUMOR


class DeepTumorVqa(RowsBuilder):
    """Builder of the questions of DeepTumorVQA 2.0."""

    dataset = TUMOR
    BUILDER_CONFIGS = configs_of(TUMOR, RowsConfig)
    DEFAULT_CONFIG_NAME = next(iter(TUMOR.configs))
