"""What a dataset is called on cards, and what its licence asks of everybody who passes the data on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from reasonknee_hf.dataset.contract import described, imported
from reasonknee_hf.errors import OptionError


@dataclass(frozen=True, kw_only=True)
class CardWords:
    """The words of one dataset.

    Args:
        name: What people call it.
        title, creators, arxiv: Of its paper.
        published: The day of it, as in ISO 8601.
        source: Its Hub id.
        licence, licence_url: Of its annotations.
        citation: Key of the paper in a bibliography.
        terms: An item of a list that says under which terms the volumes stand.
        limits: Sections about the volumes and about what they may be used for.
        tags: For the card's metadata.
        about: One sentence about the dataset.
        scans: What a row of a config without questions is.
        rows: What a row of questions is.
        changes: What is done to records on their way into a table, a sentence each.
        meanings: Column to what it holds, for columns of the dataset's own.

    Examples:
        >>> from reasonknee_hf.knee.knee_card import KNEE_CARD
        >>> KNEE_CARD.licence_name, KNEE_CARD.paper_url
        ('CC BY 4.0', 'https://arxiv.org/abs/2510.20967')
    """

    name: str
    title: str
    creators: tuple[str, ...]
    arxiv: str
    published: str
    source: str
    licence: str
    licence_url: str
    citation: str
    terms: str
    limits: str
    tags: tuple[str, ...]
    about: str
    scans: str
    rows: str
    changes: tuple[str, ...]
    meanings: Mapping[str, str]

    @property
    def paper_url(self) -> str:
        """Page of the paper."""
        return f"https://arxiv.org/abs/{self.arxiv}"

    @property
    def source_url(self) -> str:
        """Page of the dataset."""
        return f"https://huggingface.co/datasets/{self.source}"

    @property
    def licence_name(self) -> str:
        """The licence as people write it: `CC BY 4.0`."""
        return self.licence.upper().replace("-", " ")

    @property
    def must_name(self) -> tuple[str, ...]:
        """What no card may leave out."""
        return (*self.creators, self.paper_url, self.source_url, self.licence_url)


def words_of(dataset: str | None = None) -> CardWords:
    """The words of a dataset by its short name; of the first one that is known by default.

    Raises:
        OptionError: There is no such dataset, or nobody wrote what its cards say.
    """
    found = described(dataset)
    if found.card is None:
        raise OptionError(
            f"nothing says what a card of {found.title} must name, so no version of it is written."
        )
    words: CardWords = imported(found.card)
    return words


def card_text(name: str) -> str:
    """One of the texts of `dataset_card/`, which cards and descriptions are made of."""
    return (files("reasonknee_hf") / "dataset_card" / name).read_text("utf-8")
