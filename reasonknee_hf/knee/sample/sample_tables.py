"""The sample's tables: splits, source grades, question files."""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Iterable, Sequence

from reasonknee_hf.knee.layout import SPLIT_HEADER
from reasonknee_hf.knee.moaks import QUESTIONS
from reasonknee_hf.knee.sample.plan import SPLITS, VISITS, SampleScan
from reasonknee_hf.knee.sample.prompts import all_prompts
from reasonknee_hf.knee.sample.sample_labels import LABELS, RECORDED_QUESTIONS, question_labels
from reasonknee_hf.knee.sample.sample_texts import mapping

_SITES = (
    *("PM", "PL"),
    *("FMA", "FMC", "FMP", "FLA", "FLC", "FLP"),
    *("TMA", "TMC", "TMP", "TLA", "TLC", "TLP", "SS"),
)


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
    header = ["ID", "SIDE", "READPRJ", "VERSION"]
    columns: list[tuple[int, str]] = []  # (question, attribute) of the columns behind the keys
    for site, bml in zip(_SITES, range(1, 16), strict=True):
        for letter, attribute in (("S", "size"), ("N", "number"), ("P", "percent_bml")):
            header.append(f"V00MBM{letter}{site}")
            columns.append((bml, attribute))
    for site, cartilage in zip(_SITES[:-1], range(16, 30), strict=True):
        header += [f"V00MCM{site}"] * 2
        columns += [(cartilage, "size"), (cartilage, "depth")]
    menisci = [f"V00MMT{side}{part}" for side in "ML" for part in "ABP"]
    header += ["V00MSYIC", "V00MEFFWK", *menisci, "V00MMRTM", "V00MMRTL", "V00MACLTR"]
    columns += [(42, "grade"), (43, "grade"), *((question, "morphology") for question in range(48, 54))]
    columns += [(58, "presence"), (59, "presence"), (60, "complete_tear")]

    def row(scan: SampleScan, project: str, version: int, lot: random.Random) -> list[object]:
        cells: list[object] = []
        for question, attribute in columns:
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
                if VISITS[scan.visit][2] != number or (prefix and scan.number % 4):
                    continue
                rows.append(row(scan, "FNIH" if prefix else "65", 1, lot))
                if not prefix and scan.number % 3 == 0:
                    rows.append(row(scan, "63A", 2, lot))
            tables[f"taxonomymatch_kMRI_{prefix}SQ_MOAKS_BICL{number}.csv"] = _csv(rows)
    lot = random.Random(f"readings {seed} 18M")
    manual = [row(scan, "22", 1, lot) for scan in scans if scan.has_expert and scan.visit == "00M"]
    tables["manual_annotated_kMRI_18M.csv"] = _csv([header, *manual])
    return tables
