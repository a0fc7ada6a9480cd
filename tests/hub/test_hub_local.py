"""A tree in a local folder or on any fsspec filesystem."""

from __future__ import annotations

import http.server
import multiprocessing
import os
import pickle
import threading
from functools import partial

import fsspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from volume_files import voxels, write

from reasonknee_hf.errors import (
    EndpointError,
    FileMissingError,
    IntegrityError,
    OptionError,
    ReasonKneeError,
    ReleaseError,
)
from reasonknee_hf.hub.tree import Tree
from reasonknee_hf.hub.trees.folder_tree import FsspecTree
from reasonknee_hf.hub.trees.open_tree import open_tree
from reasonknee_hf.volumes.volume import KneeVolume

BIG = bytes(range(256)) * 1000
FILES = {"data/a b.bin": BIG, "README.md": b"hello", "data/empty": b""}


@pytest.fixture(params=["local", "memory"])
def root(request, tmp_path):
    if request.param == "local":
        base = str(tmp_path / "rel")
        fs = fsspec.filesystem("file")
    else:
        base = f"memory:///{tmp_path.name}/rel"
        fs = fsspec.filesystem("memory")
    for path, content in FILES.items():
        fs.makedirs(f"{base}/{path}".rpartition("/")[0], exist_ok=True)
        fs.pipe_file(f"{base}/{path}", content)
    return base


def test_reads(root):
    tree = FsspecTree(root)
    assert isinstance(tree, Tree)
    assert list(tree.entries()) == sorted(FILES)
    assert tree.sha is None
    for path, content in FILES.items():
        assert tree.read(path) == content
        assert tree.size(path) == len(content)
        with fsspec.open(tree.url(path), "rb") as file:
            assert file.read() == content
    assert tree.ranges("data/a b.bin", [(3, 9), (5, 5), (255_999, 256_000)]) == [BIG[3:9], b"", b"\xff"]
    chunks = list(tree.stream("data/a b.bin"))
    assert b"".join(chunks) == BIG
    assert (len(chunks[0]), max(map(len, chunks))) == (32 * 1024, 64 * 1024)
    assert root.removeprefix("memory:///") in tree.name


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_span(root, data):
    tree = FsspecTree(root)
    start = data.draw(st.integers(0, len(BIG)))
    stop = data.draw(st.integers(start, len(BIG)))
    assert tree.ranges("data/a b.bin", [(start, stop)]) == [BIG[start:stop]]
    assert b"".join(tree.stream("data/a b.bin", start, stop)) == BIG[start:stop]


def test_pickles(root):
    tree = pickle.loads(pickle.dumps(FsspecTree(root)))
    assert tree.read("README.md") == b"hello"


def test_only_listed_names_are_opened(root, tmp_path):
    (tmp_path / "secret").write_bytes(b"x")
    tree = FsspecTree(root)
    for bad in ("../secret", "/etc/passwd", "data", "", "./README.md"):
        for call in (tree.read, tree.url, tree.entry, tree.size, lambda p: tree.ranges(p, [(0, 1)])):
            with pytest.raises(FileMissingError):
                call(bad)


def test_spans_outside(root):
    for span in [(-1, 1), (2, 1), (0, len(BIG) + 1)]:
        with pytest.raises(ValueError, match="span"):
            FsspecTree(root).ranges("data/a b.bin", [span])


def test_version_control_is_not_listed(tmp_path):
    (tmp_path / ".git" / "objects").mkdir(parents=True)
    (tmp_path / ".git" / "objects" / "x").write_bytes(b"")
    (tmp_path / "a").write_bytes(b"1")
    assert list(FsspecTree(tmp_path).entries()) == ["a"]


class _Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def _serve(folder):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, f"http://127.0.0.1:{server.server_port}"


def _read_and_crop(tree, url, queue):
    queue.put((tree.read("a/b.bin"), KneeVolume(url).array().sum()))


@pytest.mark.floor
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_web_server_is_read_in_a_forked_child_too(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/b.bin").write_bytes(BIG)
    array = voxels((9, 8, 5))
    write(tmp_path / "v.nii.gz", array)
    server, url = _serve(tmp_path)
    tree = FsspecTree(f"{url}/a")
    assert tree.read("b.bin") == BIG
    assert KneeVolume(f"{url}/v.nii.gz").array().sum() == array.sum()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_read_and_crop, args=(FsspecTree(url), f"{url}/v.nii.gz", queue))
    child.start()
    try:
        assert queue.get(timeout=30) == (BIG, array.sum())
    finally:
        child.kill()
        server.shutdown()
        server.server_close()


