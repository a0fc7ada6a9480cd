"""Scores 80,000 made-up predictions and prints where the time goes: `python benchmarks/scoring.py [SCANS]`.

Times are CPU seconds of this process, so that a busy machine does not matter much. Parsing is reading the
prediction file and reading grades and boxes out of each answer. Everything else, the references, merging,
comparing and all figures with 1,000 bootstrap rounds, is "beyond parsing".
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from memory import peak_memory

from reasonknee_hf.bench import read_answer, read_references, score
from reasonknee_hf.bench.inputs import read_entries
from reasonknee_hf.knee.moaks import QUESTIONS


def rows(scans: int) -> Iterator[dict]:
    """Rows with the columns that scoring reads: `scans` scans of 400 patients, 62 questions each."""
    chance = random.Random(0)
    for scan in range(scans):
        patient = f"{9_000_000 + scan % 400}"
        for question in list(QUESTIONS.values())[:62]:
            low = [chance.randrange(100) for _ in range(3)]
            yield {
                "id": f"{patient}_00M_20041222_{10_300_000 + scan}_2_{question.id}",
                "scan_id": f"{patient}_00M_20041222_{10_300_000 + scan}_2",
                "patient_id": patient,
                "question_id": question.id,
                "prompt": question.prompt_key,
                "bbox": [end for value in low for end in (value, value + chance.randrange(1, 60))],
                "grades": [
                    {"attribute": a.name, "grade": chance.choice(a.grades)} for a in question.attributes
                ],
            }


def write_predictions(path: Path, scans: int) -> None:
    """Answers of which two thirds are right, in the forms that models use: plain, fenced, after reasoning."""
    chance = random.Random(1)
    forms = (
        "{}",
        "```json\n{}\n```",
        "<think>The marrow is bright, so perhaps.</think>{}",
        "Final diagnosis: {}",
    )
    with path.open("w") as file:
        for row in rows(scans):
            question = QUESTIONS[row["question_id"]]
            grades = {g["attribute"]: g["grade"] for g in row["grades"]}
            if chance.random() < 1 / 3:
                grades = {a.name: chance.choice(a.grades) for a in question.attributes}
            content = json.dumps({"bounding_box": row["bbox"]} | question.answer(grades))
            text = "Bright signal. " * 20 + chance.choice(forms).format("\0").replace("\0", content)
            file.write(json.dumps({"id": row["id"], "prediction": text}) + "\n")


def main() -> None:
    scans = int(sys.argv[1]) if len(sys.argv) > 1 else 1290
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "predictions.jsonl"
        write_predictions(path, scans)
        references = list(rows(scans))
        started = time.process_time()
        report = score(path, references)
        whole = time.process_time() - started
        items = report.data["count"]["items"]
        peak = peak_memory() / 1e6

        started = time.process_time()
        answers = {entry.id: entry.answer for entry in read_entries(path)}
        file_seconds = time.process_time() - started
        started = time.process_time()
        for item, question in zip(
            report.outcome.references.ids, report.outcome.references.questions, strict=True
        ):
            if question is not None:
                read_answer(answers[item], question)
        answer_seconds = time.process_time() - started
        started = time.process_time()
        read_references(references)
        reference_seconds = time.process_time() - started
    beyond = whole - file_seconds - answer_seconds
    print(
        f"{items} items, {report.data['count']['grades']} grades, {report.data['count']['patients']} patients"
    )
    print(f"whole run          {whole:7.2f} s   {items / whole:9,.0f} items/s")
    print(f"  prediction file  {file_seconds:7.2f} s   {items / file_seconds:9,.0f} items/s")
    print(f"  reading answers  {answer_seconds:7.2f} s   {items / answer_seconds:9,.0f} items/s")
    print(f"  beyond parsing   {beyond:7.2f} s   {items / beyond:9,.0f} items/s (target: 20,000)")
    print(f"    of it references {reference_seconds:5.2f} s")
    print(f"peak memory        {peak:7.0f} MB with all references as dicts in memory (limit: 500)")


if __name__ == "__main__":
    main()
