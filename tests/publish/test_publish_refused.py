"""What would not load back is refused before anything is sent."""

from __future__ import annotations

import re

import pytest
from publishing import REPO, push_bench

from reasonknee_hf.errors import PublishError
from reasonknee_hf.publish.parquet import Limits, write_parts
from reasonknee_hf.publish.push import files_beside, push
from reasonknee_hf.publish.schema import volume_features


@pytest.mark.parametrize(
    ("repo", "proposal"),
    [
        ("me/my knee", "me/my-knee"),
        ("me/a--b", "me/a-b"),
        ("me/x.git", "me/x"),
        ("a/b/c", "b/c"),
        ("me/-x", "me/x"),
        ("lonely", "OWNER/lonely"),
    ],
)
def test_repository_ids_are_checked(origin, sample_dir, repo, proposal):
    with pytest.raises(PublishError, match=re.escape(repr(proposal))):
        push(repo, "bench", source=str(sample_dir), hub_endpoint=origin.url, token="hf_x")
    assert origin.requests() == []


@pytest.mark.parametrize("name", ["a/b", "a b", "*", "all", "", "täst", "../x"])
def test_config_names_are_checked(origin, sample_dir, name):
    with pytest.raises(PublishError, match="would"):
        push_bench(origin, sample_dir, name=name)
    assert origin.requests() == []


def test_references_to_this_machine_are_refused(origin, sample_dir):
    with pytest.raises(PublishError, match="paths of this machine"):
        push_bench(origin, sample_dir, volumes="reference")
    assert origin.requests() == []


def test_a_broken_card_is_refused_before_shards_travel(origin, sample_dir):
    origin.put_tree(REPO, {"README.md": "---\nconfigs: [\n---\nhello\n"})
    with pytest.raises(PublishError, match="not YAML"):
        push_bench(origin, sample_dir)
    assert origin.requests("_lfs/", "PUT") == []


def test_empty_bytes_and_directories_are_refused(tmp_path):
    row = dict.fromkeys(volume_features("embed", masks=False), "x") | {"knee_side": "left"}
    for image, message in (
        ({"bytes": b"x", "path": "/home/me/a.nii.gz"}, "directory|this machine"),
        ({"bytes": None, "path": "a.nii.gz"}, "no bytes"),
        ({"bytes": b"", "path": "a.nii.gz"}, "no bytes"),
    ):
        (path,) = write_parts(
            [row | {"image": image}], volume_features("embed", masks=False), tmp_path / "v", Limits(), {}
        )
        with pytest.raises(PublishError, match=message):
            files_beside(path)
