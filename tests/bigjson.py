"""A large annotation file that resembles the published ones, written as a stream."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

from reasonknee_hf.knee.moaks import QUESTIONS
from reasonknee_hf.knee.sample.prompts import prompt
from reasonknee_hf.knee.sample.sample_texts import answer

RECORDS_PER_SCAN = 62
BYTES_PER_RECORD = 1900
"""Rough size of one record, padding included: published files have about as much."""

# What a scanner of JSON trips over: quotes, escapes, braces and brackets within strings.
_AWKWARD = (
    'a so-called "kissing" lesion {medial}',
    "path C:\\knee\\",
    "[see slice 12], }{ ][",
    'ends in \\"',
    "line\nbreak and\ttab",
    "Final diagnosis is given below",
)
# Text beyond ASCII, up to characters of four bytes: rare in reports in English.
_FOREIGN = ("≥3 foci – 33–66 %", "Knorpelglättung, κνήμη, 膝, 🦵")
_FOREIGN_EVERY = 31
_FILLER = (
    "The neighbouring slices were compared in turn and show the same contour. ",
    "Signal and thickness follow those of the opposite compartment. ",
    "No artefact explains the finding. ",
    "The finding does not reach the next subregion. ",
)


def big_records(count: int, seed: int = 0) -> Iterator[dict[str, object]]:
    """`count` records: 62 a scan, in the order of the questions, with awkward text."""
    lot = random.Random(seed)
    for number in range(count):
        scan, place = divmod(number, RECORDS_PER_SCAN)
        question = QUESTIONS[place + 1]
        low = [lot.randrange(60) for _ in range(3)]
        box = [edge for start in low for edge in (start, start + lot.randrange(1, 60))]
        grades = {a.name: lot.randrange(a.high + 1) for a in question.attributes}
        final = {"bounding_box": box, "final_diagnosis": {question.release_key: grades}}
        awkward = _AWKWARD if number % _FOREIGN_EVERY else _FOREIGN
        words = [awkward[lot.randrange(len(awkward))] + ". "]
        record: dict[str, object] = {
            "image": f"/data/images/{9000001 + scan}/00M/20041222_{10300001 + scan}_{1 + scan % 2}.nii.gz",
            "prompt": prompt(question),
            "answer": "",
            "final_diagnosis": final,
        }
        text = answer(question, grades, final)
        missing = BYTES_PER_RECORD - 100 - len(str(record)) - len(text)
        while missing > 0:
            words.append(lot.choice(_FILLER))
            missing -= len(words[-1])
        record["answer"] = "".join(words) + text
        yield record


def write_big_json(path: Path, *, records: int, seed: int = 0, ascii_only: bool = False) -> int:
    """Writes `records` records as one JSON list, one at a time.

    Args:
        path: File to write.
        records: About 105,000 give 200 MB.
        seed: The same seed gives the same bytes.
        ascii_only: Escape everything beyond ASCII, as `json.dump` does by default.

    Returns:
        The size of the file in bytes.
    """
    with path.open("w", encoding="utf-8", newline="\n") as out:
        separator = "["
        for record in big_records(records, seed):
            out.write(separator + json.dumps(record, indent=2, ensure_ascii=ascii_only))
            separator = ", "
        out.write("[]" if separator == "[" else "]")
    return path.stat().st_size
