"""The figures that the paper published for ReasonKnee-Bench (arXiv 2510.20967), for comparison.

They are the authors' own. Their scoring code is not public, so nothing here was recomputed, and what
exactly their accuracy counts is not known. Their `Overall` is no weighting of their five columns that could
be found.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """One row: accuracy for BML, Cartilage, Osteophyte, Meniscus, Others, Overall."""

    setting: str
    model: str
    accuracy: tuple[float, float, float, float, float, float]


_REGION = "instruction with true region"
PUBLISHED: tuple[Published, ...] = (
    Published("zero-shot", "Qwen2.5-VL-3B", (0.081, 0.253, 0.251, 0.093, 0.159, 0.158)),
    Published("zero-shot", "Qwen2.5-VL-7B", (0.642, 0.309, 0.348, 0.347, 0.469, 0.470)),
    Published("zero-shot", "o1", (0.479, 0.553, 0.353, 0.332, 0.476, 0.477)),
    Published("instruction", "Qwen2.5-VL-3B", (0.092, 0.149, 0.253, 0.205, 0.146, 0.146)),
    Published(_REGION, "Qwen2.5-VL-7B", (0.697, 0.549, 0.338, 0.166, 0.563, 0.556)),
    Published("SFT without reasoning", "Qwen2.5-VL-3B", (0.706, 0.602, 0.345, 0.387, 0.616, 0.613)),
    Published("SFT without reasoning", "Med3DVLM", (0.670, 0.578, 0.330, 0.346, 0.600, 0.596)),
    Published("SFT with reasoning", "Qwen2.5-VL-3B", (0.667, 0.600, 0.342, 0.340, 0.590, 0.588)),
    Published("SFT with reasoning", "Med3DVLM", (0.671, 0.579, 0.333, 0.343, 0.605, 0.581)),
)

NOTES = (
    "Rows marked PAPER are the authors' figures, not recomputed. Their scoring code is not public:",
    "which accuracy and overall they print, and what their column Others holds, is not known.",
)
