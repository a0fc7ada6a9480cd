"""What CC BY 4.0 asks of everybody who passes the data on: creators, source, licence. No card is written without it."""

from __future__ import annotations

from importlib.resources import files
from string import Template

from reasonknee_hf.errors import PublishError

CREATORS = (
    "Sraavya Sambara",
    "Sung Eun Kim",
    "Xiaoman Zhang",
    "Luyang Luo",
    "Shreya Johri",
    "Mohammed Baharoon",
    "Du Hyun Ro",
    "Pranav Rajpurkar",
)
TITLE = "3DReasonKnee: Advancing Grounded Reasoning in Medical Vision Language Models"
ARXIV = "2510.20967"
PAPER_URL = f"https://arxiv.org/abs/{ARXIV}"
SOURCE_ID = "rajpurkarlab/3DReasonKnee"
SOURCE_URL = f"https://huggingface.co/datasets/{SOURCE_ID}"
LICENCE = "cc-by-4.0"
LICENCE_URL = "https://creativecommons.org/licenses/by/4.0/"

_MUST_NAME = (*CREATORS, PAPER_URL, SOURCE_URL, LICENCE_URL)


def template(name: str) -> Template:
    """One of the texts of `dataset_card/`."""
    return Template((files("reasonknee_hf") / "dataset_card" / name).read_text("utf-8"))


def attribution() -> str:
    """The block that every card carries."""
    text = template("attribution.md").substitute(
        creators=", ".join(CREATORS[:-1]) + f" and {CREATORS[-1]}",
        bibtex_creators=" and ".join(CREATORS),
        paper=f"{TITLE}, arXiv:{ARXIV}",
        paper_url=PAPER_URL,
        source_url=SOURCE_URL,
        licence_url=LICENCE_URL,
        title=TITLE,
        arxiv=ARXIV,
    )
    require_attribution(text)
    return text


def require_attribution(card: str) -> None:
    """Refuses a card that leaves out a creator, the paper, the source or the licence.

    Raises:
        PublishError: The message lists what is missing.
    """
    missing = [words for words in _MUST_NAME if words not in card]
    if missing:
        raise PublishError(
            f"The card does not name {', '.join(missing)}. CC BY 4.0 asks for it; write the card with "
            "`reasonknee push` or `reasonknee convert`, which add the block, and do not take it out."
        )
