"""The text of a card about one published config, from how to load it to known defects."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Sequence
from functools import cache
from string import Template
from typing import TYPE_CHECKING, Any

from datasets import ClassLabel, Value

from reasonknee_hf.dataset.contract import Release
from reasonknee_hf.errors import OptionError, PublishError
from reasonknee_hf.publish.card_words import CardWords, card_text, words_of
from reasonknee_hf.publish.config_facts import ConfigFacts, Conversion, GradeCounts
from reasonknee_hf.publish.job import Job
from reasonknee_hf.publish.rules import read_yaml
from reasonknee_hf.publish.schema import NAME, is_volume, labelled

if TYPE_CHECKING:
    from reasonknee_hf.verify import Report

logger = logging.getLogger(__name__)


def section(conversion: Conversion, place: str, defects: Sequence[str] | None, picture: str | None) -> str:
    """The section of a card about what one conversion wrote.

    Args:
        conversion: What was written.
        place: What `load_dataset` is given: a repository id or a folder.
        defects: Known defects of the release; `None` if it was not verified.
        picture: Path of the picture of the grade distribution, beside the card.
    """
    first, words = conversion.configs[0], words_of(conversion.job.release.dataset)
    place = json.dumps(place, ensure_ascii=False)
    return Template(card_text("section.md")).substitute(
        name=first.name,
        what=_what(conversion),
        place=place,
        split=next(iter(first.splits)),
        how_to_volumes=_volumes_text(conversion, place),
        columns="\n\n".join(_columns(config, words) for config in conversion.configs),
        splits=_splits(conversion.configs),
        provenance=_provenance(conversion.job),
        changes=_changes(conversion.job),
        grades=_grades(first.counts, picture),
        defects=_defects(defects),
    )


def _what(conversion: Conversion) -> str:
    job = conversion.job
    if job.config == "records":
        return "The published annotation arrays, record by record, as they are."
    if not job.questions:
        return words_of(job.release.dataset).scans
    hidden = job.dataset.configs[job.config].hidden if job.config in job.dataset.configs else ()
    left_out = f" The columns {_listed(hidden)}, which give the answer away, are left out." if hidden else ""
    return f"{words_of(job.release.dataset).rows}{left_out} Volumes are kept once a scan and joined by `scan_id`."


def _listed(columns: Sequence[str]) -> str:
    return " and ".join(f"`{column}`" for column in columns)


@cache
def _texts() -> dict[str, dict[str, str]]:
    return dict(read_yaml(card_text("card_texts.yaml")))


def _volumes_text(conversion: Conversion, place: str) -> str:
    job, texts = conversion.job, _texts()["volumes"]
    if job.volumes == "none":
        return texts["none"]
    name = job.volumes_name
    column = {"embed": "image", "files": "image_file", "reference": "image_url"}[job.volumes]
    told = {"place": place, "name": name, "column": column, "held": texts[job.volumes]}
    used = ["any", *(["bytes"] if job.volumes == "embed" else [])]
    written = {config.name: config.splits for config in conversion.configs}
    split = next(iter(conversion.configs[0].splits))
    if job.questions and split in written.get(name, ()):
        root = json.loads(place)
        root = root if root.startswith("./") else f"hf://datasets/{root}"
        for what, one in (("questions", job.name), ("volumes", name)):
            told[what] = "'" + f"{root}/{written[one][split].pattern}".replace("'", "''") + "'"
        used.append("join")
    return "\n\n".join(Template(texts[one]).substitute(told) for one in used)


def _columns(config: ConfigFacts, words: CardWords) -> str:
    lines = [f"`{config.name}`:", "", "| column | type | meaning |", "|---|---|---|"]
    names = {f"{one}{NAME}": f"the name of `{one}`" for one in labelled(config.features)}
    meanings = {**_texts()["meanings"], **names, **words.meanings}
    for name, kind in config.features.items():
        if name not in meanings:
            raise PublishError(
                f"Nothing says what the column {name} holds: the meanings of {words.name} lack it."
            )
        lines.append(f"| `{name}` | {_type_name(kind)} | {meanings[name]} |")
    return "\n".join(lines)


def _type_name(kind: Any) -> str:
    if isinstance(kind, Value):
        return str(kind.dtype)
    if isinstance(kind, ClassLabel):
        return f"class label: {', '.join(kind.names)}"
    if isinstance(kind, dict):
        return "{" + ", ".join(f"{name}: {_type_name(one)}" for name, one in kind.items()) + "}"
    inner = kind[0] if isinstance(kind, list) else getattr(kind, "feature", None)
    if inner is not None:
        return f"list of {_type_name(inner)}"
    return "`Nifti`" if is_volume(kind) else f"`{type(kind).__name__}`"


def _splits(configs: Sequence[ConfigFacts]) -> str:
    lines = ["| config | split | rows | MB |", "|---|---|---|---|"]
    for config in configs:
        for split, facts in config.splits.items():
            lines.append(f"| `{config.name}` | {split} | {facts.rows:,} | {facts.file_bytes / 1e6:,.1f} |")
    return "\n".join(lines)


def _provenance(job: Job) -> str:
    told = job.provenance()
    lines = [
        "| | |",
        "|---|---|",
        f"| source | {told['source']} |",
        f"| commit | {told['sha'] or 'none: a folder'} |",
    ]
    lines += [f"| written by | {told['package']} |"]
    lines += [
        f"| {what} | `{json.dumps(told[what], ensure_ascii=False)}` |" for what in ("options", "selection")
    ]
    return "\n".join(lines)


def _changes(job: Job) -> str:
    config, selection = job.dataset.configs.get(job.config), job.selection.describe()
    hidden = config.hidden if config is not None else ()
    rows = job.questions and job.config != "records"
    done = {
        "records": job.config == "records", "tables": rows, "identifiers": rows, "own": rows, "hidden": hidden,
        "selection": selection, job.on_error: True, job.volumes: True, "drawn": job.derived.drawn,
        "crops": job.derived.crops,
    }  # fmt: skip
    told = {
        "own": "\n- ".join(words_of(job.release.dataset).changes),
        "hidden": _listed(hidden),
        "selection": json.dumps(selection, ensure_ascii=False),
    }
    texts = (text for name, text in _texts()["changes"].items() if done.get(name))
    return "\n".join(f"- {Template(text).substitute(told)}" for text in texts)


def _grades(counts: GradeCounts, picture: str | None) -> str:
    if not counts:
        return "There are no grades here."
    highest = max(grade for grades in counts.values() for grade in grades)
    columns = range(highest + 1)
    lines = ["Graded attributes by category; a row may grade several.", ""]
    lines += ["| category | " + " | ".join(map(str, columns)) + " | all |", "|---" * (highest + 3) + "|"]
    for category, grades in counts.items():
        cells = [f"{grades[grade]:,}" if grade in grades else "" for grade in columns]
        lines.append(f"| {category} | {' | '.join(cells)} | {sum(grades.values()):,} |")
    if picture is not None:
        lines += ["", f"![Share of each grade by category]({picture})"]
    return "\n".join(lines)


def grade_picture(counts: GradeCounts) -> bytes | None:
    """A PNG of stacked bars: for each category the share of each grade. `None` where matplotlib is not installed.

    Args:
        counts: Category → grade → number.
    """
    try:
        from matplotlib import colormaps
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        logger.warning("the card has no picture of the grades: pip install 'reasonknee_hf[viz]'")
        return None
    categories = list(counts)[::-1]
    highest = max(grade for grades in counts.values() for grade in grades)
    colours = colormaps["viridis"].resampled(highest + 1)
    figure = Figure(figsize=(8, 0.45 * len(categories) + 1.3), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    left = [0.0] * len(categories)
    for grade in range(highest + 1):
        shares = [100 * counts[name].get(grade, 0) / sum(counts[name].values()) for name in categories]
        axes.barh(categories, shares, left=left, color=colours(grade), label=str(grade), edgecolor="white")
        left = [start + share for start, share in zip(left, shares, strict=True)]
    labels = [f"{name} ({sum(counts[name].values()):,})" for name in categories]
    axes.set_yticks(range(len(categories)), labels)
    axes.set_xlim(0, 100)
    axes.set_xlabel("share of graded attributes, %")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(title="grade", ncols=1, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    sink = io.BytesIO()
    figure.savefig(sink, format="png", metadata={"Software": None})
    return sink.getvalue()


def defect_lines(verify: bool | Report, release: Release) -> list[str] | None:
    """One line for each kind of defect, without examples: those may name paths of this machine.

    Args:
        verify: `True` to look now, without reading volumes; a report that was made before; `False` not to.
        release: The release.

    Returns:
        `None` if the release was not verified.

    Raises:
        OptionError: The report is about another release.
    """
    if verify is False:
        return None
    from reasonknee_hf.verify import verify as verify_release

    report = verify_release(release) if verify is True else verify
    if (report.release, report.sha) != (release.tree.name, release.sha):
        raise OptionError(
            f"The report is about {report.release}, the rows come from {release.tree.name}. Verify that."
        )
    return [
        f"{finding.count:,} {finding.title}"
        + (f" ({finding.part})" if finding.part else "")
        + f" [{finding.level}]"
        for finding in report.findings
    ]


def _defects(defects: Sequence[str] | None) -> str:
    if defects is None:
        return "The release was not verified when this version was written (`reasonknee verify` does it)."
    if not defects:
        return "`reasonknee verify` found none in the release that this version was written from."
    return "\n".join(["Found in the release by `reasonknee verify`:", "", *(f"- {one}" for one in defects)])


def attribution(words: CardWords | None = None) -> str:
    """The block that every card carries."""
    words = words or words_of()
    text = Template(card_text("attribution.md")).substitute(
        creators=", ".join(words.creators[:-1]) + f" and {words.creators[-1]}",
        bibtex_creators=" and ".join(words.creators),
        paper=f"{words.title}, arXiv:{words.arxiv}",
        paper_url=words.paper_url,
        source_url=words.source_url,
        licence_url=words.licence_url,
        title=words.title,
        arxiv=words.arxiv,
        name=words.name,
        licence=words.licence_name,
        citation=words.citation,
        year=words.published[:4],
        terms=words.terms,
        limits=words.limits,
    )
    require_attribution(text, words)
    return text


def require_attribution(card: str, words: CardWords | None = None) -> None:
    """Refuses a card that leaves out a creator, the paper, the source or the licence.

    Raises:
        PublishError: The message lists what is missing.
    """
    words = words or words_of()
    missing = [name for name in words.must_name if name not in card]
    if missing:
        raise PublishError(
            f"The card does not name {', '.join(missing)}. {words.licence_name} asks for it; write the card with "
            "`reasonknee push` or `reasonknee convert`, which add the block, and do not take it out."
        )
