"""Which endpoints are asked, and which of them may see a token."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasonknee_hf import environment
from reasonknee_hf.errors import OptionError
from reasonknee_hf.hub.wire import tokens
from reasonknee_hf.hub.wire.endpoints import (
    DEFAULT_ENDPOINTS,
    Endpoint,
    masked,
    normalise,
    origin_of,
    resolve_endpoints,
)
from reasonknee_hf.hub.wire.tokens import Credentials

SECRET = "hf_s3cret"


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch):
    monkeypatch.setattr(tokens, "_given", {})


def urls(endpoint=None):
    return [one.url for one in resolve_endpoints(endpoint)]


def test_order_of_settings_is_read_at_call_time(monkeypatch):
    assert urls() == list(DEFAULT_ENDPOINTS)
    monkeypatch.setenv("REASONKNEE_MIRRORS", " https://a/ ,, https://b/hf/ , https://a")
    assert urls() == ["https://a", "https://b/hf"]
    monkeypatch.setenv("HF_ENDPOINT", "https://c/ ")
    assert urls() == ["https://c"]
    assert urls("https://d") == ["https://d"]
    assert urls(["https://d", {"url": "https://e/", "token": "hf_x"}]) == ["https://d", "https://e"]
    monkeypatch.setenv("HF_ENDPOINT", "   ")
    assert urls() == ["https://a", "https://b/hf"]
    assert urls("  ") == ["https://a", "https://b/hf"]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000"),
        (" HTTPS://Hub.Example//  ", "https://hub.example"),
        ("http://127.0.0.1:80/hf/", "http://127.0.0.1/hf"),
        ("https://h:443", "https://h"),
        ("http://[::1]:8000/", "http://[::1]:8000"),
    ],
)
def test_normalised(written, meant):
    assert normalise(written) == meant


@pytest.mark.parametrize(
    "bad",
    ["hf-mirror.com", "localhost:8000", "ftp://x", "https://", "http:/x", "http://u:pw@h", "http://h?a=1",
     "http://h:99999", "file:///x", "http://[::1"],
)  # fmt: skip
def test_refused(bad):
    with pytest.raises(OptionError) as caught:
        normalise(bad)
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize("bad", [5, {"link": "x"}, {"url": "https://h", "token": 5}, [None, 5]])
def test_wrong_kinds(bad):
    with pytest.raises(OptionError):
        resolve_endpoints(bad)


@given(st.text(max_size=40))
def test_normalise_is_stable_or_refuses(text):
    try:
        once = normalise(text)
    except OptionError:
        return
    assert normalise(once) == once
    assert not once.endswith("/")


def test_masked_hides_signatures_and_names():
    assert masked("https://u:p@cdn/x?Signature=abc#f") == "https://cdn/x?…"
    assert origin_of("HTTPS://Hub/x") == "https://hub:443"


def test_token_belongs_to_the_first_endpoint_only():
    credentials = Credentials(resolve_endpoints("https://a,https://b"), SECRET)
    assert credentials.for_url("https://a/x?y") == SECRET
    assert credentials.for_url("https://A:443/x") == SECRET
    for other in ("https://b/x", "http://a/x", "https://a:444/x", "https://sub.a/x", "https://a.evil/x"):
        assert credentials.for_url(other) is None


def test_public_hub_is_home_wherever_it_stands_and_public_mirrors_get_nothing():
    both = ["https://hf-mirror.com", "https://huggingface.co"]
    credentials = Credentials(resolve_endpoints(both), SECRET)
    assert credentials.for_url("https://huggingface.co/x") == SECRET
    assert credentials.for_url("https://hf-mirror.com/x") is None
    alone = Credentials(resolve_endpoints("https://hf-mirror.com"), SECRET)
    assert alone.for_url("https://hf-mirror.com/x") is None
    assert "mirror" in alone.reason_against("https://hf-mirror.com/x")


def test_opt_in_and_out_for_one_endpoint(monkeypatch):
    monkeypatch.setattr(tokens, "_stored_token", lambda: "hf_stored")
    endpoints = resolve_endpoints(
        ["https://a", {"url": "https://b", "token": "hf_b"}, {"url": "https://c", "token": True}]
    )
    credentials = Credentials(endpoints, SECRET)
    found = [credentials.for_url(f"https://{host}/x") for host in "abc"]
    assert found == [SECRET, "hf_b", "hf_stored"]
    refused = Credentials(resolve_endpoints([{"url": "https://d", "token": False}]), True)
    assert refused.for_url("https://d/x") is None


def test_plain_http_only_to_this_machine():
    for url, allowed in [("http://127.0.0.1:1", True), ("http://[::1]:1", True), ("http://localhost", True),
                         ("http://10.0.0.1", False), ("http://127.0.0.1.evil", False)]:  # fmt: skip
        credentials = Credentials(resolve_endpoints(url), SECRET)
        assert (credentials.for_url(url + "/x") == SECRET) is allowed


def test_stored_token_follows_the_rules_of_the_hub_client(monkeypatch):
    monkeypatch.setattr(tokens, "_stored_token", lambda: "hf_stored")
    endpoints = resolve_endpoints("https://a")
    assert Credentials(endpoints).for_url("https://a") is None  # the suite sets HF_HUB_DISABLE_IMPLICIT_TOKEN
    assert Credentials(endpoints, True).for_url("https://a") == "hf_stored"
    monkeypatch.setattr(tokens, "_implicit_disabled", lambda: False)
    assert Credentials(endpoints).for_url("https://a") == "hf_stored"
    assert Credentials(endpoints, False).for_url("https://a") is None
    monkeypatch.setattr(tokens, "_stored_token", lambda: None)
    with pytest.raises(OptionError, match="no token is stored"):
        Credentials(endpoints, True)


@pytest.mark.parametrize("bad", ["", "a b", "x\r\nHost: evil", "ü"])
def test_token_must_look_like_one(bad):
    with pytest.raises(OptionError):
        Credentials(resolve_endpoints("https://a"), bad)


def test_tokens_are_neither_shown_nor_pickled(monkeypatch):
    own = {"url": "https://b", "token": SECRET + "b"}
    endpoints = resolve_endpoints(["https://a", own])
    credentials = Credentials(endpoints, SECRET)
    assert SECRET not in repr(credentials) + repr(endpoints) + str(endpoints)
    for thing in (credentials, endpoints):
        assert SECRET.encode() not in pickle.dumps(thing)
    again = pickle.loads(pickle.dumps(credentials))
    assert again.for_url("https://a") == SECRET  # by the registry of this process
    monkeypatch.setattr(tokens, "_given", {})  # as in another process
    monkeypatch.setattr(tokens, "_stored_token", lambda: "hf_stored")
    monkeypatch.setattr(tokens, "_implicit_disabled", lambda: False)
    again = pickle.loads(pickle.dumps(credentials))
    assert again.for_url("https://a") == "hf_stored"
    assert again.for_url("https://b") is None  # had a token of its own: must not get the user's instead
    assert pickle.loads(pickle.dumps(endpoints))[1] == Endpoint("https://b")


@pytest.mark.parametrize("bad", ["abc", "-1", "0", "inf", "nan"])
def test_timeout_must_be_a_number_of_seconds(monkeypatch, bad):
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "7")
    assert environment.timeout() == 7
    monkeypatch.setenv("REASONKNEE_TIMEOUT", bad)
    with pytest.raises(OptionError, match="REASONKNEE_TIMEOUT"):
        environment.timeout()
