"""What cards of 3DReasonKnee say. Creators, title and licence: the dataset's page and paper (arXiv 2510.20967)."""

from __future__ import annotations

from reasonknee_hf.knee.layout import DEFAULT_SOURCE
from reasonknee_hf.publish.card_words import CardWords

_TERMS = """\
- Terms of the MRI data, and of whatever shows their voxels (volumes, crops, pictures): those of the
  Osteoarthritis Initiative, not CC BY 4.0; see below."""

_LIMITS = """\
### The MRI data

The volumes come from the [Osteoarthritis Initiative](https://nda.nih.gov/oai) (OAI), which gives them to registered users under its own terms of
use. The licence above does not replace those terms: whoever passes volumes on, or uses them, answers for having the right to.

### Limits of use

For research. Not a medical device, not for diagnosis: the grades are readings of single scans of one cohort and one sequence (sagittal 3D DESS),
the reasoning is text of one group of annotators, and boxes are taken as published. People of the cohort must not be re-identified."""  # noqa: E501

KNEE_CARD = CardWords(
    name="3DReasonKnee",
    title="3DReasonKnee: Advancing Grounded Reasoning in Medical Vision Language Models",
    creators=(
        "Sraavya Sambara",
        "Sung Eun Kim",
        "Xiaoman Zhang",
        "Luyang Luo",
        "Shreya Johri",
        "Mohammed Baharoon",
        "Du Hyun Ro",
        "Pranav Rajpurkar",
    ),
    arxiv="2510.20967",
    published="2025-10-23",
    source=DEFAULT_SOURCE,
    licence="cc-by-4.0",
    licence_url="https://creativecommons.org/licenses/by/4.0/",
    citation="sambara2025reasonknee",
    terms=_TERMS,
    limits=_LIMITS,
    tags=("medical", "mri", "knee", "3d", "moaks", "nifti"),
    about="Grounded reasoning about knee MRI",
    scans="Knee MRI volumes with their masks, one row a scan.",
    rows="Questions about knee MRI volumes (sagittal 3D DESS): each row asks for the MOAKS grades of one structure, "
    "says where to look and what the answer is.",
    changes=(
        "Prompts were matched to question ids, categories and anatomical sites.",
        "Grades are listed as (lesion, attribute, grade) records beside the published object, which is kept.",
        "Boxes are six integers; nothing was moved or clipped.",
        "The text before `Final diagnosis:` has a column of its own.",
    ),
    meanings={
        "scan_id": "key of the scan: patient, visit, study, series, side",
        "patient_id": "as published, leading zeros kept",
        "visit": "`00M` … `48M`",
        "study": "as published",
        "series": "as published",
        "knee_side": "side of the knee",
        "question_id": "1 … 69; null where the prompt is unknown",
        "category": "one of the seven of ReasonKnee-Bench",
        "cot": "the reasoning",
        "final_diagnosis": "the published JSON value",
        "grades": "MOAKS grades, one record an attribute",
    },
)
