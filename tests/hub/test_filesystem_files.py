"""Open files: the wrappers of fsspec over ours, its ways of caching, and what any Python file can do."""

from __future__ import annotations

import io
import pickle
import random

import fsspec
import pytest
from archives import cut, make_zip
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st

from reasonknee_hf.errors import ReleaseError
from reasonknee_hf.hub.fs.cutzip import CutZipFileSystem
from reasonknee_hf.hub.fs.filesystem import ReasonKneeFileSystem
from reasonknee_hf.hub.trees.folder_tree import FsspecTree

pytestmark = pytest.mark.floor

REPO = "owner/knees"
TEXT = "".join(f"{i},{'x' * (i % 90)}\n" for i in range(12_000)).encode()  # three blocks of a file
MEMBERS = {f"knee_{i:03d}.csv": TEXT[i : 20_000 + i] for i in range(30)}
ZIP = make_zip(MEMBERS)
FILES = {"data/t.csv": TEXT, **{f"data/{name}": content for name, content in cut(ZIP, 20_000).items()}}
PATHS = {"data/t.csv": TEXT, "data/masks/knee_003.csv": MEMBERS["knee_003.csv"]}


@pytest.fixture
def fs(origin):
    sha = origin.put_tree(REPO, FILES)
    return ReasonKneeFileSystem(REPO, sha, endpoint=origin.url)


def read_about(file, content: bytes) -> None:
    assert file.read(10) == content[:10]
    file.seek(len(content) - 700)
    assert file.read() == content[-700:]
    file.seek(5000)
    assert file.read(300) == content[5000:5300]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("wrapper", ["blockcache", "filecache", "simplecache"])
def test_the_wrappers_of_fsspec(fs, origin, tmp_path, wrapper, path):
    for url in (f"{wrapper}::{fs.unstrip_protocol(path)}",) * 2:
        with fsspec.open(url, **{wrapper: {"cache_storage": str(tmp_path)}}) as file:
            read_about(file, PATHS[path])
    over = fsspec.filesystem(wrapper, fs=fs, cache_storage=str(tmp_path / "other"))
    with over.open(path) as file:
        read_about(file, PATHS[path])
    assert over.cat(path) == PATHS[path]
    if wrapper == "blockcache":
        origin.clear()
        with over.open(path) as file:
            assert file.read(10) == PATHS[path][:10]
        assert origin.log == []


@pytest.mark.parametrize(
    "kind", ["readahead", "bytes", "blockcache", "first", "background", "mmap", "all", "none"]
)
@pytest.mark.parametrize("path", PATHS)
def test_the_caches_of_fsspec(fs, kind, path):
    with fs.open(path, cache_type=kind, block_size=10_000) as file:
        read_about(file, PATHS[path])
        assert (file.size, file.info()["size"], file.blocksize) == (len(PATHS[path]),) * 2 + (10_000,)


def test_the_caches_of_fsspec_over_a_cut_zip(tmp_path):
    for name, content in cut(ZIP, 20_000).items():
        (tmp_path / name).write_bytes(content)
    over = CutZipFileSystem(str(tmp_path), parts=["masks_aa", "masks_ab"])
    for kind in ("readahead", None):
        with over.open("knee_003.csv", cache_type=kind) as file:
            read_about(file, MEMBERS["knee_003.csv"])
    with pytest.raises(FileNotFoundError):
        over.open("knee_999.csv")


@pytest.mark.parametrize("path", PATHS)
def test_an_open_file_goes_to_another_process_and_goes_on_there(fs, path):
    with fs.open(path) as file:
        file.read(100)
        again = pickle.loads(pickle.dumps(file))
    assert again.read() == PATHS[path][100:]


STEP = st.one_of(
    st.tuples(st.just("seek"), st.integers(0, len(TEXT))),
    st.tuples(st.just("read"), st.integers(0, 300_000)),
    st.tuples(st.just("readline"), st.just(0)),
    st.tuples(st.just("readinto"), st.integers(0, 70_000)),
)


@given(st.lists(STEP, max_size=12))
def test_a_file_does_what_any_file_does(steps):
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/files/t.csv", TEXT)
    fs = ReasonKneeFileSystem("memory://files")
    plain = io.BytesIO(TEXT)
    with fs.open("t.csv") as file:
        for what, number in steps:
            if what == "readinto":
                buffers = bytearray(number), bytearray(number)
                assert file.readinto(buffers[0]) == plain.readinto(buffers[1])
                assert buffers[0] == buffers[1]
            elif what == "readline":
                assert file.readline() == plain.readline()
            else:
                assert getattr(file, what)(number) == getattr(plain, what)(number)
            assert file.tell() == plain.tell()


def test_lines_come_by_one_plain_get(fs, origin):
    fs.tree.entries()
    origin.clear()
    with fs.open("data/t.csv") as file:
        assert list(file) == TEXT.splitlines(keepends=True)
    with fs.open("data/t.csv", "rt") as file:
        assert list(file) == TEXT.decode().splitlines(keepends=True)
    assert [request.range for request in origin.log] == [None, None]


class ForbiddenFolder(MemoryFileSystem):
    """A bucket with a folder that may not be listed."""

    protocol = "forbidding"
    store, pseudo_dirs = {}, [""]

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(str(path).replace("forbidding://", "memory://"))

    def ls(self, path, detail=True, **kwargs):
        if path.rstrip("/").endswith("closed"):
            raise PermissionError(13, "Access denied", path)
        return super().ls(path, detail=detail, **kwargs)


def test_a_folder_of_a_bucket_that_cannot_be_listed_is_not_empty():
    fsspec.register_implementation("forbidding", ForbiddenFolder, clobber=True)
    bucket = fsspec.filesystem("forbidding")
    for path in ("/r/data/t.csv", "/r/data/.git/x", "/r/a/b/t.csv"):
        bucket.pipe_file(path, random.Random(1).randbytes(10))
    assert list(FsspecTree("forbidding://r").entries()) == ["a/b/t.csv", "data/t.csv"]
    bucket.pipe_file("/r/data/closed/t.csv", b"")
    with pytest.raises(ReleaseError, match="cannot be listed"):
        FsspecTree("forbidding://r").entries()
