"""What was read of one answer."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Reading:
    """What an answer says.

    Args:
        reason: `None` where every asked attribute has a valid grade, else the first reason why not.
        grades: The valid grades by short attribute name.
        problems: The reason for each asked attribute without a valid grade.
        box: Six numbers as answered, in the answer's own order and scale; `None` where there is no readable
            box.
        box_problem: Why a box that was given cannot be read.
        repairs: Names of the repairs used, in the order of use.
        notes: What was seen and did not have to be repaired: `reasoning`, `answer_tags`, `marker` (how the
            answer was set apart), `extra_key`, `earlier_answer` (another answer stood before),
            `repeated_answer` (the same one did).
        span: Where the object that counts stands in the answer's text.

    Examples:
        >>> from reasonknee_hf.bench import Reading
        >>> Reading(grades={"size": 2}).valid, Reading("no_json").reason
        (True, 'no_json')
    """

    reason: str | None = None
    grades: dict[str, int] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    box: tuple[float, ...] | None = None
    box_problem: str | None = None
    repairs: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    span: tuple[int, int] | None = None

    @property
    def valid(self) -> bool:
        return self.reason is None
