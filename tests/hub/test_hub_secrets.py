"""Token options belong to the source that was opened with them: 40 ways to lose or leak them, over real sockets.

Rows, masks and volumes are opened by URL, in this process and in others. Whatever the way, an origin sees exactly the
token that it was told to see.
"""

from __future__ import annotations

import itertools
import multiprocessing
import pickle
import subprocess
import sys

import fsspec
import multiprocess
import pytest

from hub import faults as f
from reasonknee_hf.errors import EndpointError
from reasonknee_hf.hub.fs.filesystem import ReasonKneeFileSystem
from reasonknee_hf.hub.wire import mirrors
from reasonknee_hf.hub.wire import tokens as opened

REPO = "owner/knees"
FILES = {"README.md": b"# knees\n", "data/v.nii.gz": bytes(range(256)) * 9}
VOLUME = "data/v.nii.gz"
OWN, GIVEN, STORED = "hf_ownvalue", "hf_givenvalue", "hf_storedvalue"


@pytest.fixture(autouse=True)
def _stored(monkeypatch):
    """A token is stored, and clients may use it without being told."""
    monkeypatch.setenv("HF_TOKEN", STORED)
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "0")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_IMPLICIT_TOKEN", False)
    monkeypatch.setattr(mirrors, "_health", {})
    monkeypatch.setattr(opened, "_table", {})
    monkeypatch.setenv("REASONKNEE_RETRY_TIME", "0.1")
    monkeypatch.setenv("REASONKNEE_TIMEOUT", "5")


# What is said when the source is opened -> the token that the first and the second endpoint may see.
SAID = {
    "nothing": (lambda a, b: {"endpoint": [a, b]}, None, None),
    "token=False": (lambda a, b: {"endpoint": [a, b], "token": False}, None, None),
    "token=True": (lambda a, b: {"endpoint": [a, b], "token": True}, STORED, None),
    "a token": (lambda a, b: {"endpoint": [a, b], "token": GIVEN}, GIVEN, None),
    "a token, first barred": (
        lambda a, b: {"endpoint": [{"url": a, "token": False}, b], "token": GIVEN}, None, None,
    ),
    "second has its own": (
        lambda a, b: {"endpoint": [a, {"url": b, "token": OWN}], "token": GIVEN}, GIVEN, OWN,
    ),
    "second gets the stored one": (
        lambda a, b: {"endpoint": [{"url": a, "token": False}, {"url": b, "token": True}]}, None, STORED,
    ),
    "own, and token=False": (
        lambda a, b: {"endpoint": [a, {"url": b, "token": OWN}], "token": False}, None, OWN,
    ),
}  # fmt: skip


def read(fs_or_url):
    """The volume, by a filesystem or by its URL."""
    if isinstance(fs_or_url, str):
        with fsspec.open(fs_or_url) as file:
            return file.read()
    return fs_or_url.cat_file(VOLUME)


def read_all(things, queue):
    queue.put([read(thing) for thing in things])


def in_child(context):
    def way(*filesystems):
        queue = context.Queue()
        things = [thing for fs in filesystems for thing in (fs.url(VOLUME), fs)]
        process = context.Process(target=read_all, args=(things, queue))
        process.start()
        assert queue.get(timeout=60) == [FILES[VOLUME]] * len(things)
        process.join()

    return way


def by_pickle(fs):
    again = pickle.loads(pickle.dumps(fs))
    ReasonKneeFileSystem.clear_instance_cache()
    read(pickle.loads(pickle.dumps(again)))


WAYS = {
    "url": lambda fs: read(fs.url(VOLUME)),
    "url of a url": lambda fs: read(fsspec.core.url_to_fs(fs.url(VOLUME))[0].url(VOLUME)),
    "pickle": by_pickle,
    "fork": in_child(multiprocessing.get_context("fork")),
}


def put(origins, said, repo=REPO):
    """Opens a source with what is said: files come from the second, the listing from the first."""
    for one in origins:
        one.put_tree(repo, FILES)
    fs = ReasonKneeFileSystem(repo, **SAID[said][0](*(one.url for one in origins)))
    assert not any(secret in fs.url(VOLUME) for secret in (OWN, GIVEN, STORED))
    sent = pickle.dumps(fs) + pickle.dumps(fs.tree)
    assert not any(secret.encode() in sent for secret in (OWN, GIVEN, STORED))
    origins[0].faults(f.status(503))
    return fs


