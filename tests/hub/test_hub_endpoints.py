"""Which endpoints are asked, and which of them may see a token."""

from __future__ import annotations

import os
import pickle
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasonknee_hf import environment
from reasonknee_hf.errors import OptionError
from reasonknee_hf.hub.wire import tokens
from reasonknee_hf.hub.wire.endpoints import (
    HUB,
    PUBLIC_MIRRORS,
    Endpoint,
    masked,
    normalise,
    origin_of,
    resolve_endpoints,
)
from reasonknee_hf.hub.wire.tokens import Credentials, with_options
from reasonknee_hf.knee.layout import DEFAULT_SOURCE

SECRET = "hf_s3cret"


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch):
    monkeypatch.setattr(tokens, "_table", {})


def urls(endpoint=None):
    return [one.url for one in resolve_endpoints(endpoint)]


def test_order_of_settings_is_read_at_call_time(monkeypatch):
    assert urls() == [HUB]
    monkeypatch.setenv("REASONKNEE_MIRRORS", " https://a/ ,, https://b/hf/ , https://a")
    assert urls() == ["https://a", "https://b/hf"]
    monkeypatch.setenv("HF_ENDPOINT", "https://c/ ")
    assert urls() == ["https://c"]
    assert urls("https://d") == ["https://d"]
    assert urls(["https://d", {"url": "https://e/", "token": "hf_x"}]) == ["https://d", "https://e"]
    monkeypatch.setenv("HF_ENDPOINT", "   ")
    assert urls() == ["https://a", "https://b/hf"]
    assert urls("  ") == ["https://a", "https://b/hf"]


def test_only_a_published_dataset_is_asked_for_at_mirrors_that_nobody_named():
    assert resolve_endpoints(None, DEFAULT_SOURCE) == (Endpoint(HUB), Endpoint(PUBLIC_MIRRORS[0]))
    for private in ("me/private", "", "rajpurkarlab/other"):
        assert resolve_endpoints(None, private) == (Endpoint(HUB),)


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
     "http://h:99999", "file:///x", "http://[::1", "http://u:pw@h:99999", "ftp://u:pw@h", "u:pw@h", "http://u:pw@[::1",
     "h?token=pw"],
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


def test_stored_token_is_for_the_hub_it_was_stored_for(monkeypatch):
    monkeypatch.setattr(tokens, "_stored_token", lambda: "hf_stored")
    hub, other = resolve_endpoints(HUB), resolve_endpoints("https://a")
    assert Credentials(hub).for_url(HUB) is None  # the suite sets HF_HUB_DISABLE_IMPLICIT_TOKEN
    assert Credentials(hub, True).for_url(HUB) == "hf_stored"
    monkeypatch.setattr(tokens, "_implicit_disabled", lambda: False)
    assert Credentials(hub).for_url(HUB) == "hf_stored"
    assert Credentials(hub, False).for_url(HUB) is None
    monkeypatch.setenv("HF_ENDPOINT", "https://a")
    assert Credentials(resolve_endpoints()).for_url("https://a") is None
    assert "token=True" in Credentials(other).reason_against("https://a")
    assert Credentials(other, True).for_url("https://a") == "hf_stored"
    monkeypatch.setenv("REASONKNEE_LOGIN_ENDPOINT", "https://a/")
    assert Credentials(other).for_url("https://a") == "hf_stored"
    assert Credentials(hub).for_url(HUB) is None
    monkeypatch.delenv("REASONKNEE_LOGIN_ENDPOINT")
    opted = resolve_endpoints({"url": "https://a", "token": True})
    assert Credentials(opted).for_url("https://a") == "hf_stored"
    monkeypatch.setattr(tokens, "_stored_token", lambda: None)
    with pytest.raises(OptionError, match="no token is stored"):
        Credentials(hub, True).require_stored()


@pytest.mark.parametrize("bad", ["", "a b", "x\r\nHost: evil", "ü"])
def test_token_must_look_like_one(bad):
    with pytest.raises(OptionError):
        Credentials(resolve_endpoints("https://a"), bad)


def test_tokens_are_neither_shown_nor_pickled_in_clear(monkeypatch):
    own = {"url": "https://b", "token": SECRET + "b"}
    endpoints = resolve_endpoints(["https://a", own])
    credentials = Credentials(endpoints, SECRET)
    assert SECRET not in repr(credentials) + repr(endpoints) + str(endpoints) + credentials.name
    for thing in (credentials, endpoints):
        assert SECRET.encode() not in pickle.dumps(thing)
    assert SECRET not in str(os.environ)
    again = pickle.loads(pickle.dumps(credentials))
    assert again == credentials
    assert again.for_url("https://a") == SECRET
    assert again.for_url("https://b") == SECRET + "b"
    assert Credentials(resolve_endpoints("https://a")).for_url("https://a") is None  # nobody else gets it
    assert pickle.loads(pickle.dumps(endpoints))[1] == Endpoint("https://b")


