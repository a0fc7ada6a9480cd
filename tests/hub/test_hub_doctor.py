"""The doctor tells in seconds what would go wrong later."""

from __future__ import annotations

import json
import random
import re

import pytest

from hub import faults as f
from reasonknee_hf.cli import doctor_command as command
from reasonknee_hf.cli import main
from reasonknee_hf.hub.wire.doctor import doctor

REPO = "owner/name"
FILES = {"README.md": b"hello", "data/masks_aa": random.Random(3).randbytes(500_000)}


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setenv("REASONKNEE_TIMEOUT", "0.5")


def test_all_is_well(origin):
    sha = origin.put_tree(REPO, FILES)
    origin.cdn = True
    (found,) = doctor(REPO, None, origin.url, "hf_secret")
    assert (found.usable, found.reachable, found.sha, found.lag, found.ranges) == (
        True,
        True,
        sha,
        "none",
        True,
    )
    assert found.file == "data/masks_aa (500,000 bytes)"
    assert (found.token, found.problem) == ("yes", None)
    assert sum(request.sent for request in origin.requests("Signature")) < 2 * 500_000


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (
            f.Rule(f.shifted(7, lie=True), match="nii.gz"),
            r"other bytes than a range says, seen on data/v\.nii\.gz",
        ),
        (f.Rule(f.swapped(headers=False), match="README"), "hash of the listing"),
        (f.Rule(f.html), r"web page \(HTML\)"),
    ],
)
def test_lying_ranges_and_damaged_copies(origin, capsys, fault, words):
    origin.put_tree(
        REPO, {**FILES, "README.md": b"hello" * 99, "data/v.nii.gz": random.Random(4).randbytes(9000)}
    )
    origin.faults(fault)
    (found,) = doctor(REPO, None, origin.url)
    assert not found.usable
    assert re.search(words, found.problem)
    assert main(["doctor", "--source", REPO, "--endpoint", origin.url]) == 1
    assert re.search(words, capsys.readouterr().out)


def test_sizes_may_be_left_out(origin):
    origin.put_tree(REPO, FILES)
    origin.bare = True
    assert doctor(REPO, None, origin.url)[0].usable


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (f.ignore_range, "does not honour ranges"),
        (f.shifted(7), "were asked for"),
        (f.status(403), "403"),
        (f.status(429, Retry_After="60"), "60 s of patience"),
        (f.redirect("http://127.0.0.1:9/cas?sig=hidden"), "sends us on to http://127.0.0.1:9"),
        (f.cut(0), "no byte"),
        (f.stall(1), "in time"),
    ],
)
def test_large_file(origin, fault, words):
    origin.put_tree(REPO, FILES)
    origin.faults(fault)
    (found,) = doctor(REPO, None, origin.url)
    assert not found.usable
    assert found.reachable
    assert not found.ranges
    assert words in found.problem
    assert "hidden" not in found.problem


def test_lag(origin, second_origin):
    old = second_origin.put_tree(REPO, FILES)
    assert origin.put_tree(REPO, FILES) == old
    new = origin.put_tree(REPO, {**FILES, "x": b"1"})
    first, second = doctor(REPO, "main", [origin.url, second_origin.url])
    assert (first.sha, first.lag, first.usable) == (new, "none", True)
    assert (second.sha, second.lag, second.usable) == (old, "lacks the commit", False)
    first, second = doctor(REPO, "main", [second_origin.url, origin.url])
    assert (second.sha, second.lag, second.usable) == (new, "other commit", True)


def test_who_gets_a_token(origin, second_origin, monkeypatch):
    for one in (origin, second_origin):
        one.put_tree(REPO, FILES)
    endpoints = [origin.url, second_origin.url, {"url": "http://hub.invalid", "token": "hf_x"}]
    first, second, third = doctor(REPO, None, endpoints, "hf_secret")
    assert first.token == "yes"
    assert second.token.startswith("no: a mirror gets no token")
    assert third.token == "no: plain http"
    assert not third.reachable
    assert "hub.invalid" in third.problem


def test_offline(origin, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (found,) = doctor(REPO, None, origin.url)
    assert "offline" in found.problem
    assert origin.log == []


@pytest.mark.parametrize("form", ["table", "json"])
def test_command(origin, second_origin, capsys, monkeypatch, form):
    sha = origin.put_tree(REPO, FILES)
    flags = ["--json"] if form == "json" else []
    arguments = [
        "doctor",
        "--source",
        REPO,
        "--endpoint",
        second_origin.url,
        "--endpoint",
        origin.url,
        *flags,
    ]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    if form == "json":
        told = json.loads(out)
        assert [(row["sha"], row["usable"]) for row in told["endpoints"]] == [(None, False), (sha, True)]
        assert told["usable"] is True
    else:
        for word in (
            origin.url,
            second_origin.url,
            sha[:12],
            "500,000 bytes",
            "REASONKNEE_LOGIN_ENDPOINT sends it here",
            "404",
        ):
            assert word in out
    monkeypatch.setenv("HF_ENDPOINT", second_origin.url)
    assert main(["doctor", "--source", REPO, *flags]) == 1
    assert command.run.__doc__
