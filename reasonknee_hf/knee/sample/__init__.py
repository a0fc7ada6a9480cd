"""A synthetic release for tests and first steps: the published layout, nothing from a patient."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from reasonknee_hf.dataset.sample_cache import kept_sample
from reasonknee_hf.knee.sample.write import write_sample

LAYOUT = 3  # of its files; raised when the same options come to write others

__all__ = ["sample_folder", "write_sample"]


def sample_folder(*, scans: int = 6, seed: int = 0) -> Path:
    """The sample in the Hugging Face assets cache; written there when it is first asked for.

    Args:
        scans, seed: As for `write_sample`.

    Returns:
        A folder with the layout of the published release.

    Examples:
        >>> from reasonknee_hf.knee.sample import sample_folder
        >>> (sample_folder() / "data/split_files/train_split.csv").exists()
        True
    """
    return kept_sample(f"{LAYOUT}-scans{scans}-seed{seed}", partial(write_sample, scans=scans, seed=seed))
