"""Memory and bytes of reading a large annotation file. Seconds are for the benchmarks."""

from __future__ import annotations

import json

import pytest
from support import files_below, in_fresh_process, text_release

import reasonknee_hf

SCANS = 1700  # 105,400 records, 208 MB
REPO = "someone/knees"

MEASURED = """
    import json, sys
    from itertools import islice
    import datasets, numpy
    if datasets.config.TORCH_AVAILABLE:
        import torch.utils.data  # datasets makes its streams torch datasets
    def peak():
        return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024
    base = peak()
    import reasonknee_hf
    ds = reasonknee_hf.load_dataset("full", split="train", streaming=True, source=sys.argv[1])
    rows = sum(1 for _ in ds)
    print(json.dumps([rows, peak() - base]))
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    return text_release(tmp_path_factory.mktemp("large") / "release", SCANS)


def test_peak_memory_of_all_rows(large, tmp_path):
    rows, megabytes = json.loads(in_fresh_process(MEASURED, tmp_path, str(large)))
    assert rows == 62 * SCANS
    print(f"peak above the interpreter with datasets: {megabytes:.0f} MB")
    assert megabytes < 64


def test_bytes_before_the_first_row(large, origin):
    path = large / "data/generate_data/train.json"
    origin.put_tree(REPO, files_below(large))
    ds = reasonknee_hf.load_dataset("full", split="train", streaming=True, source=REPO, endpoint=origin.url)
    origin.log.clear()
    rows = iter(ds)
    next(rows)
    asked = origin.requests("train.json")
    assert len(asked) == 1
    assert asked[0].range is None
    print(f"sent before the first row: {asked[0].sent / 1e6:.2f} MB of {path.stat().st_size / 1e6:.0f} MB")
    assert asked[0].sent < 1_500_000
    rows.close()


def test_a_warm_index_seeks_to_a_row(large, origin):
    origin.put_tree(REPO, files_below(large))

    def from_row(start):
        return reasonknee_hf.load_dataset(
            "full", split="train", streaming=True, source=REPO, endpoint=origin.url, start=start
        )

    expected = next(iter(from_row(90_000)))["id"]
    origin.log.clear()
    rows = iter(from_row(90_000))
    assert next(rows)["id"] == expected
    rows.close()
    assert origin.sent("train.json") < 1_000_000


def test_workers_read_little_more_than_their_share(large, origin):
    torch = pytest.importorskip("torch")
    origin.put_tree(REPO, files_below(large))
    ds = reasonknee_hf.load_dataset("full", split="train", streaming=True, source=REPO, endpoint=origin.url)
    size = (large / "data/generate_data/train.json").stat().st_size
    origin.log.clear()
    loader = torch.utils.data.DataLoader(ds, batch_size=None, num_workers=4, collate_fn=lambda row: row["id"])
    assert sum(1 for _ in loader) == 62 * SCANS
    assert origin.sent("train.json") < 1.05 * size
