"""Names of the published files. All paths are relative to the root of the release and use forward slashes.

Source: the file tree of the dataset page at commit 7a611f92 and the split tables themselves.
"""

from __future__ import annotations

DEFAULT_SOURCE = "rajpurkarlab/3DReasonKnee"
DEFAULT_REVISION = "7a611f92fd3ad3954e8b62feef49ee12bfef725a"

BOX_AXES = "PIR"
"""Axis codes of the grid that published boxes live on, which is that of the published masks.

A box is `[start_slice, end_slice, x_min, x_max, y_min, y_max]` in the slice-first array of the mask: slices run to the
patient's right, x to the back, y to the feet. The evidence is `verify_release(deep=True)` (`reasonknee verify --deep`):
of all orders of axes, directions and kinds of ends it names the one in which boxes are those of their structures in the
mask, and reports `box-convention` where that is another one. Public label volumes of the same series are stored P, I,
R, and the published preprocessing brings such a file to slices, P, I by moving its last axis to the front.
"""

SPLITS = ("train", "validation", "test")
_STEMS = {"train": "train", "validation": "val", "test": "test"}

SPLIT_HEADER = (
    "patient_id",
    "time",
    "study_folder",
    "series_folder",
    "knee_side",
    "path",
    "image_filepath",
    "label_filepath",
)
"""Columns of the split tables, in order."""

MASKS_FOLDER = "data/masks"
EXPERT_FOLDER = "data/OAI"
LABELS_FILE = "data/question_files/labels.json"
QUESTION_FOLDER = "data/question_files"
ALL_STUDIES_FILE = "data/split_files/all_studies.csv"


def split_table(split: str) -> str:
    """Path of the CSV that lists the scans of `split`."""
    return f"data/split_files/{_STEMS[split]}_split.csv"


def annotation_file(split: str, kind: str = "all") -> str:
    """Path of the JSON array of `split`; `kind` is `"all"` or `"balanced"`."""
    suffix = "_balanced" if kind == "balanced" else ""
    return f"data/generate_data/{_STEMS[split]}{suffix}.json"


def from_root(published: str) -> str:
    """`published` without what is only meaningful in its author's working directory.

    The tables write `../data/images/…` (relative to `code/`), the records `/data/images/…`.
    """
    parts = [part for part in published.replace("\\", "/").split("/") if part not in ("", ".", "..")]
    return "/".join(parts)
