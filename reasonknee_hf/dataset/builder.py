"""The builder of every dataset. Thin on purpose: it names configs and splits, and asks the release for rows.

`datasets` patches `open`, `os.path` and `Path` inside this module when streaming, so nothing here touches files.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import index
from typing import Any, get_args

import datasets
import numpy as np

from reasonknee_hf.dataset.contract import Description, Release
from reasonknee_hf.dataset.faults import FaultLog
from reasonknee_hf.dataset.joining import EqualSteps, OnError, RowOptions
from reasonknee_hf.dataset.prepared import PreparedInfo
from reasonknee_hf.dataset.selection import Selection
from reasonknee_hf.dataset.split_rows import SplitRows
from reasonknee_hf.dataset.stream import RowStream, row_stream
from reasonknee_hf.errors import OptionError, RecordError
from reasonknee_hf.version import __version__

BALANCES = ("grades",)
STREAM_ONLY = ("shuffle", "equal_steps", "balance", "start", "prefetch")


@dataclass
class RowsConfig(datasets.BuilderConfig):
    """Options of one config; each is a keyword of `load_dataset`.

    Args:
        source: Hub dataset id, local folder, any fsspec URL, or `"sample"`.
        revision: Branch, tag or commit of a Hub source.
        endpoint: Base URL of a Hub or mirror, or several in order of preference.
        images: Another root for the volumes: a folder or URL that holds the same relative paths, or what else the
            dataset's release takes.
        masks: Whether rows have a `mask`.
        annotations: Which of the published arrays of records, where there are several kinds; `"all"` by default.
        on_error: What to do with a row that does not fit or whose volume or mask is absent: `"raise"`, `"skip"`
            (counted, listed at the end) or `"null"` (row kept, column null). With `"raise"` an absent volume fails when
            it is touched.
        shuffle: Seed of our shuffle: scans are permuted, and rows mixed inside windows of a few scans, so that each
            volume is decoded once. A pure function of (seed, epoch). `False` is no shuffle. Streaming only.
        window: Number of scans in a window of the shuffle.
        num_shards: What workers and ranks divide among themselves; by default 24 to 192, by the number of scans, and no
            more than scans. Ranks and workers read stretches of equal length, also where they do not divide it.
        equal_steps: `"drop"` or `"pad"`: every shard gives the same number of rows, so that ranks take equal steps;
            less than a row a shard is dropped, or repeated. How many is logged once. Not with `on_error="skip"`.
            Streaming only.
        balance: `"grades"`: rows of rare grades are repeated inside the windows of the shuffle, by the rule of
            `Description.weights`; the weights are logged. Goes with `shuffle`.
        start: Number of the first row, found in the row index, in every epoch. Workers and ranks cannot share such a
            stream. Streaming only.
        prefetch: `False` switches off the background thread that loads the volumes of the next scan, once rows touch
            theirs. Streaming only.
        questions, category, structure, patients, scans, visits, fraction, fraction_seed: Rows of a choice of scans and
            questions, found in the row index and read alone: see [`~reasonknee_hf.dataset.selection.Selection`].
        identity: Set by the builder: what the source was resolved to. It keeps caches of different commits apart.

    Examples:
        >>> ds = rk.load_dataset("full", split="train", streaming=True, source="sample", shuffle=1, questions=16)
        >>> sum(1 for row in ds)
        3
    """

    source: str | None = None
    revision: str | None = None
    endpoint: str | Sequence[str] | None = None
    images: str | None = None
    masks: bool = True
    annotations: str = "all"
    on_error: OnError = "raise"
    shuffle: int | None = None
    window: int = 4
    num_shards: int | None = None
    equal_steps: EqualSteps | None = None
    balance: str | None = None
    start: int | None = None
    prefetch: bool | None = None
    questions: int | Sequence[int] | None = None
    category: str | Sequence[str] | None = None
    structure: str | Sequence[str] | None = None
    patients: str | Sequence[str] | None = None
    scans: str | Sequence[str] | None = None
    visits: str | Sequence[str] | None = None
    fraction: float | None = None
    fraction_seed: int | None = None
    identity: str | None = None


_BASE_FIELDS = {field.name for field in fields(datasets.BuilderConfig)}
# Options that choose rows, and what they are called where there are many values.
_SELECTION = {field.name: field.name for field in fields(Selection)} | {
    "categories": "category",
    "structures": "structure",
}
# Where bytes are kept says nothing of what rows are: these are no part of the config, which names a folder.
_OF_CACHE = ("cache", "cache_size")
_OPENING = ("source", "revision", "endpoint", "images")
_BUILDER_PARAMETERS = set(inspect.signature(datasets.DatasetBuilder.__init__).parameters)


def configs_of(dataset: Description, kind: type[RowsConfig]) -> list[RowsConfig]:
    """The configs of a dataset, as its builder class lists them.

    Examples:
        >>> from reasonknee_hf.dataset.builder import RowsConfig, configs_of
        >>> from reasonknee_hf.dataset.contract import described
        >>> [config.name for config in configs_of(described("deeptumorvqa"), RowsConfig)]
        ['benchmark', 'train', 'agent_sft', 'scans']
    """
    return [
        kind(name=name, version=datasets.Version(__version__), description=config.text)
        for name, config in dataset.configs.items()
    ]


class RowsBuilder(datasets.GeneratorBasedBuilder):
    """Builder of the rows of one dataset. A subclass names the dataset, and its configs with [`configs_of`].

    Raises:
        OptionError: An unknown config, option or value; the message lists the valid ones.
        ReleaseError: What lies at `source` is not a release.
        EndpointError: No endpoint gave the listing.

    Examples:
        >>> from reasonknee_hf.knee.knee_builder import ReasonKnee
        >>> ReasonKnee(config_name="bench", source="sample").split_names()
        ('test',)
    """

    VERSION = datasets.Version(__version__)
    BUILDER_CONFIG_CLASS = RowsConfig
    dataset: Description

    def __init__(self, **kwargs: Any) -> None:
        name = kwargs.get("config_name") or self.DEFAULT_CONFIG_NAME
        base_fields = {*_BASE_FIELDS, "identity"}
        valid = [f.name for f in fields(self.BUILDER_CONFIG_CLASS) if f.name not in base_fields]
        valid += _OF_CACHE
        _check_choice("config", name, list(self.builder_configs))
        if kwargs.get("shuffle") is False:
            kwargs["shuffle"] = None
        for option, least in (("window", 1), ("num_shards", 1), ("shuffle", 0), ("start", 0)):
            if kwargs.get(option) is not None:
                kwargs[option] = _whole_number(option, kwargs[option], least)
        options = {
            key: kwargs[key] for key in kwargs if key not in _BUILDER_PARAMETERS and kwargs[key] is not None
        }
        for option in options:
            _check_choice("option", option, valid)
        config = self.dataset.configs[name]
        _check_options(self.dataset, name, options)
        chosen = Selection(**{name: options.get(option) for name, option in _SELECTION.items()})
        chosen.question_ids(self.dataset)  # refuses what is none of its questions
        self.dataset.check_opening(**{name: options.get(name) for name in _OPENING})
        release = self.dataset.open(
            token=kwargs.get("token"),
            **{name: options[name] for name in (*self.dataset.open_options, *_OF_CACHE) if name in options},
        )
        chosen.check_scans(release)
        self._selection = chosen if chosen.describe() else None
        for option in _OF_CACHE:
            kwargs.pop(option, None)
        self._release: Release | None = release
        self._prepared_in: str | None = None
        # The release alone knows the token: what `datasets` keeps of a builder ends up in pickles.
        super().__init__(**(kwargs | {"config_name": name, "token": None}), identity=release.identity)
        self._features: datasets.Features | None = kwargs.get("features")
        columns = self._info().features
        if self._features is None:
            self.info.features = columns
        elif {*self._features} != {*columns}:
            raise OptionError(
                f"features= has the columns {', '.join(self._features)}; the config {name} has {', '.join(columns)}."
                " Give a type for each, or load without it and choose columns then."
            )
        if config.chosen is not None:
            self.split_names()  # a release may have no scans for it, which is told before anything else

    @property
    def release(self) -> Release:
        """The release that rows come from."""
        assert self._release is not None
        return self._release

    def _info(self) -> datasets.DatasetInfo:
        return datasets.DatasetInfo(
            description=self.dataset.text,
            features=self.dataset.features(self.config.name, self.release, self.config.masks),
            homepage=self.dataset.homepage,
            license=self.dataset.licence,
        )

    def split_names(self) -> tuple[str, ...]:
        """The splits that the config has in this release."""
        release, config = self.release, self.dataset.configs[self.config.name]
        kind = config.kind or self.config.annotations
        splits = release.annotated_splits(kind) if config.asks else release.splits
        if config.splits is not None:
            splits = tuple(split for split in splits if split in config.splits)
        hidden = {column for other in self.dataset.configs.values() for column in other.hidden}
        lacking = release.splits_without(hidden - {*config.hidden}) if config.asks else frozenset()
        if splits and lacking.issuperset(splits):
            fits = [name for name, other in self.dataset.configs.items() if hidden <= {*other.hidden}]
            raise OptionError(
                f"{release.tree.name} was written without {', '.join(sorted(hidden))}: its rows are those of the config"
                f" {' or '.join(fits)}, not of {self.config.name}."
            )
        splits = tuple(split for split in splits if split not in lacking)
        if config.chosen is not None:
            chosen = config.chosen(release)
            splits = tuple(s for s in splits if any(scan.scan_id in chosen for scan in release.scans(s)))
        if (selection := self._selection) is not None:
            splits = tuple(s for s in splits if any(map(selection.keeps_scan, release.scans(s))))
        return splits

    def rows(self, split: str) -> SplitRows:
        """The rows of a split."""
        names = (field.name for field in fields(RowOptions) if field.name not in ("config", "selection"))
        given = {name: getattr(self.config, name) for name in names}
        given["annotations"] = self.dataset.configs[self.config.name].kind or self.config.annotations
        options = RowOptions(self.config.name, **given, selection=self._selection)
        # What a prepared dataset met is found by its folder, by any process and at any time.
        faults = {"faults": FaultLog(f"{self._prepared_in}/{split}")} if self._prepared_in else {}
        return SplitRows(
            self.release, split, options, prefetch=self.config.prefetch in (None, True), **faults
        )

    def _split_generators(self, dl_manager: Any) -> list[datasets.SplitGenerator]:
        generators = []
        for split in self.split_names():
            rows = self.rows(split)
            if not dl_manager.is_streaming:  # prepared anew: what was met the last time may be mended
                rows.faults.clear()
            generators.append(datasets.SplitGenerator(split, {"rows": rows, "shards": rows.shards()}))
        return generators

    def _generate_examples(self, rows: SplitRows, shards: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        for _, _, key, row in rows.read(shards):
            yield key, row

    def _as_streaming_dataset_single(self, split_generator: datasets.SplitGenerator) -> RowStream:
        rows: SplitRows = split_generator.gen_kwargs["rows"]
        start = self.config.start or 0
        if start:
            rows.places_of(start, rows.shards())  # refuses early what is no row
        return row_stream(rows, start, self.info)

    def as_streaming_dataset(self, split: Any = None, base_path: str | None = None) -> Any:
        self._check_split(split)
        known = {
            name: datasets.SplitInfo(
                name, num_examples=count - (self.config.start or 0), dataset_name=self.dataset_name
            )
            for name in self.split_names()
            if (count := self.rows(name).num_rows()) is not None
        }
        self.info.splits = datasets.splits.SplitDict(known) if known else None
        return super().as_streaming_dataset(split=split, base_path=base_path)

    def download_and_prepare(self, *args: Any, **kwargs: Any) -> None:
        given = [name for name in STREAM_ONLY if getattr(self.config, name) is not None]
        if given:
            raise OptionError(
                f"{', '.join(given)} are for streams: pass streaming=True, or shuffle the prepared dataset."
            )
        self._prepared_in = self.cache_dir
        super().download_and_prepare(*args, **kwargs)

    def as_dataset(self, split: Any = None, **kwargs: Any) -> Any:
        self._check_split(split)
        # A prepared dataset remembers the stock feature type; in this process volumes are lazy.
        self.info.features = self._features or self._info().features
        for name, info in (self.info.splits or {}).items():
            if not info.num_examples and (split is None or re.search(rf"\b{name}\b", str(split))):
                raise RecordError(f"nothing is left of {name}: {self.rows(name).faults.report()}")
        return super().as_dataset(split=split, **kwargs)

    def _as_dataset(self, *args: Any, **kwargs: Any) -> datasets.Dataset:
        dataset = super()._as_dataset(*args, **kwargs)
        dataset._info = PreparedInfo(dataset.info, self.cache_dir)
        return dataset

    def _check_split(self, split: Any) -> None:
        """Refuses a plain unknown split name early; slices and sums are left to `datasets`."""
        name = str(split) if split is not None else ""
        if name.isidentifier() and name != "all":
            _check_choice(f"split of config {self.config.name!r}", name, self.split_names())


def _check_options(dataset: Description, name: str, options: Mapping[str, Any]) -> None:
    """Refuses values that no option has, and options that do not go together or not with the config."""
    _check_choice("annotations", options.get("annotations", "all"), dataset.annotations)
    _check_choice("on_error", options.get("on_error", "raise"), get_args(OnError))
    _check_choice("equal_steps", options.get("equal_steps", "drop"), get_args(EqualSteps))
    _check_choice("prefetch", options.get("prefetch", True), (True, False))
    _check_choice("balance", options.get("balance", "grades"), BALANCES)
    config = dataset.configs[name]
    trained = [n for n, c in dataset.configs.items() if c.asks and not c.hidden]
    if "balance" in options and ("shuffle" not in options or name not in trained):
        raise OptionError(
            "balance= repeats rows inside the windows of the shuffle: it needs shuffle= with a seed, and a config"
            f" with grades to train on ({' or '.join(trained)})."
        )
    if "balance" in options and dataset.weights is None:
        raise OptionError(f"balance= has no rule for {dataset.title}: leave it out.")
    if config.hidden and options.get("equal_steps") == "pad":
        raise OptionError(
            f"equal_steps='pad' repeats rows, which would count twice: it is not for the config {name}."
        )
    if "equal_steps" in options and options.get("on_error") == "skip":
        raise OptionError(
            "equal_steps= counts rows before on_error='skip' leaves some out, so that ranks would wait for"
            " each other. Pass on_error='null', which keeps every row."
        )
    if not config.asks and any(option in options for option in ("questions", "category", "structure")):
        raise OptionError(
            f"the config {name} has no questions: choose patients, scans, visits or a fraction."
        )


def _whole_number(option: str, value: Any, least: int) -> int:
    """An option as a plain number; numpy's are taken too, truth values are not."""
    if isinstance(value, (bool, np.bool_)) or not hasattr(value, "__index__") or index(value) < least:
        raise OptionError(f"{option}={value!r}: a whole number of at least {least} is needed.")
    return index(value)


def _check_choice(what: str, value: object, valid: Sequence[object]) -> None:
    if value not in valid:
        raise OptionError(
            f"Unknown {what} {value!r}. Valid: {', '.join(map(str, valid)) or 'none in this release'}."
        )
