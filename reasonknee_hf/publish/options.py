"""The options of `convert` and `push`, written down once: keywords, help texts and the arguments of the commands."""

# ruff: noqa: RUF009 - `_option` is `dataclasses.field`

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from reasonknee_hf.dataset.contract import described
from reasonknee_hf.dataset.joining import OnError
from reasonknee_hf.errors import OptionError
from reasonknee_hf.publish.parquet import Limits
from reasonknee_hf.publish.schema import VolumeMode

if TYPE_CHECKING:
    from reasonknee_hf.verify import Report

_T = TypeVar("_T", bound="VersionOptions")

Words = Sequence[str] | str | None
Grades = Sequence[int] | int | Mapping[str, Collection[int]] | None

SELECTION = "selection: what is not given does not restrict"
MADE = "volumes and derived columns"
SOURCE = "source"


def _option(default: Any, told: str, *flags: str, **words: Any) -> Any:
    """A field with its help text and, where a command has it too, its argument."""
    return field(default=default, metadata={"help": told, "flags": flags, **words})


def _choice(told: str, flag: str, **words: Any) -> Any:
    """One that does not restrict where it is not given."""
    return _option(None, told, flag, group=SELECTION, **words)


def _documented(kind: type[_T]) -> type[_T]:
    """Adds the help texts of the fields to the docstring of the class."""
    told = "\n".join(f"        {one.name}: {one.metadata['help']}." for one in fields(kind))
    kind.__doc__ = f"{kind.__doc__}\n\n    Args:\n{told}\n    "
    return kind


@_documented
@dataclass(frozen=True)
class VersionOptions:
    """What `convert` and `push` write. Give them as keywords, or as one object that is used often."""

    config: str = _option("full", "of the dataset; or records, as they are published", "--config")
    name: str | None = _option(None, "name of the written config (default: the same)", "--name")
    splits: Words = _choice(
        "splits to write; may be given several times, as the next six", "--split", many=True
    )
    questions: Sequence[int] | int | None = _choice("as in question_id", "--question", many=True, type=int)
    categories: Words = _choice("of the questions, e.g. BML", "--category", many=True)
    structures: Words = _choice("e.g. 'medial meniscus'", "--structure", many=True)
    patients: Words = _choice("patient ids, as published", "--patient", many=True)
    scans: Words = _choice("scan ids", "--scan", many=True)
    visits: Words = _choice("e.g. 00M", "--visit", many=True)
    fraction: float | None = _choice(
        "this share of the patients, each with all scans", "--fraction", type=float
    )
    fraction_seed: int | None = _choice("another number chooses other patients", "--fraction-seed", type=int)
    grades: Grades = _choice(
        "2, or of one attribute: size=2 (in Python {'size': (2,)})", "--grade", many=True
    )
    where: Callable[[Mapping[str, Any]], bool] | None = _choice(
        "a Python function of a row that says whether to keep it", "--where", metavar="MODULE:FUNCTION"
    )
    limit: int | None = _choice("rows a split, the first ones that the rest keeps", "--limit", type=int)
    annotations: str | None = _choice("which published arrays are read, e.g. balanced", "--annotations")
    on_error: OnError = _option(
        "raise", "what to do with rows and volumes that cannot be read", "--on-error",
        choices=get_args(OnError), group=SELECTION,
    )  # fmt: skip
    volumes: VolumeMode = _option(
        "embed", "volumes as bytes in tables, as files beside them, as URLs, or left out", "--volumes",
        choices=get_args(VolumeMode), group=MADE,
    )  # fmt: skip
    masks: bool = _option(
        True, "whether masks go with the volumes; the flag leaves them out", "--no-masks", group=MADE
    )
    previews: bool = _option(False, "a PNG of three planes with the box", "--previews", group=MADE)
    frames: int = _option(0, "so many PNG slices of the box", "--frames", type=int, metavar="N", group=MADE)
    crops: bool = _option(False, "a config of the boxes' regions as NIfTI", "--crops", group=MADE)
    crop_margin: float = _option(
        0.0, "millimetres around the box of a crop", "--crop-margin", type=float, metavar="MM", group=MADE
    )
    executor: Executor | None = _option(
        None, "runs the shard tasks: any `concurrent.futures.Executor` whose workers see the target"
    )
    row_group_bytes: int = _option(Limits.row_group, "size of a row group in real bytes")
    shard_bytes: int = _option(Limits.shard, "size of a file in real bytes")
    source: str | None = _option(
        None, "Hub dataset id, folder, fsspec URL or 'sample' (default: the published one)", "--source", group=SOURCE
    )  # fmt: skip
    revision: str | None = _option(None, "branch, tag or commit of a Hub source", "--revision", group=SOURCE)
    endpoint: Words = _option(
        None, "Hub or mirror to read the source from; best first", "--endpoint", many=True, group=SOURCE
    )
    images: str | None = _option(None, "another root for the volumes", "--images", group=SOURCE)
    opening: Mapping[str, Any] | None = _option(
        None, "options of the dataset's own that say what to open; or give them as keywords"
    )
    token: str | bool | None = _option(None, "for the source, as in `huggingface_hub`")
    verify: bool | Report = _option(
        False, "look for defects of the release first, for the card; or a report", "--verify"
    )


