"""Real uploads of the real client to the origin server: what lies there afterwards, what travelled, what survives."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import threading

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hub.faults import Rule
from publishing import HAS_NIFTI, REPO, push_bench, read_plainly, rows_of, with_names
from support import in_fresh_process

from reasonknee_hf.errors import EndpointError, ForbiddenError, PublishError
from reasonknee_hf.hub.wire import retries
from reasonknee_hf.publish import destination as repository
from reasonknee_hf.publish.rules import card_problems, front_matter


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(retries, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(retries, "LONGEST_PAUSE", 0.02)
    monkeypatch.setenv("REASONKNEE_RETRY_TIME", "10")


def files_of(origin, ref: str = "main", repo: str = REPO) -> dict[str, bytes]:
    return {path: bytes(blob.content) for path, blob in origin.store.repos[repo].at(ref).files.items()}


def card_of(origin, ref: str = "main") -> str:
    return files_of(origin, ref)["README.md"].decode()


def metadata_of(origin, ref: str = "main") -> dict:
    return yaml.safe_load(front_matter(card_of(origin, ref))[0])


def config_names(origin) -> list[str]:
    return [one["config_name"] for one in metadata_of(origin)["configs"]]


def commits_of(origin) -> int:
    return len(origin.store.repos[REPO].commits) - 1  # without the initial one


def status(code: int):
    def fault(reply) -> None:
        reply.status, reply.body = code, json.dumps({"error": f"fault {code}"}).encode()
        reply.headers["X-Error-Message"] = f"fault {code}"

    return fault


# --- loads -------------------------------------------------------------------------------------------------------


def test_pushed_repo_loads_without_the_package(origin, sample_dir, tmp_path):
    push_bench(origin, sample_dir, private=True)
    assert origin.store.repos[REPO].private
    volumes = "bench_volumes" if HAS_NIFTI else "bench_volumes_bytes"
    found = read_plainly(REPO, "test", ["bench", volumes], tmp_path, HF_ENDPOINT=origin.url, HF_TOKEN="hf_x")
    assert (
        found["bench"]["streamed"]
        == found["bench"]["prepared"]
        == with_names(rows_of(sample_dir, "bench", "test"), "bench")
    )
    assert found[volumes]["streamed"] == found[volumes]["prepared"]
    assert [len(row["image"]["voxels"]) for row in found[volumes]["streamed"]] == [64, 64]


def test_what_the_viewer_cannot_show_is_said_before_it_travels(origin, sample_dir, caplog):
    push_bench(origin, sample_dir, volumes="none", frames=100, limit=12)
    (said,) = [record.getMessage() for record in caplog.records if "viewer" in record.getMessage()]
    assert re.search(r"bench: the first 10 rows have \d{3},\d{3} bytes", said)
    caplog.clear()
    push_bench(origin, sample_dir, volumes="none", name="short", limit=12)
    assert not [record for record in caplog.records if "viewer" in record.getMessage()]


def test_the_three_lines_of_the_card_run(origin, sample_dir, tmp_path):
    push_bench(origin, sample_dir, volumes="none")
    (code,) = re.findall(r"```python\n(.*?)```", card_of(origin), re.DOTALL)
    out = in_fresh_process(code, tmp_path, HF_ENDPOINT=origin.url, HF_HOME=str(tmp_path), HF_TOKEN="hf_x")
    assert "'question_id': 1" in out


def test_stock_push_of_our_datasets_carries_bytes(origin, sample_dir, tmp_path):
    """`ds.push_to_hub` of `datasets` on a dataset of ours: bytes travel, not paths of this disk."""
    script = """
    import sys
    import reasonknee_hf
    rows = reasonknee_hf.load_dataset("scans", split="test", source=sys.argv[1])
    rows.push_to_hub("me/stock", split="test", token="hf_x")
    """
    in_fresh_process(
        script, tmp_path, str(sample_dir), HF_ENDPOINT=origin.url, HF_HOME=str(tmp_path / "home")
    )
    (name,) = [path for path in files_of(origin, repo="me/stock") if path.endswith(".parquet")]
    (tmp_path / "t.parquet").write_bytes(files_of(origin, repo="me/stock")[name])
    for row in pq.read_table(tmp_path / "t.parquet").to_pylist():
        for column in ("image", "mask"):
            assert len(row[column]["bytes"]) > 1000
            assert "/" not in row[column]["path"]
    if HAS_NIFTI:
        found = read_plainly(
            "me/stock", "test", ["default"], tmp_path, HF_ENDPOINT=origin.url, HF_TOKEN="hf_x"
        )
        assert [len(row["mask"]["voxels"]) for row in found["default"]["streamed"]] == [64, 64]


def test_pull_request(origin, sample_dir):
    push_bench(origin, sample_dir, volumes="none")
    done = push_bench(origin, sample_dir, config="full", volumes="none", create_pr=True)
    assert done.pull_request == f"{origin.url}/datasets/{REPO}/discussions/1"
    assert config_names(origin) == ["bench"]
    names = [one["config_name"] for one in metadata_of(origin, "refs/pr/1")["configs"]]
    assert names == ["bench", "full"]


def test_branch(origin, sample_dir):
    push_bench(origin, sample_dir, volumes="none", branch="next")
    assert "README.md" not in files_of(origin)
    assert metadata_of(origin, "next")["configs"][0]["config_name"] == "bench"


def test_files_beside_travel_too(origin, sample_dir):
    push_bench(origin, sample_dir, volumes="files")
    assert sum(name.endswith(".nii.gz") for name in files_of(origin)) == 4


# --- few commits, resumable --------------------------------------------------------------------------------------


def test_card_comes_last_and_commits_are_few(origin, sample_dir, monkeypatch):
    monkeypatch.setattr(repository, "COMMIT_FILES", 4)
    push_bench(origin, sample_dir, config="full", shard_bytes=300_000)
    assert len([name for name in files_of(origin) if name.endswith(".parquet")]) > 8
    assert commits_of(origin) <= 4
    history = list(origin.store.repos[REPO].commits.values())
    assert [("README.md" in commit.files) for commit in history] == [False] * (len(history) - 1) + [True]


def test_the_same_push_again_sends_nothing(origin, sample_dir):
    push_bench(origin, sample_dir)
    before = files_of(origin), commits_of(origin)
    origin.clear()
    push_bench(origin, sample_dir)
    assert (files_of(origin), commits_of(origin)) == before
    assert origin.requests("_lfs", "PUT") == []


KILLED = """
import os, sys
from reasonknee_hf.hub.wire import retries
from reasonknee_hf.publish import destination as repository
from reasonknee_hf.publish.push import push

