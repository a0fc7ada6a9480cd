"""The dataset builder. Thin on purpose: it names configs and splits, and asks `release` for rows.

`datasets` patches `open`, `os.path` and `Path` inside this module when streaming, so nothing here touches files.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import datasets

from reasonknee_hf.errors import OptionError
from reasonknee_hf.opening import open_release
from reasonknee_hf.release import Release
from reasonknee_hf.release.quintuples import RowOptions, generate_rows, shard_names
from reasonknee_hf.rows.features import row_features
from reasonknee_hf.version import __version__

ANNOTATIONS = ("all", "balanced")
ON_ERROR = ("raise", "skip", "null")


@dataclass
class ReasonKneeConfig(datasets.BuilderConfig):
    """Options of one config; each is a keyword of `load_dataset`.

    Args:
        source: Hub dataset id, local folder, any fsspec URL, or `"sample"`.
        revision: Branch, tag or commit of a Hub source.
        endpoint: Base URL of a Hub or mirror, or several in order of preference.
        images: Another root for the volumes: a folder or URL that holds the same relative paths.
        masks: Whether rows have a `mask`.
        annotations: `"all"`, or `"balanced"` for the published balanced arrays.
        on_error: What to do with a row that does not fit or whose volume or mask is absent: `"raise"`, `"skip"`
            (counted, listed at the end) or `"null"` (row kept, column null). With `"raise"` an absent volume fails when
            it is touched.
        high_fidelity: Scan ids, or a CSV of them, for the config `high_fidelity`.
        identity: Set by the builder: what the source was resolved to. It keeps caches of different commits apart.
    """

    source: str | None = None
    revision: str | None = None
    endpoint: str | Sequence[str] | None = None
    images: str | None = None
    masks: bool = True
    annotations: str = "all"
    on_error: str = "raise"
    high_fidelity: str | Sequence[str] | None = None
    identity: str | None = None


_BASE_FIELDS = {field.name for field in fields(datasets.BuilderConfig)}
OPTIONS = tuple(f.name for f in fields(ReasonKneeConfig) if f.name not in _BASE_FIELDS and f.name != "identity")
_BUILDER_PARAMETERS = set(inspect.signature(datasets.DatasetBuilder.__init__).parameters)


class ReasonKnee(datasets.GeneratorBasedBuilder):
    """Builder of the quintuples of 3DReasonKnee.

    Raises:
        OptionError: An unknown config, option or value; the message lists the valid ones.
        ReleaseError: What lies at `source` is not a release.
        EndpointError: No endpoint gave the listing.
    """

    VERSION = datasets.Version(__version__)
    BUILDER_CONFIG_CLASS = ReasonKneeConfig
    BUILDER_CONFIGS = [  # noqa: RUF012 - datasets reads it from the class
        ReasonKneeConfig(name="full", version=VERSION, description="All quintuples: train, validation, test."),
        ReasonKneeConfig(name="high_fidelity", version=VERSION, description="Scans with expert segmentations."),
        ReasonKneeConfig(name="bench", version=VERSION, description="Test scans without reasoning and answer."),
        ReasonKneeConfig(name="scans", version=VERSION, description="One row a scan, no questions."),
    ]
    DEFAULT_CONFIG_NAME = "full"

    def __init__(self, **kwargs: Any) -> None:
        name = kwargs.get("config_name") or self.DEFAULT_CONFIG_NAME
        _check_choice("config", name, list(self.builder_configs))
        options = {key: kwargs[key] for key in kwargs if key not in _BUILDER_PARAMETERS and kwargs[key] is not None}
        for option in options:
            _check_choice("option", option, OPTIONS)
        _check_choice("annotations", options.get("annotations", "all"), ANNOTATIONS)
        _check_choice("on_error", options.get("on_error", "raise"), ON_ERROR)
        release = open_release(
            options.get("source"),
            options.get("revision"),
            options.get("endpoint"),
            kwargs.get("token"),
            images=options.get("images"),
            high_fidelity=options.get("high_fidelity"),
        )
        self._release: Release | None = release
        # The release alone knows the token: what `datasets` keeps of a builder ends up in pickles.
        super().__init__(**(kwargs | {"config_name": name, "token": None}), identity=release.identity)
        if kwargs.get("features") is None:
            self.info.features = self._info().features

    @property
    def release(self) -> Release:
        """The release that rows come from."""
        assert self._release is not None
        return self._release

    def _info(self) -> datasets.DatasetInfo:
        labels = self.release.labels if self.config.masks else None
        return datasets.DatasetInfo(
            description="Quintuples of 3DReasonKnee: volume, question, 3D box, reasoning, MOAKS grades.",
            features=row_features(self.config.name, masks=self.config.masks, labels=labels),
            homepage="https://huggingface.co/datasets/rajpurkarlab/3DReasonKnee",
            license="cc-by-4.0",
        )

    def _splits(self) -> tuple[str, ...]:
        release = self.release
        if self.config.name == "scans":
            return release.splits
        annotated = release.annotated_splits(self.config.annotations)
        if self.config.name == "bench":
            return tuple(split for split in annotated if split == "test")
        if self.config.name == "high_fidelity":
            chosen = release.high_fidelity_ids
            return tuple(s for s in annotated if any(scan.scan_id in chosen for scan in release.scans(s)))
        return annotated

    def _split_generators(self, dl_manager: Any) -> list[datasets.SplitGenerator]:
        options = RowOptions(self.config.name, self.config.masks, self.config.annotations, self.config.on_error)
        return [
            datasets.SplitGenerator(
                name=split,
                gen_kwargs={"split": split, "options": options, "shards": shard_names(self.release, split)},
            )
            for split in self._splits()
        ]

    def _generate_examples(
        self, split: str, options: RowOptions, shards: list[str]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        yield from generate_rows(self.release, split, options, shards)

    def as_streaming_dataset(self, split: Any = None, base_path: str | None = None) -> Any:
        self._check_split(split)
        return super().as_streaming_dataset(split=split, base_path=base_path)

    def as_dataset(self, split: Any = None, **kwargs: Any) -> Any:
        self._check_split(split)
        # A prepared dataset remembers the stock feature type; in this process volumes are lazy.
        self.info.features = self._info().features
        return super().as_dataset(split=split, **kwargs)

    def _check_split(self, split: Any) -> None:
        """Refuses a plain unknown split name early; slices and sums are left to `datasets`."""
        name = str(split) if split is not None else ""
        if name.isidentifier() and name != "all":
            _check_choice(f"split of config {self.config.name!r}", name, self._splits())


def _check_choice(what: str, value: object, valid: Sequence[str]) -> None:
    if value not in valid:
        raise OptionError(f"Unknown {what} {value!r}. Valid: {', '.join(valid) or 'none in this release'}.")
