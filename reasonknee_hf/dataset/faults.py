"""What `on_error="skip"` left out and `on_error="null"` emptied, kept across workers and processes.

Every process appends to one file, so that the parent of loader workers knows what they met.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections import Counter
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

from reasonknee_hf.hub.disk import entries, our_folders, prune
from reasonknee_hf.hub.wire.mirrors import endpoint_counts

logger = logging.getLogger(__name__)


_STREAM = "stream "
# Of streams that have ended, and which nobody can ask any more.
_STREAMS_KEPT = 256
_STREAM_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class Fault:
    """One thing that did not fit.

    Args:
        action: `"skipped"`: the row was left out; `"nulled"`: it was kept, with a column null.
        row: Id of the row, or of the scan in the config `scans`.
        reason: What was found.
    """

    action: str
    row: str
    reason: str


@dataclass(frozen=True)
class Report:
    """What an iteration or a preparation met.

    Args:
        faults: Each once, in the order in which they were met first.
    """

    faults: tuple[Fault, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """How many rows were skipped, and how many kept with a null column."""
        rows = {(fault.action, fault.row) for fault in self.faults}
        return dict(Counter(action for action, _ in rows))

    @property
    def endpoints(self) -> list[dict[str, Any]]:
        """What this process has asked of each Hub and mirror; see [`endpoint_counts`]."""
        return endpoint_counts()

    def __bool__(self) -> bool:
        return bool(self.faults)

    def __str__(self) -> str:
        if not self.faults:
            return "no row was left out or emptied"
        counts = ", ".join(f"{count:,} rows {action}" for action, count in sorted(self.counts.items()))
        rows: dict[tuple[str, str], list[str]] = {}  # the rows of a scan share what is wrong with its volume
        for fault in self.faults:
            rows.setdefault((fault.action, fault.reason), []).append(fault.row)
        shown = [
            f"  {some[0]}{f' and {len(some) - 1:,} more' if some[1:] else ''} {action}: {reason}"
            for (action, reason), some in list(rows.items())[:20]
        ]
        more = [f"  and {len(rows) - 20:,} more reasons"] if len(rows) > 20 else []
        return "\n".join([counts, *shown, *more])


@dataclass
class FaultLog:
    """Where faults are kept. Pickles as the name of its file.

    Args:
        name: Tells this log from others on the machine.
    """

    name: str
    _seen: set[Fault] = field(default_factory=set, repr=False, compare=False)

    def __reduce__(self) -> tuple[type[FaultLog], tuple[str]]:
        return FaultLog, (self.name,)

    @classmethod
    def of_stream(cls) -> FaultLog:
        """The log of one stream. It is found through that stream alone, so only those of late are kept."""
        return cls(f"{_STREAM}{uuid4().hex}")

    @property
    def path(self) -> Path:
        """The file; it exists once there is a fault."""
        folder = our_folders()["faults"]
        if self.name.startswith(_STREAM):
            folder /= "streams"
        return folder / f"{sha256(self.name.encode()).hexdigest()[:32]}.jsonl"

    def add(self, fault: Fault) -> None:
        """Keeps a fault; one that this process has met before is not kept again."""
        if fault in self._seen:
            return
        self._seen.add(fault)
        line = json.dumps([fault.action, fault.row, fault.reason]) + "\n"
        try:
            path = self.path
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                if self.name.startswith(_STREAM):
                    prune(entries(path.parent), _STREAM_BYTES, _STREAMS_KEPT)
            # One write of one line: processes that append at the same time do not mix their lines.
            handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(handle, line.encode())
            finally:
                os.close(handle)
        except OSError as error:
            logger.warning("%s %s, which only this process will report (%s)", fault.row, fault.action, error)

    def report(self) -> Report:
        """All faults that any process has kept."""
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except OSError:
            lines = []
        kept = (Fault(*json.loads(line)) for line in lines)
        return Report(tuple(dict.fromkeys((*kept, *self._seen))))

    def clear(self) -> None:
        """Forgets all faults."""
        self._seen.clear()
        with contextlib.suppress(OSError):
            self.path.unlink()
