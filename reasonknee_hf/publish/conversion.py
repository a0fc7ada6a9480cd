"""What a call of `convert` or `push` wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reasonknee_hf.publish.config_facts import ConfigFacts
from reasonknee_hf.publish.job import Job


@dataclass(frozen=True)
class Conversion:
    """What a call of `convert` or `push` wrote.

    Args:
        job: The options.
        configs: The written configs in the order of the card.
        labels: Structure name → label id of the masks.
        pull_request: URL of the pull request that was opened.
        stale: Files of earlier calls that no config names any more, and that are still there.
        plan: What a push would do that was asked to do nothing.
    """

    job: Job
    configs: tuple[ConfigFacts, ...]
    labels: Mapping[str, int]
    pull_request: str | None = None
    stale: tuple[str, ...] = ()
    plan: Mapping[str, Any] | None = None

    @property
    def files(self) -> list[str]:
        """All written tables, paths below the root."""
        return [name for config in self.configs for split in config.splits.values() for name in split.files]

    def told(self) -> dict[str, Any]:
        """Configs, splits, rows, bytes and files as plain JSON values."""
        configs = {
            config.name: {
                split: {"rows": facts.rows, "bytes": facts.file_bytes, "files": list(facts.files)}
                for split, facts in config.splits.items()
            }
            for config in self.configs
        }
        told = {"configs": configs, "pull_request": self.pull_request, "stale": list(self.stale)}
        return told | ({"plan": dict(self.plan)} if self.plan else {})
