"""What cards of DeepTumorVQA 2.0 say. Licences and limits: the dataset's card and its public repository."""

from __future__ import annotations

from reasonknee_hf.publish.card_words import CardWords
from reasonknee_hf.tumor.tumor_files import SOURCE, VOLUMES

_TERMS = f"""\
- Terms of the CT data, and of whatever shows their voxels (volumes, pictures, videos): those of their sources, by way
  of [{VOLUMES}](https://huggingface.co/datasets/{VOLUMES}), not CC BY 4.0; see below."""

_LIMITS = f"""\
### The CT data

The volumes come from [{VOLUMES}](https://huggingface.co/datasets/{VOLUMES}) and the collections that it is made of, each under terms of its own.
The licence above does not replace those terms: whoever passes volumes on, or uses them, answers for having the right to.

### Limits of use

For research and teaching. Not a medical device, not for diagnosis: questions are made by programs from reports and segmentations. Benchmark and
pool are one source: whoever trains on the pool has no outside test. Questions of version 1.0 are CC BY-NC 4.0 and must not be mixed with these."""  # noqa: E501

TUMOR_CARD = CardWords(
    name="DeepTumorVQA 2.0",
    title="DeepTumorVQA: A Hierarchical 3D CT Benchmark for Stage-Wise Evaluation of Medical VLMs and Tool-Augmented"
    " Agents",
    creators=("The authors of DeepTumorVQA",),
    arxiv="2605.09679",
    published="2026-05-03",
    source=SOURCE,
    licence="cc-by-4.0",
    licence_url="https://creativecommons.org/licenses/by/4.0/",
    citation="deeptumorvqa2026",
    terms=_TERMS,
    limits=_LIMITS,
    tags=("medical", "ct", "abdomen", "3d", "nifti"),
    about="Questions about abdominal CT, stage by stage",
    scans="CT volumes, one row a volume.",
    rows="Questions about abdominal CT volumes in four stages: recognition, measurement, visual and medical reasoning.",
    changes=(
        "The options of a question are listed as letter and text; the published text is kept in `record`.",
        "Spacing and shape are numbers, NaN is null, and `lesion` has a truth value beside its published text.",
        "Subtypes and stages are written as in the published schema.",
    ),
    meanings={
        "scan_id": "id of the volume, `BDMAP_` and eight digits",
        "question_id": "number of the subtype, 1 to 42; null for an unknown one",
        "question": "what is asked, without options",
        "answer": "the right answer as text",
        "organ": "which organ is asked about",
        "sex": "as published",
        "age": "in years",
        "scanner": "as published",
        "contrast": "phase of contrast, as published",
        "stage": "recognition, measurement, visual reasoning or medical reasoning",
        "subtype": "one of 42",
        "answer_type": "numeric, binary or categorical",
        "options": "letter and text of each option",
        "correct_option": "letter of the right one",
        "lesion": "as published: a truth value or a word",
        "about_lesion": "its truth value; null for a word",
        "requires_tools": "tools of the reference trajectory",
        "spacing": "mm along the axes of the file, as published",
        "shape": "voxels along the axes of the file, as published",
        "conversations": "turns of an agent: who speaks (`from`), and what it says (`value`)",
        "tools": "name, description and parameters (as JSON) of each tool that it had",
        "record": "the published record as JSON",
    },
)
