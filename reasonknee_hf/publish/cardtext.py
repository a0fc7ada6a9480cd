"""The text of a card about one published config, from how to load it to known defects."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from string import Template
from typing import Any

from datasets import ClassLabel, Value

from reasonknee_hf.errors import PublishError
from reasonknee_hf.publish.card_words import CardWords, words_of
from reasonknee_hf.publish.config_facts import ConfigFacts, Conversion, GradeCounts
from reasonknee_hf.publish.job import Job
from reasonknee_hf.publish.schema import NAME, is_volume, labelled

_MEANINGS = {
    "id": "`{scan_id}_{question_id}`",
    "structure": "anatomical structure",
    "subregion": "part of the structure",
    "prompt": "the question, as published",
    "bbox": "`[start_slice, end_slice, x_min, x_max, y_min, y_max]` in the slice-first array, ends inclusive",
    "answer": "as published",
    "preview": "three planes through the middle of the box, the box drawn in",
    "frames": "slices of the box, evenly spaced, cut to its extent",
    "image": "the published `.nii.gz`, bytes unchanged",
    "mask": "the published mask, bytes unchanged; null where there is none",
    "image_file": "path of the published `.nii.gz` in this repository",
    "mask_file": "path of the published mask in this repository",
    "image_url": "where the published `.nii.gz` lies",
    "mask_url": "where the published mask lies; `reasonknee://` URLs are opened by the package `reasonknee_hf`",
    "crop": "the region of the box (and a margin, if one was asked for) as NIfTI, slice-first, its affine moved along",
    "other": "further keys of the record, and values that are not text, as JSON; null if there are none",
    "crop_bbox": "the box in the indices of the crop",
}


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
    return template("section.md").substitute(
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


def _volumes_text(conversion: Conversion, place: str) -> str:
    job = conversion.job
    if job.volumes == "none":
        return "There are no volumes here."
    name = job.volumes_name
    column = {"embed": "image", "files": "image_file", "reference": "image_url"}[job.volumes]
    embedded = job.volumes == "embed"
    lines = [
        f'Volumes: `load_dataset({place}, "{name}", streaming=True)`, one row a scan, joined by `scan_id`; '
        f"the column `{column}` holds "
        + {
            "embed": "the volume.",
            "files": "the path of its file in this repository.",
            "reference": "its URL.",
        }[job.volumes]
    ]
    if embedded:
        lines.append(
            f"The type `Nifti` needs `datasets` 4.4 or later. On older versions, and where only bytes are wanted, load "
            f"`{name}_bytes`: the same files, each volume as `{{bytes, path}}` "
            '(`nibabel.Nifti1Image.from_bytes(gzip.decompress(row["image"]["bytes"]))`).'
        )
    written = {config.name: config.splits for config in conversion.configs}
    split = next(iter(conversion.configs[0].splits))
    if job.questions and split in written.get(name, ()):
        root = json.loads(place)
        root = root if root.startswith("./") else f"hf://datasets/{root}"
        questions, volumes = (
            "'" + f"{root}/{written[one][split].pattern}".replace("'", "''") + "'" for one in (job.name, name)
        )
        lines.append(
            f"Joined by DuckDB, which reads only what is asked for:\n\n```sql\nSELECT scan_id, q.prompt, v.{column}\n"
            f"FROM {questions} AS q\nJOIN {volumes} AS v USING (scan_id)\nLIMIT 1\n```"
        )
    return "\n\n".join(lines)


def _columns(config: ConfigFacts, words: CardWords) -> str:
    lines = [f"`{config.name}`:", "", "| column | type | meaning |", "|---|---|---|"]
    names = {f"{one}{NAME}": f"the name of `{one}`" for one in labelled(config.features)}
    meanings = {**_MEANINGS, **names, **words.meanings}
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
    changes = []
    if job.config == "records":
        changes.append(
            "The JSON arrays were written as Parquet tables, in published order; no value was changed."
        )
    elif job.questions:
        changes += [
            "The JSON arrays were written as Parquet tables, in published order, with one fixed schema.",
            "Identifiers are kept as text.",
            *words_of(job.release.dataset).changes,
        ]
    config = job.dataset.configs.get(job.config)
    if config is not None and config.hidden:
        changes.append(f"The columns {_listed(config.hidden)} were left out.")
    told = job.selection.describe()
    if told:
        changes.append(f"Only a selection was kept: `{json.dumps(told, ensure_ascii=False)}`.")
    if job.on_error != "raise":
        done = "were left out" if job.on_error == "skip" else "have null in that column"
        changes.append(
            f"Rows that do not fit the schema, and volumes that are absent or cannot be read, {done}."
        )
    if job.volumes == "embed":
        changes.append(
            "Volumes and masks were moved into Parquet files, one row a scan; their bytes are unchanged."
        )
    if job.volumes == "files":
        changes.append(
            "Volumes were copied, and masks were taken out of the cut archive; their bytes are unchanged."
        )
    if job.derived.previews or job.derived.frames:
        changes.append(
            "Pictures were made of the volumes: 8-bit grey values between two percentiles, resized, a box drawn in."
        )
    if job.derived.crops:
        changes.append(
            "Regions of the boxes were cut out of the volumes, with boxes and affines moved along."
        )
    return "\n".join(f"- {change}" for change in changes)


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


def _defects(defects: Sequence[str] | None) -> str:
    if defects is None:
        return "The release was not verified when this version was written (`reasonknee verify` does it)."
    if not defects:
        return "`reasonknee verify` found none in the release that this version was written from."
    return "\n".join(["Found in the release by `reasonknee verify`:", "", *(f"- {one}" for one in defects)])


def template(name: str) -> Template:
    """One of the texts of `dataset_card/`."""
    return Template((files("reasonknee_hf") / "dataset_card" / name).read_text("utf-8"))


def attribution(words: CardWords | None = None) -> str:
    """The block that every card carries."""
    words = words or words_of()
    text = template("attribution.md").substitute(
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
