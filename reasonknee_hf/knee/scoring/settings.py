"""The five settings of the benchmark: what a model is shown and asked in each, item by item.

| setting | what the model gets |
|---|---|
| `zero_shot` | the question |
| `instruction` | the question, and what to look for and where the grades part |
| `gt_region` | the same, and the true region: as text, and as the frames around it |
| `sft` | the question, to a model trained on grades alone |
| `sft_cot` | the question, to a model trained on reasoning and then grades |

The question is the row's own prompt or, where a published question file is given, its prompt for the same
id. The guidance of `instruction` and `gt_region` is this package's own wording, unless a question file is
given: then that file is taken to be the one with the wanted wording (the published *guided* file for these
two settings).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from reasonknee_hf.errors import OptionError, PredictionError, RecordError
from reasonknee_hf.knee.moaks import CATEGORIES, QUESTIONS, Question
from reasonknee_hf.knee.scoring.box_reading import NAMES

Setting = Literal["zero_shot", "instruction", "gt_region", "sft", "sft_cot"]
SETTINGS: tuple[str, ...] = get_args(Setting)

_GUIDED = ("instruction", "gt_region")
_TARGETS = {"sft": "grades", "sft_cot": "reasoning_grades"}
_FRAMES: dict[str, dict[str, Any]] = {
    "upstream": {"window": "upstream", "slices": "all", "fps": 4.0},
    "region": {"window": "upstream", "slices": "those of the region", "fps": 4.0},
}

GUIDANCE = {
    "BML": (
        "A bone marrow lesion is a patch of bright, blurred signal in the marrow below the joint "
        "surface; vessels are thin and branch, lesions are not. Judge its extent in this subregion "
        "only: size and marrow share by thirds (below 33 %, 33-66 %, above 66 %), number as 0, 1, 2, "
        "or 3 for three and more."
    ),
    "cartilage": (
        "Follow the grey layer on the bone: healthy cartilage is smooth and evenly thick. Look for "
        "thinning, breaks in the contour and bare bone. Size is the share of the surface that is "
        "affected, depth the share of the lesion that goes down to the bone; both part at 10 % "
        "and 75 %."
    ),
    "osteophyte": (
        "An osteophyte is a bony spur at the margin of the joint. Judge how far the largest one "
        "sticks out, not its volume: none, small, medium, large."
    ),
    "Hoffa-synovitis": (
        "Look at the fat pad below the patella for diffuse bright signal: none, mild, moderate, severe."
    ),
    "effusion-synovitis": ("Judge how far bright fluid widens the joint cavity: none, small, medium, large."),
    "meniscal extrusion": (
        "Measure how far the meniscus reaches beyond the edge of the tibia, osteophytes left out: "
        "below 2 mm, from 2, from 3, from 5 mm."
    ),
    "meniscal morphology": (
        "A healthy meniscus is a dark wedge. Tell signal change inside it from tears that reach its "
        "surface, name the direction of a tear, and look for lost tissue (maceration)."
    ),
    "meniscal cyst": (
        "A cyst is a sharply bounded pocket of bright fluid beside the meniscus, often next to a tear."
    ),
    "meniscal hypertrophy": ("A hypertrophic meniscus is clearly larger than normal and keeps its shape."),
    "meniscal root tear": (
        "Follow the posterior root to the tibia: a gap, a step or bright signal across it is a tear."
    ),
    "ligament/tendon": (
        "Follow the band from end to end: it should be dark and unbroken. Look for a gap, for bright "
        "signal, for marrow changes where it inserts and for traces of a repair."
    ),
    "periarticular": (
        "Look around the joint for well-bounded bright fluid, or a loose body, at the place asked about."
    ),
}


def read_questions(path: str | Path) -> dict[int, str]:
    """Reads a published question file: one JSON object of question id to prompt.

    Raises:
        PredictionError: The file is not such a file.
    """
    try:
        table = json.loads(Path(path).read_text(encoding="utf-8-sig"))
        return {int(key): str(prompt) for key, prompt in table.items()}
    except (OSError, ValueError, AttributeError) as error:
        raise PredictionError(f"{path}: not a question file of id to prompt ({error}).") from error


def bench_items(
    rows: Iterable[Mapping[str, Any]],
    setting: Setting,
    *,
    questions: Mapping[int, str] | None = None,
    ask_box: bool = False,
    subset: str | None = None,
) -> Iterator[dict[str, Any]]:
    """What a model must answer, one item per row; no volume is opened.

    Args:
        rows: Rows of the `bench` config.
        setting: One of `SETTINGS`.
        questions: Prompts by question id, to be used instead of the rows' own.
        ask_box: Ends prompts that do not ask for a box with a request for one, so that places can be scored.
        subset: What part of the benchmark the rows are, if not all of it; repeated in each item.

    Yields:
        `id`, `setting`, `question_id`, `category`, `prompt`, `prompt_from` (`row` or `questions`), `image`
        (path or URL of the volume), `frames` (the recipe), `region` (the true box in `gt_region`, else
        `None`), `target` (what the model was trained to write, in `sft` and `sft_cot`).

    Raises:
        OptionError: There is no such setting.
        RecordError: A row has no prompt, and `questions` has none for it.
    """
    if setting not in SETTINGS:
        raise OptionError(f"There is no setting {setting!r}. Settings: {', '.join(SETTINGS)}.")
    for row in rows:
        question = QUESTIONS.get(row["question_id"]) if row["question_id"] is not None else None
        given = (questions or {}).get(question.id) if question else None
        text = given or row["prompt"]
        if not text:
            raise RecordError(
                f"Row {row['id']} has no prompt. Give a question file (questions=, --questions)."
            )
        region = row["bbox"] if setting == "gt_region" else None
        recipe = "upstream" if region is None else "region"
        frames = {"recipe": recipe, **_FRAMES[recipe]}
        if region is not None:
            frames["around"] = list(region)
        image = row.get("image")
        category = row.get("category")
        item = {
            "id": row["id"],
            "setting": setting,
            "question_id": row["question_id"],
            "category": CATEGORIES[category] if isinstance(category, int) else category,
            "prompt": item_prompt(text, question, setting, region, ask_box, guided=given is not None),
            "prompt_from": "row" if given is None else "questions",
            "image": image["path"] if isinstance(image, dict) else getattr(image, "path", image),
            "frames": frames,
            "region": None if region is None else list(region),
            "target": _TARGETS.get(setting),
        }
        yield item if subset is None else item | {"subset": subset}


def item_prompt(
    text: str, question: Question | None, setting: str, region: Any, ask_box: bool, *, guided: bool
) -> str:
    """The text that a model is asked for one item.

    Args:
        text: The question, as the row or a question file has it.
        question: What it asks, for the guidance; `None` if that is unknown.
        setting: One of `SETTINGS`.
        region: The true box to tell, six ints in voxels; `None` to tell none.
        ask_box: Ends a prompt that does not ask for a box with a request for one, unless the region is told.
        guided: Whether `text` holds its guidance already.
    """
    parts = [text]
    if setting in _GUIDED and question is not None and not guided:
        parts.insert(0, GUIDANCE[question.family])
    if region is not None:
        ends = ", ".join(f"{name} {value}" for name, value in zip(NAMES, region, strict=True))
        parts.insert(0, f"The structure lies in this region of the volume, in voxels, ends included: {ends}.")
    if ask_box and region is None and "bounding_box" not in text:
        wanted = f'"bounding_box": [{", ".join(NAMES)}]'
        parts.append(f"In the same JSON object give the region you judged, in voxels: {wanted}.")
    return "\n".join(parts)
