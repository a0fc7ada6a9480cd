"""What one conversion is: a plain, picklable description from which any process can make any shard."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, get_args

from reasonknee_hf.dataset.contract import Description, Release, described
from reasonknee_hf.dataset.joining import OnError
from reasonknee_hf.errors import OptionError
from reasonknee_hf.publish.options import VersionOptions
from reasonknee_hf.publish.parquet import Limits
from reasonknee_hf.publish.row_selection import Selection, whole_number
from reasonknee_hf.publish.schema import VolumeMode
from reasonknee_hf.version import __version__

FORMAT = 4
"""Raised when files of the same options would come out with other bytes."""


@dataclass(frozen=True)
class ReleaseSpec:
    """How to open the release again elsewhere. A token is no part of it: workers use the one of `huggingface_hub`."""

    source: str | None = None
    revision: str | None = None
    endpoint: tuple[str, ...] | None = None
    images: str | None = None
    further: tuple[tuple[str, Any], ...] = ()
    dataset: str | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # The description goes along: a process that was not told of the dataset knows it by that.
        return _unpickled, (described(self.dataset), tuple(vars(self).values()))

    def open(self, token: str | bool | None = None) -> Release:
        """The release."""
        given = {name: value for name, value in self.options.items() if value is not None}
        release: Release = described(self.dataset).open(token=token, **given)
        return release

    @property
    def options(self) -> dict[str, Any]:
        """What the dataset is opened by, `None` for what was not given."""
        return {name: getattr(self, name) for name in ("source", "revision", "endpoint", "images")} | dict(
            self.further
        )


def _unpickled(_: Description, fields: tuple[Any, ...]) -> ReleaseSpec:
    return ReleaseSpec(*fields)


# Open releases of this process, by how they were opened and in which state: a worker makes many shards of one.
_opened: dict[tuple[ReleaseSpec, str], Release] = {}


@dataclass(frozen=True)
class Derived:
    """Columns and configs that the release does not have.

    Args:
        previews: A PNG of three planes through the middle of the box, with the box drawn in.
        frames: That many PNG slices through the box, evenly spaced; 0 for none.
        crops: A config of region crops as NIfTI, with moved box and affine.
        crop_margin: Millimetres around the box of a crop.
    """

    previews: bool = False
    frames: int = 0
    crops: bool = False
    crop_margin: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "frames", whole_number("frames", self.frames))
        if self.frames < 0:
            raise OptionError(f"frames={self.frames} is not possible; give a number of slices, 0 for none.")
        if not 0 <= self.crop_margin < math.inf:
            raise OptionError(
                f"crop_margin={self.crop_margin} is not possible; give millimetres around the box, 0 or more."
            )
        if self.crop_margin and not self.crops:
            raise OptionError(f"crop_margin={self.crop_margin} without crops=True does nothing; give both.")
        object.__setattr__(self, "crop_margin", float(self.crop_margin))

    @property
    def drawn(self) -> bool:
        """Whether questions get pictures."""
        return self.previews or self.frames > 0


@dataclass(frozen=True)
class Job:
    """One conversion.

    Args:
        release: How to open the release.
        origin: Where the data come from, for people: the id of a repository or `a local folder`.
        sha: Commit of a Hub release.
        identity: State of the release; part of the fingerprint, never written out.
        config: Config of the rows.
        name: Name of the config that is written.
        out: Folder, or fsspec URL, that the files are written to.
    """

    release: ReleaseSpec
    origin: str
    sha: str | None
    identity: str
    config: str
    name: str
    out: str | Path
    selection: Selection = field(default_factory=Selection)
    volumes: VolumeMode = "embed"
    masks: bool = True
    annotations: str = "all"
    on_error: OnError = "raise"
    derived: Derived = field(default_factory=Derived)
    limits: Limits = field(default_factory=Limits)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of annotation files that its rows can come from."""
        return _kinds(self.dataset, self.config)

    def __post_init__(self) -> None:
        for what, value, valid in (
            ("config", self.config, (*self.dataset.configs, "records")),
            ("volumes", self.volumes, get_args(VolumeMode)),
            ("annotations", self.annotations, self.kinds),
            ("on_error", self.on_error, get_args(OnError)),
        ):
            if value not in valid:
                raise OptionError(f"Unknown {what} {value!r}. Valid: {', '.join(valid)}.")
        if self.config in ("scans", "records") and (self.selection.by_question or self.derived != Derived()):
            raise OptionError(
                f"The config {self.config!r} has no columns to choose questions by, or to draw. Choose by splits, "
                "patients, scans and limit, or convert another config."
            )
        if self.config == "scans" and self.volumes == "none":
            raise OptionError(
                "The config 'scans' without volumes holds nothing; choose another value of volumes=."
            )

    @property
    def dataset(self) -> Description:
        """What the release is one of."""
        return described(self.release.dataset)

    def opened(self) -> Release:
        """The release, opened once a process."""
        key = self.release, self.identity
        if key not in _opened:
            _opened[key] = self.release.open()
        return _opened[key]

    def share(self, release: Release) -> None:
        """Lets tasks that run in this process use a release that is open, and the token it was opened with."""
        _opened[self.release, self.identity] = release

    @property
    def questions(self) -> bool:
        """Whether rows of questions are written."""
        return self.config != "scans"

    @property
    def voxels(self) -> list[str]:
        """Options by which voxels of the volumes are written: all, some, or drawn as pictures."""
        told = [f"volumes={self.volumes!r}"] if self.volumes in ("embed", "files") else []
        return told + [name for name in ("previews", "frames", "crops") if getattr(self.derived, name)]

    @property
    def volumes_name(self) -> str:
        """Config of the volumes; the questions' own name where there are no questions."""
        return f"{self.name}_volumes" if self.questions else self.name

    @property
    def crops_name(self) -> str:
        """Config of the region crops."""
        return f"{self.name}_crops"

    def provenance(self) -> dict[str, Any]:
        """Where the data come from and what was done to them, as plain JSON values."""
        options = {"config": self.config, "annotations": self.annotations, "on_error": self.on_error}
        derived = {name: value for name, value in vars(self.derived).items() if value}
        return {
            "source": self.origin,
            "sha": self.sha,
            "package": f"reasonknee_hf {__version__}",
            "options": options | {"volumes": self.volumes, "masks": self.masks} | derived,
            "selection": self.selection.describe(),
        }

    def fingerprint(self, part: str, state: str = "") -> str:
        """Eight hex digits that change whenever the files of `part` could come out differently.

        Args:
            part: `questions`, `volumes` or `crops`.
            state: State of the volumes and masks that they are made of.
        """
        told = self.provenance() | {
            "identity": self.identity,
            "images": self.release.images,
            "opening": self.release.further,
            "limits": [self.limits.row_group, self.limits.shard],
            "format": FORMAT,
            "part": part,
            "files": state,
        }
        if self.derived != Derived():
            told["drawing"] = 2  # raised when pictures and crops of the same options come out otherwise
        if part == "questions":  # they do not depend on how volumes are kept
            told["options"] = {k: v for k, v in told["options"].items() if k not in ("volumes", "masks")}
        return sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:8]