repository.COMMIT_FILES = 2
upload, left = repository.Repository.upload, int(sys.argv[3])
def limited(self, names):
    global left
    left -= 1
    if left < 0:
        os._exit(9)
    upload(self, names)
repository.Repository.upload = limited
push("me/knee", "full", source=sys.argv[1], on_error="null", hub_endpoint=sys.argv[2], token="hf_x",
     shard_bytes=300_000, verify=False, public_volumes=True)
"""


def test_a_killed_push_sends_only_what_is_missing(origin, second_origin, sample_dir):
    killed = subprocess.run([sys.executable, "-c", KILLED, str(sample_dir), origin.url, "5"], check=False)
    assert killed.returncode == 9
    assert "README.md" not in files_of(origin)
    sent = {request.path for request in origin.requests("_lfs/", "PUT")}
    assert len(sent) == 5
    origin.clear()
    push_bench(origin, sample_dir, config="full", shard_bytes=300_000)
    again = {request.path for request in origin.requests("_lfs/", "PUT")}
    assert not sent & again
    push_bench(second_origin, sample_dir, config="full", shard_bytes=300_000)
    assert files_of(origin) == files_of(second_origin)


def test_disk_full_sends_no_card(origin, sample_dir, monkeypatch, tmp_path):
    from reasonknee_hf.publish import parquet

    write = parquet.pq.ParquetWriter.write_table
    left = [2]

    def full(writer, *args, **kwargs):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        return write(writer, *args, **kwargs)

    monkeypatch.setattr(parquet.pq.ParquetWriter, "write_table", full)
    with pytest.raises(PublishError, match="disk"):
        push_bench(origin, sample_dir, config="full", folder=tmp_path)
    assert files_of(origin) == {}
    assert not list(tmp_path.glob("*/.*"))


# --- retries -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [409, 412, 503, 429])
def test_passing_failures_of_a_commit_are_retried(origin, sample_dir, code):
    """Here the first commit is made and only its answer is lost, as with a gateway that gives up waiting."""
    origin.faults(Rule(status(code), r"^POST .*/commit/", times=3))
    push_bench(origin, sample_dir, volumes="none")
    assert config_names(origin) == ["bench"]
    assert card_of(origin).count("## Config `bench`") == 1
    assert 4 <= len(origin.requests("/commit/", "POST")) <= 5


@pytest.mark.parametrize("code", [409, 412, 503])
def test_lasting_failures_end_with_the_reason(origin, sample_dir, code, monkeypatch):
    monkeypatch.setenv("REASONKNEE_RETRY_TIME", "0.3")
    origin.faults(Rule(status(code), r"^POST .*/commit/"))
    with pytest.raises(EndpointError, match=str(code)):
        push_bench(origin, sample_dir, volumes="none")
    assert len(origin.requests("/commit/", "POST")) > 1


def test_a_token_that_may_not_write_is_not_tried_again(origin, sample_dir):
    origin.faults(Rule(status(403), r"^POST .*/commit/"))
    with pytest.raises(ForbiddenError, match="create_pr=True"):
        push_bench(origin, sample_dir, volumes="none")
    assert len(origin.requests("/commit/", "POST")) == 1


def test_cut_connections_are_retried(origin, sample_dir):
    def cut(reply) -> None:
        reply.cut_at, reply.cut_how = 0, "rst"

    origin.faults(Rule(cut, r"^POST .*/commit/", times=2), Rule(cut, r"^GET .*/revision/", skip=2, times=1))
    push_bench(origin, sample_dir, volumes="none")
    assert config_names(origin) == ["bench"]
    assert origin.rules[0].times < 0
    assert origin.rules[1].times < 0


def test_failing_upload_of_a_shard_is_retried(origin, sample_dir):
    origin.faults(Rule(status(503), r"^POST .*/info/lfs/objects/batch", times=2))
    push_bench(origin, sample_dir, volumes="none")
    assert config_names(origin) == ["bench"]


# --- others' work ------------------------------------------------------------------------------------------------

HAND_WRITTEN = """---
# a comment of theirs
license: cc-by-4.0
viewer: true
my_key:   {odd: [1,  2]}   # unknown to us
tags: [knee, "theirs"]
configs:
- config_name: other
  data_files: other/*.parquet
- config_name: second
  default: true
  data_files:
  - split: test
    path: second/*.parquet
---
# A title of theirs

Words of theirs.

<!-- reasonknee_hf:begin "elsewhere" -->
not ours
<!-- reasonknee_hf:end "elsewhere" -->

Last words.
"""


def parquet(columns: dict) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


def put_theirs(origin, last: str = "") -> None:
    others = {
        "other/a.parquet": parquet({"x": [1]}),
        "second/b.parquet": parquet({"y": [2]}),
        "notes.txt": "theirs",
    }
    origin.put_tree(REPO, {"README.md": HAND_WRITTEN + last, **others})


def test_card_and_files_of_others_stay(origin, sample_dir, tmp_path):
    put_theirs(origin)
    before = files_of(origin)
    push_bench(origin, sample_dir, volumes="none")
    after = files_of(origin)
    assert {name: after[name] for name in before if name != "README.md"} == {
        name: before[name] for name in before if name != "README.md"
    }
    lines = card_of(origin).splitlines()
    configs = yaml.safe_load(front_matter(HAND_WRITTEN)[0])["configs"]
    assert metadata_of(origin)["configs"][:2] == configs
    assert config_names(origin) == ["other", "second", "bench"]
    assert "default" not in metadata_of(origin)["configs"][2]
    kept = [
        line for line in HAND_WRITTEN.splitlines() if not line.startswith(("configs", "- ", "  ", "tags"))
    ]
    position = iter(lines)
    assert all(line in position for line in kept)  # all of theirs, in their order
    assert metadata_of(origin)["tags"][:2] == ["knee", "theirs"]
    assert card_problems(card_of(origin)) == []
    found = read_plainly(REPO, "test", ["second", "bench"], tmp_path, HF_ENDPOINT=origin.url)
    assert found["second"]["streamed"] == found["second"]["prepared"] == [{"y": 2}]
    assert found["bench"]["prepared"] == with_names(rows_of(sample_dir, "bench", "test"), "bench")


def test_a_repository_that_is_read_as_another_format_is_refused(origin, sample_dir):
    tables = {"a/1.csv": "x\n1\n", "a/2.csv": "x\n1\n"}
    origin.put_tree(REPO, {"README.md": HAND_WRITTEN.replace("other/*.parquet", "a/*.csv"), **tables})
    with pytest.raises(PublishError, match=r"first config of .*, other, is of files such as a/1\.csv"):
        push_bench(origin, sample_dir, volumes="none")
    assert origin.requests("_lfs/", "PUT") == []


def test_a_card_that_cannot_be_read_is_not_taken_for_absent(origin, sample_dir, monkeypatch):
    monkeypatch.setenv("REASONKNEE_RETRY_TIME", "1")
    put_theirs(origin, "not in the client's cache\n")
    origin.faults(Rule(status(403), r"^(HEAD|GET) .*/resolve/.*README"))
    with pytest.raises(EndpointError, match=r"reading README\.md"):
        push_bench(origin, sample_dir, volumes="none")
    assert card_of(origin) == HAND_WRITTEN + "not in the client's cache\n"
    assert origin.requests("_lfs/", "PUT") == []


