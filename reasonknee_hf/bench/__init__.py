"""ReasonKnee-Bench: score grounding and grading, and say why a model fails.

from reasonknee_hf.bench import score

report = score("answers.jsonl", reasonknee_hf.load_dataset("bench", split="test", streaming=True))
print(report.text(compare_paper=True))
"""

from reasonknee_hf.bench.answer_reading import Reading, read_answer
from reasonknee_hf.bench.box_reading import BoxConvention, iou
from reasonknee_hf.bench.priors import Priors, count_grades, load_priors
from reasonknee_hf.bench.references import read_references
from reasonknee_hf.bench.score_report import Report
from reasonknee_hf.bench.scoring import score

__all__ = [
    "BoxConvention",
    "Priors",
    "Reading",
    "Report",
    "count_grades",
    "iou",
    "load_priors",
    "read_answer",
    "read_references",
    "score",
]