OPTIONS = [
    ("https://a", SECRET, "given"),
    ("https://a", False, "anonymous"),
    ({"url": "https://a", "token": False}, SECRET, "barred"),
    ([{"url": "https://a", "token": False}, {"url": "https://b", "token": "hf_b"}], None, "barred"),
    ([HUB, {"url": "https://b", "token": True}], None, "given"),
    (HUB, None, ""),
]


@pytest.mark.parametrize(("endpoint", "token", "kind"), OPTIONS)
def test_a_name_brings_the_options_back_to_children_alone(endpoint, token, kind, monkeypatch):
    monkeypatch.setattr(tokens, "_stored_token", lambda: "hf_stored")
    monkeypatch.setattr(tokens, "_implicit_disabled", lambda: False)
    endpoints = resolve_endpoints(endpoint)
    credentials = Credentials(endpoints, token)
    name = credentials.name
    assert name.startswith(kind)
    assert name == Credentials(endpoints, token).name

    def made_again():
        return Credentials(*with_options([Endpoint(one.url) for one in endpoints], name))

    assert made_again() == credentials
    sent = pickle.dumps(credentials)
    monkeypatch.setattr(tokens, "_table", {})  # as in a process that was spawned
    assert made_again() == credentials
    monkeypatch.setattr(tokens, "_table", {})
    stranger = SimpleNamespace(authkey=b"of another family of processes")
    monkeypatch.setattr(tokens, "_keys", lambda: [stranger])
    for stranger in (made_again(), pickle.loads(sent)):
        found = {one.url: stranger.for_url(one.url) for one in endpoints}
        home = {HUB: "hf_stored"} if kind in ("", "given") else {}
        assert found == {one.url: home.get(one.url) for one in endpoints}


def test_two_tokens_for_one_endpoint_do_not_mix():
    endpoints = resolve_endpoints("https://a")
    first, second = Credentials(endpoints, "hf_1"), Credentials(endpoints, "hf_2")
    assert first != second
    assert first.name != second.name
    told = [Credentials(*with_options(endpoints, one.name)).for_url("https://a") for one in (first, second)]
    assert told == ["hf_1", "hf_2"]


def test_a_pickle_is_not_mistaken_for_what_this_process_calls_the_same(monkeypatch):
    endpoints = resolve_endpoints("https://a")
    theirs = Credentials(endpoints, "hf_theirs")
    name, sent = theirs.name, pickle.dumps(theirs)
    sealed = tokens.seal(theirs.options)
    monkeypatch.setattr(tokens, "_table", {name: Credentials(endpoints, "hf_mine").options})
    again = pickle.loads(sent)
    assert again.for_url("https://a") == "hf_theirs"
    assert again.name != name
    assert tokens.name_here(name, sealed) == again.name
    assert Credentials(*with_options(endpoints, name)).for_url("https://a") == "hf_mine"


def test_a_child_gives_names_that_its_parent_does_not(monkeypatch):
    endpoints = resolve_endpoints("https://a")
    shared = Credentials(endpoints, "hf_shared").name
    monkeypatch.setattr(tokens.multiprocessing, "parent_process", object)
    assert Credentials(endpoints, "hf_shared").name == shared
    own = Credentials(endpoints, "hf_own").name
    assert f"-{os.getpid()}-" in own
    assert Credentials(endpoints, "hf_own").name == own


@given(st.text(max_size=60))
def test_what_was_not_sealed_here_opens_nothing(text):
    sealed = tokens.seal(tokens.TokenOptions(False, (("https://a:443", "hf_x"),)))
    assert (
        tokens.recall("given-x-0", sealed[:-2] + "%02x" % (int(sealed[-2:], 16) ^ 1)) == tokens.TokenOptions()
    )
    for odd in (text, text.encode().hex()):
        assert tokens.recall("given-y-0", odd) == tokens.TokenOptions()


@pytest.mark.parametrize("bad", ["abc", "-1", "0", "inf", "nan"])
def test_timeout_must_be_a_number_of_seconds(monkeypatch, bad):
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "7")
    assert environment.timeout() == 7
    monkeypatch.setenv("REASONKNEE_TIMEOUT", bad)
    with pytest.raises(OptionError, match="REASONKNEE_TIMEOUT"):
        environment.timeout()
