"""State of the origin server: repositories, commits and blobs, hashed as git and git-LFS hash them."""

from __future__ import annotations

import fnmatch
import hashlib
import mmap
import threading
from dataclasses import dataclass, field
from pathlib import Path

LFS_PATTERNS = ("*.nii.gz", "*.zip", "*.parquet", "*.bin", "*masks_??", "*.zip.0??")
DATE = "2025-01-01T00:00:00.000Z"
HTML = b"<html><body>Please sign in to use this network</body></html>"


def git_sha1(content) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + bytes(content)).hexdigest()


@dataclass(frozen=True)
class Blob:
    """One file's content (bytes, or a mapped file), with the ids that the Hub gives it."""

    content: object = field(repr=False)
    oid: str
    sha256: str | None
    pointer_size: int = 0

    @property
    def size(self) -> int:
        return len(self.content)

    @property
    def etag(self) -> str:
        return self.sha256 or self.oid

    @classmethod
    def of(cls, content, lfs: bool) -> Blob:
        if isinstance(content, Path):
            with open(content, "rb") as file:
                content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if not lfs:
            return cls(content, git_sha1(content), None)
        digest = hashlib.sha256(content).hexdigest()
        pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %d\n"
        pointer = pointer % (digest.encode(), len(content))
        return cls(content, git_sha1(pointer), digest, len(pointer))

    def listing(self, path: str) -> dict:
        item = {"type": "file", "path": path, "size": self.size, "oid": self.oid}
        if self.sha256:
            item["lfs"] = {"oid": self.sha256, "size": self.size, "pointerSize": self.pointer_size}
        return item


@dataclass(frozen=True)
class Commit:
    sha: str
    parent: str | None
    files: dict[str, Blob] = field(repr=False)
    message: str = ""


class Repo:
    """One repository: commits by sha, refs by name."""

    def __init__(self, repo_id: str, private: bool = False) -> None:
        self.id, self.private = repo_id, private
        self.commits: dict[str, Commit] = {}
        self.refs: dict[str, str] = {}
        self.pull_requests = 0
        self.lock = threading.Lock()
        self.commit("main", {}, "initial commit")

    def commit(self, ref: str, files: dict[str, Blob], message: str) -> str:
        parent = self.refs.get(ref)
        text = "\n".join([self.id, str(parent), message, *(f"{p} {b.oid}" for p, b in sorted(files.items()))])
        sha = hashlib.sha1(text.encode()).hexdigest()
        self.commits[sha] = Commit(sha, parent, files, message)
        self.refs[ref] = sha
        return sha

    def at(self, revision: str) -> Commit | None:
        return self.commits.get(self.refs.get(revision, revision))

    def info(self, commit: Commit, blobs: bool) -> dict:
        siblings = []
        for path, blob in sorted(commit.files.items()):
            item: dict = {"rfilename": path}
            if blobs:
                item |= {"size": blob.size, "blobId": blob.oid}
                if blob.sha256:
                    item["lfs"] = {"sha256": blob.sha256, "size": blob.size, "pointerSize": blob.pointer_size}
            siblings.append(item)
        return {
            "_id": self.id, "id": self.id, "author": self.id.split("/")[0], "sha": commit.sha,
            "lastModified": DATE, "createdAt": DATE, "private": self.private, "gated": False,
            "disabled": False, "tags": [], "downloads": 0, "likes": 0, "cardData": {}, "siblings": siblings,
        }  # fmt: skip

    def listing(self, commit: Commit, folder: str, recursive: bool, expand: bool) -> list[dict] | None:
        """What a tree request answers, `None` if there is no such folder."""
        prefix = f"{folder}/" if folder else ""
        items: dict[str, dict] = {}
        for path, blob in sorted(commit.files.items()):
            if not path.startswith(prefix):
                continue
            parts = path[len(prefix) :].split("/")
            for depth in range(1, len(parts) if recursive else min(2, len(parts))):
                name = prefix + "/".join(parts[:depth])
                items.setdefault(name, {"type": "directory", "path": name, "size": 0, "oid": "0" * 40})
            if recursive or len(parts) == 1:
                items[path] = blob.listing(path)
        if expand:
            last = {"id": commit.sha, "title": commit.message, "date": DATE}
            items = {name: {**item, "lastCommit": last} for name, item in items.items()}
        return list(items.values()) if items or not folder else None


class Store:
    """All repositories and LFS objects of one origin."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.objects: dict[str, object] = {}
        self.lfs_patterns = LFS_PATTERNS
        self.lfs_limit = 10 * 1024 * 1024

    def is_lfs(self, path: str, size: int) -> bool:
        return size > self.lfs_limit or any(fnmatch.fnmatch(path, one) for one in self.lfs_patterns)

    def blob(self, path: str, content) -> Blob:
        size = content.stat().st_size if isinstance(content, Path) else len(content)
        made = Blob.of(content, self.is_lfs(path, size))
        if made.sha256:
            self.objects[made.sha256] = made.content
        return made

    def put_tree(self, repo_id: str, files: dict, message: str = "put", ref: str = "main") -> str:
        """Replaces the tree of `ref`; `files` maps paths to bytes, text or a `Path`. Returns the sha."""
        repo = self.repos.setdefault(repo_id, Repo(repo_id))
        blobs = {
            path: self.blob(path, content.encode() if isinstance(content, str) else content)
            for path, content in files.items()
        }
        return repo.commit(ref, blobs, message)