def test_links_are_followed_once_around(tmp_path):
    disk, root = tmp_path / "disk", tmp_path / "release"
    (disk / "9000001").mkdir(parents=True)
    (disk / "9000001/a.nii.gz").write_bytes(b"volume")
    (root / "data").mkdir(parents=True)
    (root / "data/images").symlink_to(disk)
    (root / "data/again").symlink_to(disk)
    (root / "data/up").symlink_to(root)
    (root / "data/gone").symlink_to(tmp_path / "nowhere")
    (root / "data/loop").symlink_to(root / "data/loop")
    (root / "data/through").symlink_to(disk / "9000001/a.nii.gz/x")
    (root / "one.csv").symlink_to(disk / "9000001/a.nii.gz")
    tree = FsspecTree(root)
    assert {path: entry.size for path, entry in tree.entries().items()} == dict.fromkeys(
        ("data/again/9000001/a.nii.gz", "data/images/9000001/a.nii.gz", "one.csv"), 6
    )
    assert tree.read("data/images/9000001/a.nii.gz") == b"volume"


def test_pointer_text_is_named(tmp_path):
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "a" * 64 + "\nsize 777\n"
    (tmp_path / "x.nii.gz").write_text(text)
    tree = FsspecTree(tmp_path)
    for call in (tree.read, lambda p: list(tree.stream(p)), lambda p: tree.ranges(p, [(0, 4)])):
        with pytest.raises(IntegrityError, match=r"git-LFS pointer.*777 bytes.*git lfs pull"):
            call("x.nii.gz")


def test_file_that_shrinks(tmp_path):
    (tmp_path / "x").write_bytes(bytes(5000))
    tree = FsspecTree(tmp_path)
    tree.entries()
    (tmp_path / "x").write_bytes(bytes(2000))
    with pytest.raises(IntegrityError):
        tree.read("x")
    with pytest.raises(IntegrityError):
        tree.ranges("x", [(1000, 4000)])


def test_no_such_folder(tmp_path):
    with pytest.raises(ReleaseError, match="existing folder"):
        FsspecTree(tmp_path / "nope").entries()


def test_relative_root_survives_a_change_of_folder(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(b"1")
    monkeypatch.chdir(tmp_path)
    tree = FsspecTree(".")
    monkeypatch.chdir("/")
    assert tree.read("a") == b"1"


def test_a_kind_of_url_without_its_package_says_what_to_install():
    with pytest.raises(ReasonKneeError, match="s3://bucket") as caught:
        FsspecTree("s3://bucket/release")
    assert isinstance(caught.value, ImportError)
    assert "s3fs" in str(caught.value)
    with pytest.raises(OptionError, match="nosuch://x"):
        open_tree("nosuch://x/release")


def test_a_service_that_does_not_answer_is_named():
    with pytest.raises(ReleaseError, match=r"http://127\.0\.0\.1:9/release cannot be listed.*connection"):
        FsspecTree("http://127.0.0.1:9/release").entries()
    with pytest.raises(ReasonKneeError, match="buckets/me/x"):
        open_tree("hf://buckets/me/x").entries()


@pytest.mark.parametrize(
    "root",
    [
        "http://me:pw-1@127.0.0.1:9/x",
        "ftp://me:pw-1@h/x",
        "https://h/x?sig=pw-1",
        "zip://a::http://m:pw-1@h/b",
    ],
)
def test_a_root_with_a_password_is_refused_without_telling_it(root):
    with pytest.raises(OptionError, match="carries a password or a query") as caught:
        open_tree(root)
    assert "pw-1" not in str(caught.value)


def test_a_service_that_is_gone_while_reading_is_named(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"x" * 5000)
    server, url = _serve(tmp_path)
    tree = FsspecTree(url)
    assert tree.read("a.csv") == b"x" * 5000
    server.shutdown()
    server.server_close()
    tree._fs.dircache.clear()
    for touch in (lambda: tree.read("a.csv"), lambda: tree.ranges("a.csv", [(1, 9)])):
        with pytest.raises(EndpointError, match=r"'a\.csv' of http.*cannot be read.*connection"):
            touch()