def test_two_pushes_at_once_both_survive(origin, sample_dir):
    barrier = threading.Barrier(2)
    finish = repository.Repository.commit
    failures = []

    def commit(self, operations, message, parent=None):
        if parent is not None and not getattr(self, "met", False):
            self.met = True
            barrier.wait(60)  # both have merged the card of the same commit
        return finish(self, operations, message, parent)

    def run(name: str) -> None:
        try:
            push_bench(origin, sample_dir, name=name, volumes="none")
        except Exception as error:
            failures.append(error)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repository.Repository, "commit", commit)
        threads = [threading.Thread(target=run, args=(name,)) for name in ("left", "right")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    assert failures == []
    assert sorted(config_names(origin)) == ["left", "right"]
    assert any(request.status == 412 for request in origin.requests("/commit/", "POST"))
    assert card_of(origin).count("## Config `") == 2


def test_smaller_data_remove_stale_shards_in_the_same_commit(origin, sample_dir):
    push_bench(origin, sample_dir, config="full", shard_bytes=300_000)
    large = {name for name in files_of(origin) if name.endswith(".parquet")}
    before = commits_of(origin)
    push_bench(origin, sample_dir, config="full", splits="test", limit=3)
    small = {name for name in files_of(origin) if name.endswith(".parquet")}
    assert not large & small
    assert len(small) == 2
    assert commits_of(origin) == before + 1
    rows = datasets.load_dataset(
        "parquet",
        data_files=[
            f"{origin.url}/datasets/{REPO}/resolve/main/{name}" for name in small if "volumes" not in name
        ],
    )
    assert rows["train"].num_rows == 3


def test_another_config_is_deleted_only_when_told(origin, sample_dir):
    put_theirs(origin)
    push_bench(origin, sample_dir, volumes="none")
    push_bench(origin, sample_dir, volumes="none", name="mine")
    assert "other/a.parquet" in files_of(origin)
    push_bench(origin, sample_dir, volumes="none", name="mine", delete_configs=["other", "bench"])
    left = files_of(origin)
    assert "other/a.parquet" not in left
    assert not any(name.startswith("bench/") for name in left)
    assert {"second/b.parquet", "notes.txt"} <= set(left)
    assert config_names(origin) == ["second", "mine"]
    assert "## Config `bench`" not in card_of(origin)
    assert "Words of theirs." in card_of(origin)


# --- further --------------------------------------------------------------------------------------------------


def test_known_defects_are_on_the_card(origin, sample_dir):
    push_bench(origin, sample_dir, volumes="none", verify=True)
    told = card_of(origin).partition("### Known defects")[2]
    assert "Found in the release by" in told
    assert "published" in told  # the sample has fewer scans than the published tables
    assert str(sample_dir) not in card_of(origin)


def test_command(origin, sample_dir, tmp_path):
    command = [
        sys.executable, "-m", "reasonknee_hf", "push", REPO, "--config", "bench", "--source", str(sample_dir),
        "--on-error", "null", "--volumes", "none", "--private", "--token", "hf_x", "--hub", origin.url,
        "--branch", "side", "--limit", "4",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == REPO
    assert metadata_of(origin, "side")["dataset_info"][0]["splits"][0]["num_examples"] == 4
    refused = subprocess.run([*command[:4], "a b"], capture_output=True, text=True, timeout=120)
    assert refused.returncode == 1
    assert refused.stderr.startswith("reasonknee: 'a b' is no repository id")
