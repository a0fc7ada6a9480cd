"""The sample's tables: splits, source grades, question files."""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Iterable, Sequence

from reasonknee_hf.knee.layout import SPLIT_HEADER
from reasonknee_hf.knee.moaks import QUESTIONS
from reasonknee_hf.knee.sample.plan import SPLITS, SampleScan
from reasonknee_hf.knee.sample.prompts import all_prompts
from reasonknee_hf.knee.sample.sample_labels import LABELS, RECORDED_QUESTIONS, question_labels
from reasonknee_hf.knee.sample.sample_texts import mapping
from reasonknee_hf.knee.source_grades import COLUMNS, VISITS


def _csv(rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def split_tables(scans: Sequence[SampleScan]) -> dict[str, str]:
    """File name to text of the four split tables. Paths are relative to a folder beside `data`."""

    def table(chosen: Iterable[SampleScan]) -> str:
        rows: list[Sequence[object]] = [SPLIT_HEADER]
        for scan in chosen:
            path, image, mask = f"data/OAI/{scan.oai_folder}", scan.image_path, f"data/masks/{scan.mask_name}"
            key = (scan.patient, scan.visit, scan.study, scan.series, scan.side)
            rows.append((*key, f"../{path}", f"../{image}", f"../{mask}"))
        return _csv(rows)

    tables = {f"{split}_split.csv": table(scan for scan in scans if scan.split == split) for split in SPLITS}
    return {"all_studies.csv": table(scans), **tables}


def question_files() -> dict[str, str]:
    """File name to text of the question files."""
    recorded = [QUESTIONS[number] for number in RECORDED_QUESTIONS]
    files: dict[str, object] = {
        "questions.json": all_prompts(),
        "cot_question_mapping.json": {str(question.id): mapping(question) for question in recorded},
        "grade_dict.json": {q.release_key: {a.name: 0 for a in q.attributes} for q in QUESTIONS.values()},
        "labels.json": LABELS,
        "question_subregion_mapping.json": {
            str(question.id): question_labels(question) for question in recorded
        },
    }
    return {name: json.dumps(value, indent=4, ensure_ascii=False) + "\n" for name, value in files.items()}


def grade_tables(scans: Sequence[SampleScan], seed: int) -> dict[str, str]:
    """File name to text of the tables of source grades, as awkward as the published ones.

    Every file uses the prefix `V00`; each cartilage variable stands twice under one name (size, then depth);
    cells may be empty, `.` or an impossible `5`; a knee may have two rows that contradict each other.
    """
    known = [*COLUMNS, ("V00MACLTR", 60, "complete_tear")]
    header = ["ID", "SIDE", "READPRJ", "VERSION", *(name for name, _, _ in known)]

    def row(scan: SampleScan, project: str, version: int, lot: random.Random) -> list[object]:
        cells: list[object] = []
        for _, question, attribute in known:
            grade: object = scan.grades[question][attribute]
            spoiled = lot.random()
            cells.append("" if spoiled < 0.02 else "." if spoiled < 0.04 else 5 if spoiled < 0.045 else grade)
        return [scan.patient, scan.side, project, version, *cells]

    tables: dict[str, str] = {}
    for prefix, numbers in (("", ("00", "01", "03", "06")), ("FNIH_", ("00", "01", "03"))):
        for number in numbers:
            lot = random.Random(f"readings {seed} {prefix}{number}")
            rows: list[Sequence[object]] = [header]
            for scan in scans:
                if VISITS[scan.visit] != number or (prefix and scan.number % 4):
                    continue
                rows.append(row(scan, "FNIH" if prefix else "65", 1, lot))
                if not prefix and scan.number % 3 == 0:
                    rows.append(row(scan, "63A", 2, lot))
            tables[f"taxonomymatch_kMRI_{prefix}SQ_MOAKS_BICL{number}.csv"] = _csv(rows)
    lot = random.Random(f"readings {seed} 18M")
    manual = [row(scan, "22", 1, lot) for scan in scans if scan.has_expert and scan.visit == "00M"]
    tables["manual_annotated_kMRI_18M.csv"] = _csv([header, *manual])
    return tables
