"""What one dataset of questions about volumes is, to the rooms that serve any.

A dataset is one [`Description`]: names, configs, and the few functions that know its files. A release is that dataset
at one state, wherever it lies, and carries its description, so that whoever is handed a release needs nothing else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2s
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from reasonknee_hf.errors import OptionError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from reasonknee_hf.dataset.row_features import RowFeatures
    from reasonknee_hf.hub.tree import Tree


MANIFEST = re.compile(r"([^/]+)/reasonknee-[0-9a-f]{8}\.json")
"""Files of a published version that say what was written of one config, and prove that it is ours."""


@dataclass(frozen=True)
class Problem:
    """One thing of a record that does not fit the row schema.

    Args:
        column: The column that is null because of it.
        text: What was found, and what was expected.
        out_of_range: Whether it is a number that the question does not admit.

    Examples:
        >>> from reasonknee_hf.dataset.contract import Problem
        >>> print(Problem("bbox", "5 numbers instead of 6"))
        bbox: 5 numbers instead of 6
    """

    column: str
    text: str
    out_of_range: bool = False

    def __str__(self) -> str:
        return f"{self.column}: {self.text}"


@dataclass(frozen=True)
class Records:
    """How the records of a file say which volume they are about, and what they ask.

    A file that is called `.csv` is a table with a line of names; any other is JSON: an array of objects, such an array
    under a key, or one object after the other.

    Args:
        image: The member that names the volume. `None` where records are about no volume: each is then alone.
        prompt: The member that asks.
        question: The member whose text tells the number of the question; `prompt` by default.
        member: The member that a column of a table stands for. An empty cell is null.
    """

    image: str | None = "image"
    prompt: str = "prompt"
    question: str | None = None
    member: Callable[[str], str] = str

    @property
    def keys(self) -> tuple[str, ...]:
        """Members that tell a record from any other object in the file."""
        return (self.prompt,) if self.image is None else (self.image, self.prompt)

    def image_of(self, record: Mapping[str, Any]) -> Any:
        """What the record names as its volume; of one that is alone a name of its own, which follows from its text."""
        return own_name(record) if self.image is None else record.get(self.image)

    def question_in(self, record: Mapping[str, Any]) -> Any:
        """What tells the number of the question."""
        return record.get(self.question or self.prompt)


def own_name(record: Mapping[str, Any]) -> str:
    """A name that follows from what a record says, for records that have none."""
    return blake2s(json.dumps(record, sort_keys=True).encode(), digest_size=8).hexdigest()


class Scan(Protocol):
    """What one volume belongs to. All its rows come together, and no shard or rank shares it with another.

    Examples:
        >>> scan = rk.open_release("sample").scans("test")[0]
        >>> scan.scan_id, scan.patient_id
        ('9000003_00M_20041013_10000041_1', '9000003')
    """

    @property
    def scan_id(self) -> str:
        """Tells it from all others of the dataset."""

    @property
    def patient_id(self) -> str:
        """What scans are grouped by where groups must not be torn apart."""


class Release(Protocol):
    """A dataset at one state. Opening costs a listing; tables are read when asked for, volumes never.

    Examples:
        >>> from reasonknee_hf.dataset.contract import described
        >>> release = described("deeptumorvqa").open(source="sample")
        >>> release.splits, len(release.scans("test"))
        (('test', 'train', 'val_pool'), 4)
    """

    dataset: Description
    images: str | None

    @property
    def mask_parts(self) -> Sequence[str]:
        """Paths of the files that the masks are cut out of; none where each mask is a file."""

    @property
    def tree(self) -> Tree:
        """The files, at one commit or in one folder."""

    @property
    def sha(self) -> str | None:
        """Commit of a Hub release; `None` for a folder."""

    @property
    def identity(self) -> str:
        """What caches are keyed by; another as soon as a table or an annotation file changes."""

    @property
    def labels(self) -> Mapping[str, int]:
        """Structure name to label in the masks; empty where the release names none."""

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits whose scans are listed."""

    def scans(self, split: str) -> Sequence[Any]:
        """The [`Scan`]s of a split, in published order."""

    def scan_count(self, split: str) -> int:
        """How many they are, near enough to cut its files into shards; never another number for one state."""

    def all_scans(self) -> Iterator[Any]:
        """The scans of all splits."""

    def scan_of(self, image: object, split: str) -> Any | None:
        """The scan whose volume a record names; `None` if the split lists no such volume."""

    def annotated_splits(self, kind: str = "all") -> tuple[str, ...]:
        """The splits that have records of this kind."""

    def annotation_path(self, split: str, kind: str = "all") -> str:
        """The file of the records of a split."""

    def image_url(self, scan: Any) -> str:
        """Where the volume of a scan lies, or would."""

    def find_image(self, scan: Any) -> str | None:
        """Where the volume of a scan lies; `None` if it is nowhere."""

    def find_mask(self, scan: Any) -> str | None:
        """Where the mask of a scan lies; `None` if it is nowhere."""

    def splits_without(self, columns: Collection[str]) -> frozenset[str]:
        """The splits whose records lack one of these columns altogether."""

    def copy_path(self, scan: Any, column: str) -> str:
        """Where a copy of the volume (`image`) or the mask (`mask`) of a scan lies in a folder of copies."""

    def mask_url(self, scan: Any) -> str | None:
        """Where the mask of a scan lies, without asking whether it exists; `None` if it has none."""


