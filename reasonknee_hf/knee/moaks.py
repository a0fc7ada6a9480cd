"""The questions of the dataset: what each asks, how answers are keyed, and which grades exist.

One table for the whole package. Grade spaces follow MOAKS (Hunter et al. 2011) as the published prompts state
them; the sites and the spelling of keys follow the two published question files (69 prompts, ids 1 to 69).
The seven categories are those of ReasonKnee-Bench.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

CATEGORIES = (
    "BML",
    "Cartilage",
    "Osteophyte",
    "Meniscus",
    "Ligament & Tendon",
    "Synovitis & Effusion",
    "Periarticular",
)

Kind = Literal["ordinal", "nominal", "binary"]


@dataclass(frozen=True)
class Attribute:
    """One grade of a lesion.

    Args:
        name: Short name used in `grades` and in the released records, e.g. `size`.
        prompt_key: The key that the prompt asks for, e.g. `Size of lesion`; `None` where the prompt puts the
            grade directly under the lesion key.
        high: Largest grade; grades run from 0.
        kind: `ordinal`, `nominal` (a code without order) or `binary` (0 absent, 1 present).
        aliases: Further keys that mean this attribute and no other of its lesion.
    """

    name: str
    prompt_key: str | None
    high: int
    kind: Kind = "ordinal"
    aliases: tuple[str, ...] = ()

    @property
    def grades(self) -> range:
        return range(self.high + 1)


@dataclass(frozen=True)
class Question:
    """One of the 69 prompts: where it looks and what it wants back."""

    id: int
    category: str
    family: str
    structure: str
    subregion: str
    wrapper: str | None
    prompt_key: str
    attributes: tuple[Attribute, ...]

    @cached_property
    def lesion(self) -> str:
        """The lesion's name with blanks, e.g. `femur medial central cartilage lesion`."""
        return self.prompt_key.replace("_", " ")

    @cached_property
    def release_key(self) -> str:
        """The lesion's key as the released records write it, e.g. `femur_medial_central_cartilage_lesion`."""
        return self.prompt_key.replace(" ", "_")

    def attribute(self, name: str) -> Attribute | None:
        """The attribute called `name`: short, as in the prompt or an alias; any case, `_` for blanks."""
        return self._by_spelling.get(fold(name))

    @cached_property
    def _by_spelling(self) -> dict[str, Attribute]:
        return {
            fold(key): attribute
            for attribute in self.attributes
            for key in (attribute.name, attribute.prompt_key, *attribute.aliases)
            if key
        }

    def answer(self, grades: dict[str, int]) -> dict[str, object]:
        """The object that the prompt asks for, filled with `grades` (short attribute name to grade)."""
        if len(self.attributes) == 1 and self.attributes[0].prompt_key is None:
            value: object = grades[self.attributes[0].name]
        else:
            value = {a.prompt_key or a.name: grades[a.name] for a in self.attributes}
        inner = {self.prompt_key: value}
        return {self.wrapper: inner} if self.wrapper else inner


@lru_cache(maxsize=4096)
def fold(key: str) -> str:
    """`key` reduced to what its spellings share: lower case, single blanks for `_`, `-` and white space."""
    return re.sub(r"[\s_\-]+", " ", key).strip().casefold()


_BML = (
    Attribute("size", "Size of BML (including cyst)", 3, aliases=("Size of BML", "BML size")),
    Attribute(
        "number",
        "Number of BML within subregion",
        3,
        aliases=("Number of BML", "Number of BMLs", "Number of BMLs within subregion", "BML number", "count"),
    ),
    Attribute(
        "percent_bml",
        "% of lesion that is BML (excluding cyst)",
        3,
        aliases=(
            "% of lesion that is BML",
            "Percent of lesion that is BML (excluding cyst)",
            "Percent of lesion that is BML",
            "percent",
            "percentage",
            "% BML",
        ),
    ),
)
_CARTILAGE = (
    Attribute("size", "Size of lesion", 3, aliases=("lesion size",)),
    Attribute("depth", "Depth of lesion", 3, aliases=("lesion depth", "Percent of full-thickness loss")),
)
_GRADE = (Attribute("grade", "grade", 3),)
_BARE_GRADE = (Attribute("grade", None, 3),)
_MORPHOLOGY = (Attribute("morphology", "morphology", 8, "nominal"),)
_PRESENCE = (Attribute("presence", "presence", 1, "binary"),)
_CYST = (
    Attribute("presence", "presence", 1, "binary"),
    Attribute("tear_location", "tear_location", 3, "nominal"),
)
_TEAR = Attribute("complete_tear", "Complete Tear", 1, "binary")
_INSERTION = Attribute("bml_cyst", "Associated with BML/cyst at site of insertion or origin", 1, "binary")
_REPAIR = Attribute("repair", "ACL Repair", 1, "binary")
_SIGNAL = Attribute("signal_abnormality", "Signal Abnormality", 1, "binary")

