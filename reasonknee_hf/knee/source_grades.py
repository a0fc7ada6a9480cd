"""The tables of source grades under `data/labels/`: which column holds which grade, and what a knee has there.

Names of columns are those of the OAI's readings (`V00` and a stem, whatever the visit); each cartilage variable stands
twice under one name, size first, then depth. Left out are the stems whose meaning nobody has stated, and those that
code something else than the prompts ask.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import product

from reasonknee_hf.errors import ReleaseError
from reasonknee_hf.hub.tree import Tree
from reasonknee_hf.knee.moaks import QUESTIONS
from reasonknee_hf.knee.scans import Scan

FOLDER = "data/labels"
VISITS = {"00M": "00", "12M": "01", "24M": "03", "48M": "06"}
"""Visit to the number in the names of its tables. Nobody has published this link; released cartilage sizes agree by it
with the one value of the tables in 95 of 100 cases."""

_SITES = (
    "PM",
    "PL",
    "FMA",
    "FMC",
    "FMP",
    "FLA",
    "FLC",
    "FLP",
    "TMA",
    "TMC",
    "TMP",
    "TLA",
    "TLC",
    "TLP",
    "SS",
)
_MENISCI = ("MA", "MB", "MP", "LA", "LB", "LP")
_NONE = 255  # a cell that is empty, `.`, or no grade of its question


def _columns() -> Iterator[tuple[str, int, str]]:
    for bml, site in enumerate(_SITES, start=1):
        for letter, attribute in (("S", "size"), ("N", "number"), ("P", "percent_bml")):
            yield f"V00MBM{letter}{site}", bml, attribute
    for cartilage, site in enumerate(_SITES[:-1], start=16):
        yield f"V00MCM{site}", cartilage, "size"
        yield f"V00MCM{site}", cartilage, "depth"
    yield "V00MSYIC", 42, "grade"
    yield "V00MEFFWK", 43, "grade"
    for morphology, part in enumerate(_MENISCI, start=48):
        yield f"V00MMT{part}", morphology, "morphology"
    yield "V00MMRTM", 58, "presence"
    yield "V00MMRTL", 59, "presence"


COLUMNS = tuple(_columns())
"""Name, question and attribute of each column."""


PROJECTS = ("", "FNIH_")


def table_path(project: str, number: str) -> str:
    """The table of a project of readings and a visit's number."""
    return f"{FOLDER}/taxonomymatch_kMRI_{project}SQ_MOAKS_BICL{number}.csv"


class SourceGrades:
    """What the tables say of each knee, one byte a grade.

    Args:
        tree: The files of a release. Tables that are not there say nothing.

    Raises:
        ReleaseError: A table lacks its keys, or has a row of another length than its header.
    """

    def __init__(self, tree: Tree) -> None:
        self._places = {column[1:]: place for place, column in enumerate(COLUMNS)}
        self._knees: dict[tuple[str, str, str], list[bytes]] = defaultdict(list)
        for project, number in product(PROJECTS, VISITS.values()):
            path = table_path(project, number)
            if path in tree.entries():
                for patient, side, grades in _read(tree.read(path), path):
                    self._knees[number, patient, side].append(grades)

    def __bool__(self) -> bool:
        return bool(self._knees)

    def of(self, scan: Scan, question: int, attribute: str) -> set[int] | None:
        """All grades that the rows of a knee give at a visit, none where its cells are empty.

        Returns:
            `None` where the tables have no such column, or no row of the knee.
        """
        place = self._places.get((question, attribute))
        side = "1" if scan.knee_side == "right" else "2"
        rows = self._knees.get((VISITS.get(scan.visit, ""), scan.patient_id, side))
        return None if place is None or rows is None else {row[place] for row in rows} - {_NONE}


def _read(data: bytes, path: str) -> Iterator[tuple[str, str, bytes]]:
    """Patient, side and grades of each row."""
    lines = csv.reader(data.decode("utf-8-sig", errors="replace").splitlines())
    header = next(lines, [])
    if not {"ID", "SIDE"} <= set(header):
        raise ReleaseError(f"{path}: the header has no ID and SIDE, but {', '.join(header[:6])}.")
    patient, side = header.index("ID"), header.index("SIDE")
    places = list(_places(header))
    for number, cells in enumerate(lines, start=2):
        if len(cells) != len(header):
            raise ReleaseError(f"{path}, line {number}: {len(cells)} cells, the header has {len(header)}.")
        yield cells[patient], cells[side], bytes(_grades(cells, places))


def _places(header: Sequence[str]) -> Iterator[int | None]:
    """Where each of the columns lies in a table; of a name that stands twice, the second time too."""
    left = list(header)
    for name, _, _ in COLUMNS:
        place = left.index(name) if name in left else None
        if place is not None:
            left[place] = ""
        yield place


def _grades(cells: Sequence[str], places: Sequence[int | None]) -> Iterator[int]:
    for place, (_, question, name) in zip(places, COLUMNS, strict=True):
        attribute = QUESTIONS[question].attribute(name)
        text = "" if place is None else cells[place].removesuffix(".0")
        known = text.isdecimal() and attribute is not None and int(text) in attribute.grades
        yield int(text) if known else _NONE