RowOf: TypeAlias = Callable[
    [Mapping[str, Any], Any, "str | None", "str | None"], "tuple[dict[str, Any], list[Problem]]"
]


def _like_ours(path: str) -> Records:
    return Records()


@dataclass(frozen=True)
class Config:
    """Which rows and columns one config has.

    Args:
        text: What it holds, in a sentence.
        asks: Whether its rows are questions; otherwise it has one row a scan.
        splits: The only splits that it may have; `None` for all.
        hidden: Columns that its rows do not have, since they give the answer away.
        chosen: Gives the ids of the only scans whose rows it has; `None` for all.
        chosen_by: The option of `open` that lists them, where there is one.
        mask_columns: Gives the columns that its rows have besides, where rows have masks.
        kind: The kind of annotation files that its rows come from, where no option chooses among several.
        row: Makes its rows, where not `Description.row` does. Rows of records without a volume get no scan.

    Examples:
        >>> from reasonknee_hf.dataset.contract import Config
        >>> Config("One row a scan.", asks=False).asks
        False
    """

    text: str
    asks: bool = True
    splits: tuple[str, ...] | None = None
    hidden: tuple[str, ...] = ()
    chosen: Callable[[Any], Collection[str]] | None = None
    chosen_by: str | None = None
    mask_columns: Callable[[Any, Any], Mapping[str, Any]] | None = None
    kind: str | None = None
    row: RowOf | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Description:
    """One dataset. It travels to other processes by name.

    Args:
        name: The short name for `load_dataset`.
        title: What people call it.
        text: What a row is, in a sentence.
        source: The Hub id of the published dataset.
        revision: The commit of it that this package was written against.
        licence: Of the annotations, as the Hub spells licences.
        configs: By name; the first one is the default.
        categories: Of the questions, in the order of reports.
        questions: By number; each tells at least its `category` and `structure`.
        open: Opens a release; takes what `open_release` takes.
        features: The columns of a config, for a release (or `None`) and whether rows have masks.
        row: Makes all columns of the row of a record, and names what does not fit: takes the record, its scan, and
            the URLs of volume and mask. Every row has an `id`; that of a volume a `scan_id` and an `image`; known are
            also `mask`, `bbox`, `prompt`, `question_id`, `category`, `structure`, and `grades`, a list of
            `{"attribute", "grade"}`, and `shape` and `spacing` of the volume by the record.
        records: How the records of an annotation file are read, by its path; by default they name their volume as
            `image` and ask their `prompt`.
        scan_row: The columns that tell about a scan: all of a row of a config that does not ask.
        unlisted: The scan that a volume's name alone tells, for records of volumes that a split does not list.
        question_of: The number of the question that a prompt, or what `records` names in its place, asks; `None` for
            an unknown one.
        marks: Beginnings of the paths of files that only its releases have.
        links: Columns that only say where a file lies; no version that is written has them.
        weights: The weight of each row of an annotation file where rare answers come more often: takes the release, the
            file, and its `RowIndex`.
        record_texts: Members of records that are text; columns of published records.
        record_values: Members of any other kind, columns as JSON; what is in neither shares one column.
        annotations: The kinds of published arrays of records; the first one is the default.
        open_options: The options of `load_dataset` that `open` takes, but for the token.
        card: `"module:attribute"` of what its cards say; see `publish.card_words`.
        scorer: `"module:attribute"` of its benchmark; see `bench.scorer`.
        lessons: `"module:attribute"` of what the dataset says to training; see `prompting.lessons`.
        checks: `"module:function"` that looks for defects of a release, for `verify`.
        builder: `"module:class"` of its builder, the first builder class of that module.

    Examples:
        >>> from reasonknee_hf.dataset.contract import described
        >>> list(described("reasonknee").configs)
        ['full', 'high_fidelity', 'bench', 'scans']
    """

    name: str
    title: str
    text: str
    source: str
    revision: str
    licence: str
    configs: Mapping[str, Config]
    categories: tuple[str, ...]
    questions: Mapping[int, Any]
    open: Callable[..., Any]
    features: Callable[[str, Any, bool], RowFeatures]
    row: RowOf
    scan_row: Callable[[Any, str | None, str | None], dict[str, Any]]
    unlisted: Callable[[object, str], Any]
    question_of: Callable[[str], int | None]
    builder: str
    records: Callable[[str], Records] = _like_ours
    marks: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    weights: Callable[[Any, str, Any], npt.NDArray[np.float64]] | None = None
    card: str | None = None
    scorer: str | None = None
    lessons: str | None = None
    checks: str | None = None
    record_texts: tuple[str, ...] = ("image", "prompt", "answer")
    record_values: tuple[str, ...] = ()
    annotations: tuple[str, ...] = ("all",)
    open_options: tuple[str, ...] = ("source", "revision", "endpoint", "images")

    def __repr__(self) -> str:
        return f"Description({self.name!r})"

    def __reduce__(self) -> tuple[Callable[[str, str], Description], tuple[str, str]]:
        return _unpickled, (self.name, _places.get(self.name, ""))

    def check_opening(self, **given: Any) -> None:
        """Refuses options that say what to open and that `open` does not take.

        Raises:
            OptionError: One of them is given.
        """
        unknown = [
            name for name, value in given.items() if value is not None and name not in self.open_options
        ]
        if unknown:
            raise OptionError(
                f"{self.title} is not opened by {unknown[0]}=. Valid: {', '.join(self.open_options)}."
            )

    @property
    def homepage(self) -> str:
        """The page of the published dataset."""
        return f"https://huggingface.co/datasets/{self.source}"