_BOTH = ("medial", "lateral")
_CARTILAGE_SITES = (
    [("patella", side) for side in _BOTH]
    + [("femur", f"{side} {part}") for side in _BOTH for part in ("trochlea", "central", "posterior")]
    + [("tibia", f"{side} {part}") for side in _BOTH for part in ("anterior", "central", "posterior")]
)
_OSTEOPHYTE_SITES = (
    [("patella", part) for part in ("superior", "inferior", "medial", "lateral")]
    + [("femur", f"{side} {part}") for side in _BOTH for part in ("anterior", "central", "posterior")]
    + [("tibia", side) for side in _BOTH]
)
# Prompts 33, 35 and 37 ask without a wrapper, 45, 51 and 52 under another one.
_UNWRAPPED_OSTEOPHYTES = {33, 35, 37}
_PERIARTICULAR_SITES = (
    ("pes anserine bursa", "whole", "pes_anserine_bursitis_presence"),
    ("iliotibial band", "whole", "iliotibial_band_signal_presence"),
    ("popliteal fossa", "whole", "popliteal_cyst_presence"),
    ("infrapatellar bursa", "whole", "infrapatellar_bursitis_presence"),
    ("prepatellar bursa", "whole", "prepatellar_bursitis_presence"),
    ("knee joint", "anywhere", "ganglion_cyst_presence"),
    ("joint space", "anywhere", "loose_bodies_presence"),
)


def _questions() -> dict[int, Question]:
    rows: list[Question] = []

    def add(
        category: str,
        family: str,
        structure: str,
        subregion: str,
        wrapper: str | None,
        key: str,
        attributes: tuple[Attribute, ...],
    ) -> None:
        rows.append(Question(len(rows) + 1, category, family, structure, subregion, wrapper, key, attributes))

    for bone, part in [*_CARTILAGE_SITES, ("tibia", "subspinous")]:
        add("BML", "BML", bone, part, "MOAKS_scores", f"{bone} {part} BML", _BML)
    for bone, part in _CARTILAGE_SITES:
        add(
            "Cartilage",
            "cartilage",
            bone,
            part,
            "MOAKS_scores",
            f"{bone} {part} cartilage lesion",
            _CARTILAGE,
        )
    for bone, part in _OSTEOPHYTE_SITES:
        wrapper = None if len(rows) + 1 in _UNWRAPPED_OSTEOPHYTES else "MOAKS_scores"
        add("Osteophyte", "osteophyte", bone, part, wrapper, f"{bone} {part} osteophyte", _GRADE)
    fluid = "Synovitis & Effusion"
    add(fluid, "Hoffa-synovitis", "Hoffa's fat pad", "whole", "MOAKS_scores", "Hoffa-Synovitis", _GRADE)
    add(fluid, "effusion-synovitis", "joint cavity", "whole", "MOAKS_scores", "effusion-synovitis", _GRADE)
    for side, wrappers, grade in (
        ("medial", ("MOAKS_scores", "MOAKS_grade"), _BARE_GRADE),
        ("lateral", ("MOAKS_scores", "MOAKS_scores"), _GRADE),
    ):
        for border, wrapper in zip(("anterior", side), wrappers, strict=True):
            key = f"{side} meniscus {border} extrusion"
            add("Meniscus", "meniscal extrusion", f"{side} meniscus", f"{border} border", wrapper, key, grade)
    for side in _BOTH:
        for part, subregion in (
            ("anterior", "anterior horn"),
            ("body", "body"),
            ("posterior", "posterior horn"),
        ):
            wrapper = "MOAKS_grade" if side == "lateral" and part != "posterior" else "MOAKS_scores"
            key = f"{side} meniscus {part} morphology"
            add("Meniscus", "meniscal morphology", f"{side} meniscus", subregion, wrapper, key, _MORPHOLOGY)
    for family, subregion, suffix, attributes in (
        ("meniscal cyst", "whole", "cyst", _CYST),
        ("meniscal hypertrophy", "whole", "hypertrophy", _PRESENCE),
        ("meniscal root tear", "root", "root_tear", _PRESENCE),
    ):
        for side in _BOTH:
            add(
                "Meniscus",
                family,
                f"{side} meniscus",
                subregion,
                None,
                f"{side}_meniscal_{suffix}",
                attributes,
            )
    ligament = "Ligament & Tendon"
    add(ligament, "ligament/tendon", "ACL", "whole", None, "ACL", (_TEAR, _INSERTION, _REPAIR))
    add(ligament, "ligament/tendon", "PCL", "whole", None, "PCL", (_TEAR, _INSERTION))
    add(ligament, "ligament/tendon", "patellar tendon", "whole", None, "Patellar_Tendon", (_SIGNAL,))
    for structure, subregion, key in _PERIARTICULAR_SITES:
        add("Periarticular", "periarticular", structure, subregion, None, key, _PRESENCE)
    return {question.id: question for question in rows}


QUESTIONS: dict[int, Question] = _questions()
"""All questions by id, 1 to 69."""

_BY_KEY: dict[str, int] = {fold(question.prompt_key): question.id for question in QUESTIONS.values()}
_JSON_KEY = re.compile(r'"([^"\\\n]{1,80})"\s*:')


def question_for_key(key: str) -> Question | None:
    """The question whose lesion key is `key`, in any spelling; `None` if there is none."""
    question_id = _BY_KEY.get(fold(key))
    return None if question_id is None else QUESTIONS[question_id]


@lru_cache(maxsize=1024)
def question_for_prompt(prompt: str) -> Question | None:
    """The question that `prompt` asks, known by the JSON keys it wants back and not by its wording.

    Returns `None` when the prompt names no lesion key of the table, or keys of more than one question.
    """
    found = {_BY_KEY[folded] for key in _JSON_KEY.findall(prompt) if (folded := fold(key)) in _BY_KEY}
    return QUESTIONS[found.pop()] if len(found) == 1 else None


def question_number(prompt: str) -> int | None:
    """The number of the question that `prompt` asks."""
    question = question_for_prompt(prompt)
    return None if question is None else question.id
