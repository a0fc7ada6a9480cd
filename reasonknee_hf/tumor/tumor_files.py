"""Where the files of DeepTumorVQA 2.0 lie, by the public code and the card of the dataset."""

from __future__ import annotations

import re

SOURCE = "tumor-vqa/DeepTumorVQA_2.0"
VOLUMES = "AbdomenAtlas/AbdomenAtlas3.0Mini"
"""The repository of the volumes of training, which the dataset does not ship."""

FILES = {
    "benchmark": {"test": "benchmark/test_qa.jsonl"},
    "train": {"train": "train/train_qa.csv", "val_pool": "train/val_qa_pool.csv"},
    "agent_sft": {"train": "agent_sft/train.jsonl", "holdout": "agent_sft/holdout.jsonl"},
}
TRAIN_IDS = "train/ct_link.md"
"""Prose that names the volumes of training."""
TOOL_CACHE = "tool_cache/{}_tool_cache.json"
TOOL_CACHES = ("benchmark_oracle", "benchmark_totalsegmentator", "training_oracle")
MARKS = ("benchmark/test_qa", "train/train_qa", "train/val_qa_pool", "agent_sft/")

SCAN_ID = re.compile(r"BDMAP_\d{8}")
VOLUME = re.compile(rf"benchmark/ct/({SCAN_ID.pattern})/ct\.nii\.gz")
DRAWN = re.compile(
    rf"(?:benchmark|train)/(?:images_2d|videos)/(?:whole|organ)/(({SCAN_ID.pattern})\S*\.(?:png|mp4))"
)
"""Pictures and videos of a volume. The records name other folders, which the published layout does not have."""