_places: dict[str, str] = {}
_known: dict[str, Description] = {}


def make_known(name: str, where: str) -> None:
    """Makes a dataset known by its short name, in this process and in those that rows travel to.

    Args:
        name: The short name.
        where: `"module:attribute"` of its description, which is imported when it is first asked for.

    Examples:
        >>> from reasonknee_hf.dataset.contract import known_names, make_known
        >>> make_known("reasonknee", "reasonknee_hf.knee.description:KNEE")  # as the package does
        >>> known_names()[:2]
        ('reasonknee', 'deeptumorvqa')
    """
    _places[name] = where


def known_names() -> tuple[str, ...]:
    """The short names that are known."""
    return tuple(_places)


def place_of(name: str) -> str:
    """`"module:attribute"` of the description of a known dataset."""
    return _places[name]


def described(name: str | None = None) -> Description:
    """The dataset of a short name; the first one that is known by default.

    Raises:
        OptionError: No dataset of that name is known; the message lists those that are.

    Examples:
        >>> from reasonknee_hf.dataset.contract import described
        >>> described("deeptumorvqa").title
        'DeepTumorVQA 2.0'
    """
    name = name or known_names()[0]
    if name not in _places:
        raise OptionError(f"Unknown dataset {name!r}. Valid: {', '.join(_places)}.")
    if name not in _known:
        _known[name] = imported(_places[name])
    return _known[name]


def resembled(dataset: Description, paths: Collection[str]) -> str:
    """Which other dataset these files are of, as a sentence for people; empty where they are of none that is known."""
    for name in _places:
        other = described(name)
        if other is not dataset and other.marks and any(path.startswith(other.marks) for path in paths):
            return f"It looks like one of {other.title}: load_dataset({name!r}, ...)."
    return ""


def _unpickled(name: str, where: str) -> Description:
    """The dataset in this process, which may not have been told of it."""
    if name not in _places:
        make_known(name, where)
    return described(name)


def imported(where: str) -> Any:
    """What `"module:attribute"` names."""
    module, _, attribute = where.partition(":")
    return getattr(import_module(module), attribute)
