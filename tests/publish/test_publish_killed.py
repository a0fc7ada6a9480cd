"""kill -9 wherever it comes, ten times in a row: the next call goes on, and leaves what one call alone would."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections import Counter

import pytest
from publishing import files_of, push_bench
from support import files_below

from reasonknee_hf.publish import destination
from reasonknee_hf.publish.convert import convert

KILLS = 10


def killed_after(events: int | None, call) -> int | None:
    """Runs a call in a fork of this process, which is killed after so many Python events; how many a whole one has."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        seen = 0

        def count(frame, event, arg):
            nonlocal seen
            seen += 1
            if seen == events:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.setprofile(count)
        try:
            call()
        finally:
            sys.setprofile(None)
            os.write(write, str(seen).encode())
            os._exit(0)
    os.close(write)
    _, status = os.waitpid(child, 0)
    with os.fdopen(read) as told:
        text = told.read()
    assert os.WIFSIGNALED(status) == (not text)
    return int(text) if text else None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_push_that_is_killed_again_and_again(origin, second_origin, sample_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(destination, "COMMIT_FILES", 3)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    given = {"config": "full", "shard_bytes": 300_000, "splits": "test"}
    whole = killed_after(None, lambda: push_bench(second_origin, sample_dir, **given))
    lot = random.Random(5)
    for _ in range(KILLS):
        killed_after(lot.randrange(1, whole), lambda: push_bench(origin, sample_dir, **given))
    push_bench(origin, sample_dir, **given)
    assert files_of(origin) == files_of(second_origin)
    assert list(tmp_path.iterdir()) == []
    sent = Counter(request.path for request in origin.requests("_lfs/", "PUT"))
    alone = Counter(request.path for request in second_origin.requests("_lfs/", "PUT"))
    assert sent.keys() == alone.keys()
    assert sum((sent - alone).values()) <= KILLS  # for each kill the part in flight


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_conversion_that_is_killed_again_and_again(sample_dir, tmp_path, full_folder):
    out = tmp_path / "knee"
    given = {"source": str(sample_dir), "on_error": "null"}
    whole = killed_after(None, lambda: convert(tmp_path / "other" / "knee", "full", **given))
    lot = random.Random(6)
    for _ in range(KILLS):
        killed_after(lot.randrange(1, whole), lambda: convert(out, "full", **given))
    convert(out, "full", **given)
    assert files_below(out) == files_below(full_folder)
    hidden = [path for path in out.rglob(".*") if path.name != ".lock"]
    assert hidden == []
