"""The origin server and olah satisfy the real clients, so that tests against them mean something."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap

import pytest
from huggingface_hub import CommitOperationAdd, HfApi, HfFileSystem, hf_hub_download
from huggingface_hub.utils import (
    EntryNotFoundError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

REPO = "owner/name"
BIG = random.Random(0).randbytes(300_000)
FILES = {"README.md": "---\n---\nhello\n", "data/masks_aa": BIG, "data/a b+ü.csv": b"x,y\n1,2\n"}


def run_client(script: str, endpoint: str, tmp_path, **env: str) -> str:
    """Runs a script in a fresh process whose clients know only `endpoint`."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, cwd=tmp_path,
        env={**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "home"), **env},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(params=["origin", "olah"])
def endpoint(request, olah_origin):
    if request.param == "olah":
        return request.getfixturevalue("olah")
    olah_origin.clear()
    return olah_origin.url


def test_reads(endpoint, olah_origin, tmp_path):
    sha = olah_origin.put_tree(REPO, FILES)
    api = HfApi(endpoint=endpoint)
    info = api.dataset_info(REPO, files_metadata=True)
    assert info.sha == sha
    assert {item.rfilename for item in info.siblings} == FILES.keys()
    found = {
        item.path: item for item in api.get_paths_info(REPO, list(FILES), repo_type="dataset", revision=sha)
    }
    assert found["data/masks_aa"].lfs.size == len(BIG)
    listed = api.list_repo_tree(REPO, repo_type="dataset", recursive=True, revision=sha)
    assert {item.path for item in listed} == {*FILES, "data"}
    for path, content in FILES.items():
        local = hf_hub_download(
            REPO, path, repo_type="dataset", revision=sha, endpoint=endpoint, cache_dir=tmp_path
        )
        with open(local, "rb") as file:
            assert file.read() == (content.encode() if isinstance(content, str) else content)
    fs = HfFileSystem(endpoint=endpoint, skip_instance_cache=True, use_listings_cache=False)
    with fs.open(f"datasets/{REPO}@{sha}/data/masks_aa", block_size=2**16) as file:
        file.seek(123_456)
        assert file.read(1000) == BIG[123_456:124_456]
    assert any(request.range for request in olah_origin.requests("masks_aa"))


def test_absent(origin):
    origin.put_tree(REPO, FILES)
    api = HfApi(endpoint=origin.url)
    with pytest.raises(RepositoryNotFoundError):
        api.dataset_info("owner/other")
    with pytest.raises(RevisionNotFoundError):
        api.dataset_info(REPO, revision="nope")
    with pytest.raises(EntryNotFoundError):
        hf_hub_download(REPO, "nope", repo_type="dataset", endpoint=origin.url)


def test_redirect_to_cdn_and_pages(origin, tmp_path):
    origin.put_tree(REPO, FILES)
    origin.cdn, origin.page_size = True, 1
    api = HfApi(endpoint=origin.url)
    listed = api.list_repo_tree(REPO, repo_type="dataset", recursive=True)
    assert {item.path for item in listed} == {*FILES, "data"}
    path = hf_hub_download(
        REPO, "data/masks_aa", repo_type="dataset", endpoint=origin.url, cache_dir=tmp_path, token="t"
    )
    with open(path, "rb") as file:
        assert file.read() == BIG
    assert [r.side for r in origin.requests() if r.sent == len(BIG)] == ["cdn"]
    assert not any(r.auth for r in origin.requests() if r.side == "cdn")


def test_token(origin):
    origin.put_tree(REPO, FILES)
    origin.token = "hf_right"
    with pytest.raises(HfHubHTTPError):
        HfApi(endpoint=origin.url, token="hf_wrong").dataset_info(REPO)
    assert HfApi(endpoint=origin.url, token="hf_right").dataset_info(REPO).id == REPO


def test_uploads(origin):
    api = HfApi(endpoint=origin.url, token="hf_x")
    api.create_repo(REPO, repo_type="dataset", private=True)
    api.create_repo(REPO, repo_type="dataset", exist_ok=True)
    adds = [CommitOperationAdd("a.txt", b"text"), CommitOperationAdd("big.bin", BIG)]
    done = api.create_commit(REPO, adds, commit_message="add", repo_type="dataset")
    tree = origin.store.repos[REPO].at("main")
    assert done.oid == tree.sha
    assert {path: bytes(blob.content) for path, blob in tree.files.items()} == {
        "a.txt": b"text",
        "big.bin": BIG,
    }
    again = [CommitOperationAdd("a.txt", b"other")]
    with pytest.raises(HfHubHTTPError, match="412"):
        api.create_commit(REPO, again, commit_message="x", repo_type="dataset", parent_commit=tree.parent)
    api.delete_file("a.txt", REPO, repo_type="dataset")
    api.create_branch(REPO, repo_type="dataset", branch="side")
    assert set(origin.store.repos[REPO].at("side").files) == {"big.bin"}
    change = api.create_commit(
        REPO, [CommitOperationAdd("b.txt", b"pr")], commit_message="pr", repo_type="dataset", create_pr=True
    )
    assert change.pr_url.endswith("/discussions/1")
    assert set(origin.store.repos[REPO].at("main").files) == {"big.bin"}


def test_datasets_round_trip(origin, tmp_path):
    out = run_client(
        """
        import datasets
        table = datasets.Dataset.from_dict({"x": list(range(1000)), "y": ["a"] * 1000})
        table.push_to_hub("owner/pushed", config_name="bench", split="test", num_shards=2, token="hf_x")
        datasets.DatasetDict({"train": table}).push_to_hub("owner/pushed", config_name="images", token="hf_x")
        print(datasets.get_dataset_config_names("owner/pushed"))
        for streaming in (True, False):
            back = datasets.load_dataset("owner/pushed", "bench", split="test", streaming=streaming)
            print([row["x"] for row in back] == list(range(1000)))
        """,
        origin.url,
        tmp_path,
    )
    assert out.splitlines() == ["['bench', 'images']", "True", "True"]
