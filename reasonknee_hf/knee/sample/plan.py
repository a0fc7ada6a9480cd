"""Who is in the sample: patients, visits, knees, splits and grades, all invented and fixed by the seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from reasonknee_hf.knee.moaks import QUESTIONS, Attribute, Question
from reasonknee_hf.knee.sample.phantom import Grid
from reasonknee_hf.knee.sample.sample_labels import RECORDED_QUESTIONS

SPLITS = ("train", "val", "test")
VISITS: dict[str, tuple[int, str]] = {
    # visit: (year of the first ones, folder of its images)
    "00M": (2004, "00mDESS/0.C.2"),
    "12M": (2005, "12mDESS/1.C.2"),
    "24M": (2006, "24mDESS/3.C.2"),
    "48M": (2008, "48mDESS/6.C.1"),
}
BULK = 64
"""Samples with more scans than this get a coarser grid, so that thousands can be written."""

_GRIDS = (Grid(32, 128, 128), Grid(32, 128, 128, slice_last=True), Grid(27, 128, 112, slice_last=True))
_BULK_GRIDS = (Grid(24, 64, 64), Grid(24, 64, 64, slice_last=True), Grid(20, 64, 56, slice_last=True))
# Axis codes of the volumes' files, one scan after another; None is the order of the mask. People have volumes of other
# converters than the masks were made with, and boxes must not mind.
_IMAGE_AXES = (None, "RAS", "LAS", "PSR", "LIP")
# Visits and knees of one patient after another; a patient is in one split only.
_COURSES: tuple[tuple[tuple[str, int], ...], ...] = (
    (("00M", 1), ("24M", 1)),
    (("12M", 2),),
    (("00M", 2), ("00M", 1), ("48M", 2)),
    (("00M", 2), ("12M", 2)),
    (("00M", 1), ("00M", 2), ("24M", 1)),
)

GradesByQuestion = dict[int, dict[str, int]]


@dataclass(frozen=True)
class SampleScan:
    """One row of the sample's split tables.

    Args:
        number: Place in `all_studies.csv`; the number in the name of the mask.
        side: 1 right, 2 left, as published.
        image_axes: Axis codes of the file of its volume; those of the mask by default.
        has_records: Whether `generate_data` holds records for it.
        has_image: Whether its volume is written.
        has_expert: Whether `data/OAI` holds expert segmentations of it.
    """

    number: int
    split: str
    patient: str
    visit: str
    study: str
    series: str
    side: int
    grid: Grid
    grades: GradesByQuestion = field(repr=False, compare=False)
    image_axes: str | None = None
    has_records: bool = True
    has_image: bool = True
    has_expert: bool = False

    @property
    def name(self) -> str:
        return f"{self.study}_{self.series}_{self.side}"

    @property
    def image_path(self) -> str:
        return f"data/images/{self.patient}/{self.visit}/{self.name}.nii.gz"

    @property
    def mask_name(self) -> str:
        return f"knee_{self.number:03d}.nii.gz"

    @property
    def oai_folder(self) -> str:
        """Patient, study and series under the folder of the visit."""
        return f"{VISITS[self.visit][1]}/{self.patient}/{self.study}/{self.series}"

    @property
    def knee(self) -> str:
        return f"{self.patient}_{self.side}"


def plan(scans: int, seed: int, *, flaws: bool = True) -> list[SampleScan]:
    """The rows of `all_studies.csv`, in order.

    Args:
        scans: Number of scans with volume, mask and records, at least 3.
        seed: Seed of everything that is drawn by lot.
        flaws: Add three irregular rows: two train scans without records, as published, and one validation
            scan whose volume is missing, as users meet it.
    """
    val, test = max(1, scans // 6), max(1, scans // 3)
    wanted = {"train": scans - val - test, "val": val, "test": test}
    rows: list[dict[str, object]] = []
    for split, count in wanted.items():
        extra = {"train": 2, "val": 1}.get(split, 0) if flaws else 0
        rows += [
            {
                "split": split,
                "has_records": not (split == "train" and place >= count),
                "has_image": not (split == "val" and place >= count),
                "has_expert": place % 10 == 0 and place < count,
            }
            for place in range(count + extra)
        ]
    return list(_number(rows, seed, _BULK_GRIDS if scans > BULK else _GRIDS))


def _number(rows: list[dict[str, object]], seed: int, grids: tuple[Grid, ...]) -> Iterator[SampleScan]:
    """Gives rows patients, visits and numbers. Patients are mixed: their ids know nothing of splits."""
    courses: list[list[tuple[dict[str, object], str, int]]] = []
    for split in SPLITS:
        members = [row for row in rows if row["split"] == split]
        while members:
            course = _COURSES[len(courses) % len(_COURSES)]
            courses.append([(row, visit, side) for row, (visit, side) in zip(members, course, strict=False)])
            members = members[len(course) :]
    random.Random(f"patients {seed}").shuffle(courses)
    number = 0
    for index, visits in enumerate(courses):
        patient = str(9000001 + index)
        for row, visit, side in visits:
            lot = random.Random(f"study {seed} {patient} {visit}")
            year = VISITS[visit][0] + lot.randrange(2)
            study = f"{year}{lot.randint(1, 12):02d}{lot.randint(1, 28):02d}"
            # Barcodes are text: later visits have longer ones.
            series = f"1{number + 1:09d}{side}" if visit == "48M" else f"1{number + 1:06d}{side}"
            yield SampleScan(
                number=number,
                patient=patient,
                visit=visit,
                study=study,
                series=series,
                side=side,
                grid=grids[number % len(grids)],
                image_axes=_IMAGE_AXES[number % len(_IMAGE_AXES)],
                grades=_grades(f"{seed} {patient} {side}", visit),
                **row,  # type: ignore[arg-type]
            )
            number += 1


def _grades(knee: str, visit: str) -> GradesByQuestion:
    """Grades of one knee at one visit: drawn once a knee; an ordinal grade may rise by a step later."""
    lot = random.Random(f"grades {knee}")
    grades = {number: _draw(QUESTIONS[number], lot) for number in RECORDED_QUESTIONS}
    later = random.Random(f"grades {knee} {visit}")
    for number, values in grades.items():
        for attribute in QUESTIONS[number].attributes:
            rises = later.random() < 0.12 and visit != "00M"
            if rises and attribute.kind == "ordinal" and 0 < values[attribute.name] < attribute.high:
                values[attribute.name] += 1
    return grades


def _draw(question: Question, lot: random.Random) -> dict[str, int]:
    values = {attribute.name: _draw_one(attribute, lot) for attribute in question.attributes}
    if question.family == "BML":
        # No lesion, nothing to count; a lesion counts at least one.
        values = {name: 0 if not values["size"] else max(1, value) for name, value in values.items()}
    elif question.family == "cartilage" and not values["size"]:
        values["depth"] = 0
    elif question.family == "meniscal cyst" and not values["presence"]:
        values["tear_location"] = 3
    return values


def _draw_one(attribute: Attribute, lot: random.Random) -> int:
    """Most knees show nothing at most places; among lesions the middle grade is the most frequent one."""
    if lot.random() < 0.7:
        return 0
    if attribute.name == "morphology":
        return lot.choice((1, 2, 3, 4, 5, 6, 8))
    return min(attribute.high, lot.choice((1, 2, 2, 2, 3)))
