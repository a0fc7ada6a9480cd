"""`load_dataset` with the public API of `datasets` only: no registration, no private names."""

from __future__ import annotations

from typing import Any

import datasets

from reasonknee_hf.config_names import ConfigName, OwnConfig
from reasonknee_hf.dataset.contract import described, imported
from reasonknee_hf.dataset.joining import EqualSteps, OnError
from reasonknee_hf.dataset.register import code_hash
from reasonknee_hf.errors import OptionError


def load_dataset(
    name: ConfigName | OwnConfig | None = None,
    *,
    split: str | datasets.Split | None = None,
    streaming: bool = False,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | None = None,
    features: datasets.Features | None = None,
    download_mode: datasets.DownloadMode | str | None = None,
    verification_mode: datasets.VerificationMode | str | None = None,
    keep_in_memory: bool | None = None,
    num_proc: int | None = None,
    on_error: OnError | None = None,
    equal_steps: EqualSteps | None = None,
    **options: Any,
) -> datasets.Dataset | datasets.DatasetDict | datasets.IterableDataset | datasets.IterableDatasetDict:
    """Loads one config of a dataset; the same as `datasets.load_dataset("reasonknee", name, ...)`.

    Args:
        name: A config such as `"bench"`, of the first dataset that is known, or `"reasonknee/bench"`; the dataset's
            default config if it is left out.
        split: One split, e.g. `"train"`; all of them by default.
        streaming: Whether to iterate over the release as it is, or to prepare Arrow files in the cache first.
        revision, token: As in `huggingface_hub`.
        cache_dir, features, download_mode, verification_mode, keep_in_memory, num_proc: As in `datasets.load_dataset`.
        on_error, equal_steps, options: Fields of [`~reasonknee_hf.dataset.builder.RowsConfig`]: `source`, `endpoint`,
            `images`, `masks`, `annotations`, `num_shards`; of streams `shuffle`, `window`, `balance`, `start` and
            `prefetch`; a choice of rows by `questions`, `category`, `structure`, `patients`, `scans`, `visits` and
            `fraction`; those of the dataset's own; and `cache` and `cache_size`: what of a Hub source is used and kept
            on this disk, see [`~reasonknee_hf.hub.disk.chosen_cache`].

    Returns:
        `Dataset` or `DatasetDict`, or their iterable kinds when streaming.

    Raises:
        OptionError: An unknown config, split or option; the message lists the valid ones.
        ReleaseError: What lies at `source` is not a release.
        EndpointError: No endpoint gave what was asked.

    Examples:
        >>> ds = rk.load_dataset("bench", split="test", streaming=True, source="sample")
        >>> next(iter(ds))["id"]
        '9000003_00M_20041013_10000041_1_1'
    """
    before, _, config = (name or "").rpartition("/")
    dataset = described(before or None)
    if streaming and (num_proc or keep_in_memory):
        raise OptionError(
            "num_proc= and keep_in_memory= prepare files in the cache: they do not go with streaming=True."
        )
    given = {"revision": revision, "on_error": on_error, "equal_steps": equal_steps}
    options |= {key: value for key, value in given.items() if value is not None}
    builder = imported(dataset.builder)(
        cache_dir=cache_dir,
        dataset_name=dataset.name,
        config_name=config or None,
        hash=code_hash(dataset.name),
        features=features,
        token=token,
        **options,
    )
    if streaming:
        return builder.as_streaming_dataset(split=split)
    builder.download_and_prepare(
        download_mode=download_mode,
        verification_mode=verification_mode,
        num_proc=num_proc,
    )
    return builder.as_dataset(split=split, in_memory=bool(keep_in_memory))
