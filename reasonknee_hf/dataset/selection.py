"""Which scans and questions of a release are wanted, told without reading a record."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from hashlib import blake2b
from typing import Any

from reasonknee_hf.dataset.contract import Description, Release, Scan
from reasonknee_hf.errors import OptionError


@dataclass(frozen=True)
class Selection:
    """A choice of scans and questions. What is not given does not restrict.

    Args:
        questions: Question ids, as in the column `question_id`.
        categories: Of the seven of ReasonKnee-Bench, by name.
        structures: Anatomical structures, as in the column `structure`.
        patients: Patient ids, as published.
        scans: Scan ids, as in the column `scan_id`.
        visits: Visits, `00M` … `48M`.
        fraction: About this share of the patients, each with all scans; above 0, at most 1. Which ones depends on
            `fraction_seed` and the patient alone: a smaller fraction is a part of a larger one, in every split.
        fraction_seed: Another number chooses other patients.

    Raises:
        OptionError: A fraction out of range.
    """

    questions: Sequence[int] | int | None = None
    categories: Sequence[str] | str | None = None
    structures: Sequence[str] | str | None = None
    patients: Sequence[str] | str | None = None
    scans: Sequence[str] | str | None = None
    visits: Sequence[str] | str | None = None
    fraction: float | None = None
    fraction_seed: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            given = getattr(self, field.name)
            if field.name in _LISTS and given is not None:
                many = isinstance(given, Iterable) and not isinstance(given, str)
                values = tuple(given) if many else (given,)
                kind = int if field.name == "questions" and all(map(_is_whole, values)) else str
                object.__setattr__(self, field.name, tuple(map(kind, values)))
        if self.fraction is not None and not (_is_number(self.fraction) and 0 < self.fraction <= 1):
            raise OptionError(f"fraction={self.fraction!r} is to be above 0 and at most 1.")

    def keeps_scan(self, scan: Scan) -> bool:
        """Whether rows of the scan are chosen."""
        lists: tuple[tuple[Any, Any], ...] = (
            (self.patients, scan.patient_id),
            (self.visits, getattr(scan, "visit", None)),
            (self.scans, scan.scan_id),
        )
        return all(some is None or value in some for some, value in lists) and (
            self.fraction is None or self._place_of(scan.patient_id) < self.fraction
        )

    def check_scans(self, release: Release) -> None:
        """Refuses patients, scans and visits that no table of a release lists.

        Raises:
            OptionError: One is not listed, or no scan has all that is given.
        """
        if not self.restricts_scans:
            return
        scans = [*release.all_scans()]
        for what, given in (("patient_id", self.patients), ("scan_id", self.scans), ("visit", self.visits)):
            listed = {getattr(scan, what, None) for scan in scans} if given else ()
            unknown = [value for value in given or () if value not in listed]
            if unknown:
                raise OptionError(
                    f"{release.tree.name} lists no scan with {what} {', '.join(map(repr, unknown))}."
                )
        if not any(map(self.keeps_scan, scans)):
            raise OptionError(
                f"No scan is chosen: none of {release.tree.name} fits all of {self.describe()}."
            )

    @property
    def restricts_scans(self) -> bool:
        """Whether some scans are left out whatever is asked about them."""
        return (self.patients, self.visits, self.scans, self.fraction) != (None, None, None, None)

    def question_ids(self, dataset: Description) -> frozenset[int] | None:
        """The chosen questions of a dataset; `None` if all are, also those whose prompt is unknown.

        Raises:
            OptionError: It has no such question, category or structure, or none that fits all that is given.
        """
        wanted: tuple[Any, ...] = (self.questions, self.categories, self.structures)
        if wanted == (None, None, None):
            return None
        asked = [(number, q.category, q.structure) for number, q in dataset.questions.items()]
        for what, given, valid in zip(
            ("question", "category", "structure"), wanted, zip(*asked, strict=True), strict=True
        ):
            check_known(what, given, list(dict.fromkeys(valid)))
        found = frozenset(
            one[0]
            for one in asked
            if all(some is None or value in some for some, value in zip(wanted, one, strict=True))
        )
        if not found:
            raise OptionError(f"No question is chosen: none fits all of {self.describe()}.")
        return found

    def describe(self) -> dict[str, Any]:
        """The restrictions as plain JSON values."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return dict(
            json.loads(json.dumps({name: value for name, value in given.items() if value is not None}))
        )

    def _place_of(self, patient: str) -> float:
        """A number of [0, 1) that a patient keeps."""
        digest = blake2b(f"{self.fraction_seed or 0}/{patient}".encode(), digest_size=7).digest()
        return int.from_bytes(digest, "little") / 2**56


_LISTS = ("questions", "categories", "structures", "patients", "scans", "visits", "splits")


def check_known(what: str, given: Any, valid: Sequence[Any]) -> None:
    """Refuses what is not one of the valid values."""
    unknown = [value for value in given or () if value not in valid]
    if unknown:
        raise OptionError(f"Unknown {what} {unknown[0]!r}. Valid: {', '.join(map(str, valid))}.")


def _is_whole(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