def _kinds(dataset: Description, config: str) -> tuple[str, ...]:
    chosen = dataset.configs.get(config)
    return dataset.annotations if chosen is None or chosen.kind is None else (chosen.kind,)


def make_job(given: VersionOptions, out: str | Path, token: str | bool | None) -> tuple[Job, Release]:
    """The job that some options describe, and its release, opened with a token."""
    endpoint = given.endpoint
    if not all(isinstance(one, str) for one in (endpoint or ())) or isinstance(endpoint, Mapping):
        raise OptionError(
            "endpoint= is to be a URL or several here, which all workers can be told; give the token by an option of"
            " its own: token= of convert, source_token= of push."
        )
    before, _, wanted = given.config.rpartition("/")
    spec = ReleaseSpec(
        given.source,
        given.revision,
        (endpoint,) if isinstance(endpoint, str) else tuple(endpoint) if endpoint else None,
        given.images,
        tuple(sorted((name, _fixed(value)) for name, value in (given.opening or {}).items())),
        before or None,
    )
    # What the options alone can be wrong about is said before anything is read.
    selection = Selection(**{one.name: getattr(given, one.name) for one in fields(Selection)})
    dataset = described(spec.dataset)
    selection.check_questions(dataset)
    dataset.check_opening(**spec.options)
    derived = Derived(given.previews, given.frames, given.crops, given.crop_margin)
    limits = Limits(given.row_group_bytes, given.shard_bytes)
    release = spec.open(token)
    config = release.dataset.configs.get(wanted)
    if config is not None and config.chosen and config.chosen_by:
        # A list may change under the same path; what it says is told instead.
        listed = (config.chosen_by, tuple(sorted(config.chosen(release))))
        spec = replace(spec, further=(*(one for one in spec.further if one[0] != listed[0]), listed))
    origin, sha = describe_origin(release, given.source)
    annotations = given.annotations or _kinds(dataset, wanted)[0]
    asked = release.annotated_splits(annotations) if config is None or config.asks else ()
    about = {release.dataset.records(release.annotation_path(split, annotations)).image for split in asked}
    has_masks = "mask" in dataset.features(next(iter(dataset.configs)), release, True)
    job = Job(
        release=spec if sha is None else replace(spec, source=origin, revision=sha),
        origin=origin,
        sha=sha,
        identity=release.identity,
        config=wanted,
        name=wanted if given.name is None else given.name,
        out=out,
        selection=selection,
        volumes="none" if about == {None} else given.volumes,
        masks=given.masks and has_masks,
        annotations=annotations,
        on_error=given.on_error,
        derived=derived,
        limits=limits,
    )
    job.share(release)
    return job, release


def _fixed(value: Any) -> Any:
    return value if value is None or isinstance(value, str) else tuple(value)


def describe_origin(release: Release, source: str | None) -> tuple[str, str | None]:
    """The source for people, without paths of this machine, and its commit."""
    tree = getattr(release, "published_in", release.tree)  # a version that is read by tables of ours
    if tree.sha is not None:
        return tree.identity.rpartition("@")[0] or tree.identity, tree.sha
    if source == "sample":
        return "the synthetic sample of reasonknee_hf", None
    return "a local copy of " + ("the release" if tree is release.tree else "a derived version"), None