@_documented
@dataclass(frozen=True)
class ConvertOptions(VersionOptions):
    """How a release, or a selection of it, is written to a place.

    Examples:
        >>> from reasonknee_hf.publish.options import ConvertOptions
        >>> ConvertOptions(config="bench", volumes="none").volumes
        'none'
    """

    remove_stale: bool = _option(
        False, "remove what earlier calls wrote there and no config names any more", "--remove-stale"
    )


@_documented
@dataclass(frozen=True)
class PushOptions(VersionOptions):
    """How a release, or a selection of it, is written to a repository.

    Examples:
        >>> from reasonknee_hf.publish.options import PushOptions
        >>> PushOptions(config="bench", dry_run=True).dry_run
        True
    """

    token: str | bool | None = _option(
        None, "token that may write there (default: the stored one)", "--token"
    )
    source_token: str | bool | None = _option(None, "the same for the source")
    verify: bool | Report = _option(
        True, "look for defects of the release first; the flag does not", "--no-verify"
    )
    private: bool | None = _option(
        None, "a new repository is private; one that is there must be", "--private"
    )
    public_volumes: bool = _option(
        False, "volumes, crops and pictures may go where everybody can read them", "--public-volumes"
    )
    branch: str | None = _option(None, "branch to push to; created where it does not exist", "--branch")
    create_pr: bool = _option(False, "open a pull request instead", "--create-pr")
    hub_endpoint: str | None = _option(
        None, "Hub to push to (default: HF_ENDPOINT, else huggingface.co)", "--hub", metavar="URL"
    )
    dry_run: bool = _option(False, "make the files and say what would be done, but send nothing", "--dry-run")
    folder: str | Path | None = _option(
        None, "where files are made, and kept (default: a temporary folder)", "--folder"
    )
    delete_configs: Sequence[str] = _option(
        (), "remove a config with its files; may be given several times", "--delete-config", many=True, metavar="NAME"
    )  # fmt: skip


def chosen_options(kind: type[_T], options: _T | None, given: Mapping[str, Any]) -> _T:
    """The options of one call: an object, keywords, or keywords that change the object.

    Raises:
        OptionError: A keyword that is no option. The message proposes one.
    """
    start = options if options is not None else kind()
    dataset = described(str(given.get("config", start.config)).rpartition("/")[0] or None)
    names = [one.name for one in fields(kind)]
    own = {name: value for name, value in given.items() if name not in names and name in dataset.open_options}
    for name in given.keys() - own.keys():
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            meant = f" Did you mean {near[0]}?" if near else ""
            valid = [*names, *(one for one in dataset.open_options if one not in names)]
            raise OptionError(f"Unknown option {name!r}.{meant} Valid: {', '.join(valid)}.")
    chosen = replace(start, **{name: value for name, value in given.items() if name not in own})
    return replace(chosen, opening={**(chosen.opening or {}), **own}) if own else chosen
