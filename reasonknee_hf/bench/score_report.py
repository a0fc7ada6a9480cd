"""The report of a scored run: data, tables, one record per item, and the Hub's evaluation results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from reasonknee_hf.bench.metrics import Bootstrap
from reasonknee_hf.bench.outcome import STAGES, Outcome
from reasonknee_hf.bench.score_tables import Table, all_tables, headline
from reasonknee_hf.bench.scorer import Scorer
from reasonknee_hf.errors import ExtraMissingError, OptionError


@dataclass
class Report:
    """What [`score`][reasonknee_hf.bench.scoring.score] returns.

    Args:
        data: All figures as plain data; what `--json` writes.
        outcome: What came of each item.
        bootstrap: The resamples that the intervals come from.
        scorer: The benchmark.

    Examples:
        >>> rows = list(rk.load_dataset("bench", split="test", streaming=True, source="sample", masks=False))
        >>> report = rk.bench.score([], rows, rounds=0)
        >>> report.data["count"]["items"], report.item(0)["reason"]
        (124, 'missing')
    """

    data: dict[str, Any]
    outcome: Outcome
    bootstrap: Bootstrap
    scorer: Scorer

    def figure(self, name: str, kind: str = "micro") -> float | None:
        """A headline figure: `attribute_accuracy`, `item_accuracy`, `coverage`, `balanced_accuracy`, `iou`,
        ...

        Args:
            name: The figure.
            kind: `micro` or `macro`; balanced accuracy has `macro` only.

        Raises:
            OptionError: There is no such figure.
        """
        balanced = {"balanced_accuracy": {"macro": self.data["attributes"]["balanced_accuracy"]["macro"]}}
        known = self.data["grades"].get("overall", {}) | self.data["localisation"]["overall"] | balanced
        if kind not in known.get(name, {}):
            raise OptionError(f"No figure {name!r} ({kind}). Figures: {', '.join(sorted(known))}.")
        value: float | None = known[name][kind]["value"]
        return value

    def to_json(self) -> str:
        """The data as JSON text; numbers that are not defined are `null`."""
        return json.dumps(self.data, indent=1, allow_nan=False, ensure_ascii=False) + "\n"

    def text(self, *, compare_paper: bool = False) -> str:
        """The report for a terminal."""
        tables = [table.text() for table in self._tables(compare_paper)]
        title = f"{self.data['benchmark']}: {self.data['name']}"
        return "\n\n".join(["\n".join([title, *headline(self.data)]), *tables]) + "\n"

    def markdown(self, *, compare_paper: bool = False) -> str:
        """The report as Markdown."""
        tables = [table.markdown() for table in self._tables(compare_paper)]
        lines = "\n".join(f"- {line}" for line in headline(self.data))
        return "\n\n".join([f"## {self.data['benchmark']}: {self.data['name']}", lines, *tables]) + "\n"

    def _tables(self, compare_paper: bool) -> list[Table]:
        return all_tables(self.data, self.scorer if compare_paper else None)

    def items(self) -> Iterator[dict[str, Any]]:
        """One record per item, in the order of ids: stage, reason, repairs, span, grades, boxes."""
        for index in range(len(self.outcome.references)):
            yield self.item(index)

    def item(self, index: int) -> dict[str, Any]:
        """The record of the item at `index` of `outcome.references.ids`."""

        outcome, references = self.outcome, self.outcome.references
        reading, question = outcome.readings[index], references.questions[index]
        first, last = np.searchsorted(references.grade_item, [index, index + 1])
        truth = {references.grade_name[row]: int(references.truth[row]) for row in range(first, last)}
        stage = int(outcome.stage[index])
        overlap = float(outcome.iou[index])
        record: dict[str, Any] = {
            "id": references.ids[index],
            "question_id": question.id if question else None,
            "category": question.category if question else None,
            "stage": STAGES[stage] if stage >= 0 else None,
            "reason": outcome.reasons[index],
            "truth": truth,
            "grades": reading.grades if reading else {},
            "problems": reading.problems if reading else {},
            "box_truth": _box(references.boxes[index]),
            "box": _box(outcome.boxes[index]),
            "box_problem": str(outcome.box_problems[index]) or None,
            "iou": None if np.isnan(overlap) else overlap,
            "repairs": reading.repairs if reading else [],
            "notes": reading.notes if reading else [],
            "span": reading.span if reading else None,
        }
        return record if self.data["subset"] is None else record | {"subset": self.data["subset"]}

    def _repr_markdown_(self) -> str:
        """What notebooks show."""
        return self.markdown()

    def eval_results(
        self,
        *,
        dataset_id: str | None = None,
        task_id: str | None = None,
        revision: str | None = None,
        date: str | None = None,
        source_url: str | None = None,
    ) -> str:
        """YAML for a model repository's `.eval_results/`, made by `huggingface_hub`'s own classes.

        Two entries: item accuracy (micro) as `task_id`, and mean 3D IoU (micro) as `<task_id>_iou` where
        the answers hold boxes. The notes state the definition, the coverage, the rules and, if so, that
        this is a subset.

        Args:
            dataset_id: What was scored. Default: the `source` that was given to `score`; that of the benchmark
                only where its `revision` is named.
            task_id: Default: that of the benchmark.
            revision: Commit of the dataset. Default: that of the `source`.
            date: As `huggingface_hub` takes it.
            source_url: Likewise.

        Raises:
            ExtraMissingError: The installed `huggingface_hub` has no evaluation results.
        """
        try:
            from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml
        except ImportError as error:
            from huggingface_hub import __version__

            raise ExtraMissingError(
                f"huggingface_hub {__version__} has no evaluation results; install huggingface_hub>=1.4."
            ) from error
        import yaml  # type: ignore[import-untyped,unused-ignore]

        rules, count, source = self.data["rules"], self.data["count"], self.data["source"]
        task_id = task_id or self.scorer.task_id
        dataset_id = (
            dataset_id or source.get("id") or (self.scorer.dataset_id if revision else "unnamed references")
        )
        revision = revision or source.get("revision")
        subset = "" if self.data["subset"] is None else f"SUBSET of the benchmark: {self.data['subset']}. "
        about = (
            f"{subset}{self.data['name']}; {count['items']} items, patients: {count['patients']}; "
            f"rules {rules['version']}, {'strict' if rules['strict'] else 'repaired'} answers; "
            f"coverage {self.figure('coverage'):.3f}"
        )
        chosen = [(task_id, "item_accuracy", "all attributes of an item right, micro average")]
        if self.data["localisation"]["answers_hold_boxes"]:
            chosen.append((f"{task_id}_iou", "iou", f"mean 3D IoU, micro average, boxes: {rules['boxes']}"))
        entries = [
            EvalResultEntry(
                dataset_id=dataset_id,
                task_id=task,
                value=self.figure(figure),
                dataset_revision=revision,
                date=date,
                source_url=source_url,
                notes=f"{about}; {text}",
            )
            for task, figure, text in chosen
            if self.figure(figure) is not None
        ]
        return str(yaml.safe_dump(eval_result_entries_to_yaml(entries), sort_keys=False, allow_unicode=True))


def _box(values: Any) -> list[float] | None:
    return None if np.isnan(values).any() else [float(value) for value in values]