def check_seen(origins, said, repo=REPO):
    seen = [{request.auth for request in one.requests(repo)} for one in origins]
    assert seen == [{f"Bearer {token}" if token else None} for token in SAID[said][1:]], said


@pytest.mark.parametrize(("said", "way"), list(itertools.product(SAID, WAYS)))
def test_each_origin_sees_what_it_was_told(origin, second_origin, said, way):
    WAYS[way](put((origin, second_origin), said))
    check_seen((origin, second_origin), said)


@pytest.mark.parametrize("library", [multiprocessing, multiprocess], ids=lambda library: library.__name__)
def test_in_spawned_processes_too(origin, second_origin, library):
    """Also in those that are started by the library of `datasets`. One process for all: they take seconds to start."""
    origins = (origin, second_origin)
    filesystems = [put(origins, said, f"owner/knees{number}") for number, said in enumerate(SAID)]
    in_child(library.get_context("spawn"))(*filesystems)
    for number, said in enumerate(SAID):
        check_seen(origins, said, f"owner/knees{number}")


def test_no_call_uses_the_token_of_another(origin):
    sha = origin.put_tree(REPO, FILES)
    wrong = ReasonKneeFileSystem(REPO, endpoint=origin.url, token="hf_wrong")
    origin.token = GIVEN
    with pytest.raises(EndpointError):
        wrong.cat_file(VOLUME)
    right = ReasonKneeFileSystem(REPO, endpoint=origin.url, token=GIVEN)
    assert read(right.url(VOLUME)) == FILES[VOLUME]
    origin.log.clear()
    with pytest.raises(EndpointError):
        ReasonKneeFileSystem(REPO, sha, endpoint=origin.url).cat_file(VOLUME)
    assert {request.auth for request in origin.log} == {None}


def test_a_token_does_not_follow_where_a_url_leads(origin, second_origin):
    for one in (origin, second_origin):
        one.put_tree(REPO, FILES)
    fs = ReasonKneeFileSystem(REPO, endpoint=origin.url, token=GIVEN)
    url = fs.url(VOLUME)
    origin.faults(f.redirect(f"{second_origin.url}/datasets/{REPO}/resolve/{fs.tree.sha}/{VOLUME}"))
    assert read(url) == FILES[VOLUME]
    assert {request.auth for request in second_origin.log} == {None}


@pytest.mark.parametrize("name", ["", "anonymous", "given-0-0", "known"])
def test_a_url_out_of_data_gets_no_stored_token(second_origin, name):
    sha = second_origin.put_tree(REPO, FILES)
    place = second_origin.url.replace(":", "%3A").replace("/", "%2F")
    if name == "known":
        name = opened.remember(opened.TokenOptions(False, (("http://127.0.0.1:1", GIVEN),)))
    more = f"%2Coptions%3A%2F%2F{name}" if name else ""
    assert read(f"reasonknee://{place}{more}/{REPO}@{sha}/{VOLUME}") == FILES[VOLUME]
    assert {request.auth for request in second_origin.log} == {None}


def test_a_program_of_another_family_gets_nothing(origin, tmp_path):
    origin.put_tree(REPO, FILES)
    fs = ReasonKneeFileSystem(REPO, endpoint=origin.url, token=GIVEN)
    url = fs.url(VOLUME)
    (tmp_path / "fs.pickle").write_bytes(pickle.dumps(fs))
    origin.log.clear()
    code = """
import os, pickle, sys, fsspec
print(fsspec.open(sys.argv[1]).open().read() == pickle.load(open(sys.argv[2], "rb")).cat_file("data/v.nii.gz"))
print([name for name, value in os.environ.items() if "hf_given" in value])
"""
    done = subprocess.run(
        [sys.executable, "-c", code, url, tmp_path / "fs.pickle"], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["True", "[]"], done.stderr
    assert {request.auth for request in origin.log} == {None}
