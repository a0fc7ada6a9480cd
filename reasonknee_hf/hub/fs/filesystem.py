"""`reasonknee://`: a Hub dataset, a mirror of it, or a folder, with its zip archives opened like folders."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.utils import stringify_path, tokenize

from reasonknee_hf import environment
from reasonknee_hf.errors import OptionError
from reasonknee_hf.hub.disk import Cache, CacheLike, ForkSafeLock, chosen_cache
from reasonknee_hf.hub.fs.readonly import (
    Info,
    MountedTree,
    ReadOnlyFileSystem,
    Span,
    Whereabouts,
    slice_bounds,
)
from reasonknee_hf.hub.fs.treefile import TreeFile, said
from reasonknee_hf.hub.tree import SCHEME, Address, Tree, build_url, parse_url, pieces
from reasonknee_hf.hub.trees.open_tree import open_tree
from reasonknee_hf.hub.wire.endpoints import Endpoint, resolve_endpoints
from reasonknee_hf.hub.wire.repository import is_repo_id
from reasonknee_hf.hub.wire.tokens import Credentials, name_here, seal, with_options
from reasonknee_hf.hub.zips.archive import CutArchive
from reasonknee_hf.hub.zips.archive_names import PartSet
from reasonknee_hf.hub.zips.ranges import Parts

# What fsspec's base class understands, and callers of any filesystem may pass.
_OF_FSSPEC = frozenset(
    {"use_listings_cache", "listings_expiry_time", "max_paths", "asynchronous", "loop", "batch_size"}
)
_OPTIONS = _OF_FSSPEC | {"source", "revision", "endpoint", "token", "cache", "cache_size", "encoding"}
_OF_CACHE = ("cache", "cache_size")
# One lock for the table of instances and the table below; nothing is read or asked for while it is held.
_LOCK = ForkSafeLock()
# What was opened of Hubs, so that the instance of a branch and those of its commit's URLs share listing,
# archives and directories, also in forked processes.
_OPENED: weakref.WeakValueDictionary[str, MountedTree] = weakref.WeakValueDictionary()
# What was asked for as `cache=` and `cache_size=` when a commit was opened, which its URLs cannot say.
_CACHES: dict[str, dict[str, Any]] = {}


class _KeyedBySource(type(AbstractFileSystem)):  # type: ignore[misc]
    """Keeps one instance per process for each source, revision, list of endpoints and option.

    The stock metaclass would key by thread too, and keep the token in `storage_options`, which is what gets pickled and
    printed. Here `storage_options` hold a name of the token options at most; see `hub.wire.tokens.TokenOptions`.
    """

    def __call__(
        cls,
        source: str | os.PathLike[str] | None = None,
        revision: str | None = None,
        endpoint: Any = None,
        token: str | bool | None = None,
        *,
        skip_instance_cache: bool = False,
        opened: str | None = None,
        **options: Any,
    ) -> Any:
        source = os.fspath(source) if source is not None else environment.source()
        if source is None:
            raise OptionError(
                "no source: pass `source=` (a Hub dataset id, a folder or an fsspec URL) or set "
                "REASONKNEE_SOURCE"
            )
        if os.path.isdir(source):
            source = os.path.abspath(source)
        endpoints = resolve_endpoints(endpoint, source)
        if opened is not None and token is None and all(one.token is None for one in endpoints):
            endpoints, token = with_options(endpoints, opened)
        unknown = options.keys() - _OPTIONS
        if unknown:
            raise OptionError(f"unknown options {sorted(unknown)}; known are {sorted(_OPTIONS - _OF_FSSPEC)}")
        options = {name: value for name, value in options.items() if value is not None}
        if options.keys().isdisjoint(_OF_CACHE):
            options |= _CACHES.get(f"{source}@{revision}", {})
        cache = chosen_cache(options.get("cache"), options.get("cache_size"))
        if revision is not None:
            options["revision"] = revision
        urls = [one.url for one in endpoints]
        secrets = hash(Credentials(endpoints, token))
        key = tokenize(cls, os.getpid(), source, urls, options, secrets, opened, cache)
        with _LOCK:
            instance = None if skip_instance_cache else cls._cache.get(key)
            if instance is None:
                instance = type.__call__(cls, source, endpoint=endpoints, token=token, **options)
                instance._fs_token_ = key
                instance._opened_as = opened
                instance.storage_args = (source,)
                instance.storage_options = options
                if endpoint is not None:
                    options["endpoint"] = urls
                if opened is not None:
                    options["opened"] = opened
                if not skip_instance_cache:
                    cls._cache[key] = instance
            cls._latest = key
        return instance


class ReasonKneeFileSystem(ReadOnlyFileSystem, metaclass=_KeyedBySource):
    """Read-only filesystem over one commit of a Hub dataset or over a folder.

    Paths are those of the repository. Zip archives, whole or cut, also appear as folders: the members of
    `data/masks_aa` + `data/masks_ab` as `data/masks/…`. Reading a member costs one request.

    Instances are shared by all threads of a process that ask for the same source, revision, endpoints and token.

    Args:
        source: Hub dataset id, local folder, or any fsspec URL. Default: `$REASONKNEE_SOURCE`.
        revision: Branch, tag or commit of a Hub source; resolved to a commit once.
        endpoint: Base URL of a Hub or of a mirror of it, or several in order of preference.
        token: As in `huggingface_hub`. Bound to one origin, and to this source: no other call uses it. It is not part
            of what is shown, and not in clear in what is pickled; URLs carry a name for it.
        cache, cache_size: What is used and kept on this disk, see [`chosen_cache`]. The URLs of the same commit
            follow it in this process.
        encoding: Code page of member names that are not flagged as UTF-8.

    Raises:
        OptionError: No source, or an option that makes no sense.

    Examples:
        >>> from reasonknee_hf.hub.fs.filesystem import ReasonKneeFileSystem
        >>> fs = ReasonKneeFileSystem(source=str(rk.knee.sample.sample_folder()))
        >>> fs.glob("data/masks/knee_00[12].nii.gz")
        ['data/masks/knee_001.nii.gz', 'data/masks/knee_002.nii.gz']
    """

    protocol = "reasonknee"

    def __init__(
        self,
        source: str | os.PathLike[str] | None = None,
        revision: str | None = None,
        endpoint: Any = None,
        token: str | bool | None = None,
        *,
        cache: CacheLike = None,
        cache_size: int | str | None = None,
        encoding: str | None = None,
        **storage_options: Any,
    ) -> None:
        super().__init__(**storage_options)
        # The metaclass has settled all of these.
        self.source, self.revision = str(source), revision
        self._endpoints: tuple[Endpoint, ...] = endpoint
        self._encoding = encoding
        self._cache: Cache | None = chosen_cache(cache, cache_size)
        self._token = token
        self._opened_as: str | None = None  # the name by which a URL asked for these options
        self._mounted: MountedTree | None = None
        self._archive_states: dict[str, list[tuple[int, int, int]]] = {}
        self._lock = ForkSafeLock()

    def __repr__(self) -> str:
        told = [repr(self.source)]
        if self.revision is not None:
            told.append(f"revision={self.revision!r}")
        if not self._endpoints_are_usual():
            told.append(f"endpoint={[one.url for one in self._endpoints]}")
        return f"{type(self).__name__}({', '.join(told)})"

    def __reduce__(self) -> Any:
        options = {**self.storage_options, "endpoint": [one.url for one in self._endpoints]}
        sealed = None
        if name := self._credentials.name:
            options["opened"], sealed = name, seal(self._credentials.options)
        return _restore, (type(self), self.source, options, sealed, self._mounted and self._mounted.tree)

    @property
    def _credentials(self) -> Credentials:
        return Credentials(self._endpoints, self._token)

    # --- what is opened -------------------------------------------------------------------------------------

    @property
    def tree(self) -> Tree:
        """The files as they are, without what the archives hold."""
        return self._view.tree

    @property
    def archives(self) -> Mapping[str, CutArchive]:
        """Every zip archive by the folder that its members appear in."""
        return self._view.archives

    @property
    def _view(self) -> MountedTree:
        if self._mounted is None:
            with self._lock:
                if self._mounted is None:
                    said = any(one.token is not None for one in self._endpoints)
                    endpoint = self._endpoints if said or not self._endpoints_are_usual() else None
                    self._adopt(
                        open_tree(
                            self.source, self.revision, endpoint, self._token, cache=self._cache or False
                        )
                    )
        assert self._mounted is not None
        return self._mounted

    def invalidate_cache(self, path: str | None = None) -> None:
        """Lists a folder anew at the next use; a commit never changes."""
        super().invalidate_cache(path)
        if self._mounted is not None and self._mounted.tree.sha is None:
            self._mounted = None

    def _endpoints_are_usual(self) -> bool:
        """Whether other processes with this environment ask the same endpoints without being told."""
        return self._endpoints == resolve_endpoints(None, self.source)

    def _adopt(self, tree: Tree) -> None:
        """Uses an opened tree, or what this process already knows of the same one."""
        # A folder may change: what comes out of it is not kept.
        members = self._cache.pieces if self._cache is not None and tree.sha is not None else None
        mounted = MountedTree(tree, partial(CutArchive, encoding=self._encoding, cache=members))
        if tree.sha is not None:
            given = {name: self.storage_options[name] for name in _OF_CACHE if name in self.storage_options}
            _CACHES[tree.identity] = given
            urls = [one.url for one in self._endpoints]
            secrets = hash(self._credentials)  # what was opened with others is not shared
            key = tokenize(tree.identity, urls, self._encoding, repr(self._cache), secrets)
            with _LOCK:
                mounted = _OPENED.setdefault(key, mounted)
        self._mounted = mounted

    # --- addresses ------------------------------------------------------------------------------------------

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = str(stringify_path(path))
        # A URL stays one, as with http: its path alone would be taken for a file of any other source.
        return build_url(parse_url(path)) if path.startswith(SCHEME) else path.strip("/")

    @staticmethod
    def _get_kwargs_from_urls(url: str) -> dict[str, Any]:
        if not str(url).startswith(SCHEME):
            return {}
        address = parse_url(str(url))
        options = {
            "source": address.source,
            "revision": address.revision,
            "endpoint": address.endpoints or None,
            "opened": address.opened or None,
        }
        return {name: value for name, value in options.items() if value is not None}

    def _inside(self, path: str) -> tuple[str, str]:
        """A path or URL as the URL that names are given with, which is empty for a path, and the path below it.

        Raises:
            OptionError: It is the URL of another source.
        """
        path = self._strip_protocol(path)
        if not path.startswith(SCHEME):
            return "", path
        address = parse_url(path)
        if not self._is_mine(address):
            raise OptionError(
                f"{path} does not lie in {self!r}. Open it by a filesystem of its own: fsspec.open(URL), one by one"
            )
        return build_url(replace(address, path="")), address.path

    def _is_mine(self, address: Address) -> bool:
        if address.endpoints and resolve_endpoints(address.endpoints) != self._endpoints:
            return False
        if address.opened not in ("", self._opened_as, self._credentials.name):
            return False
        if address.revision not in (None, self.revision) and address.revision != self.tree.sha:
            return False
        source = address.source.removeprefix("file://")
        return source == self.source.removeprefix("file://") or source == self.tree.identity.partition("@")[0]

    def unstrip_protocol(self, name: str) -> str:
        """The full URL of a path, which opens without this instance."""
        return build_url(replace(self.tree.address, path=self._inside(name)[1]))

    def unasked_url(self, path: str) -> str:
        """The full URL of a path, made without asking which commit is meant, or whether there is such a file."""
        if self._mounted is not None or not is_repo_id(self.source) or os.path.isdir(self.source):
            return self.unstrip_protocol(path)
        endpoints = () if self._endpoints_are_usual() else tuple(one.url for one in self._endpoints)
        return build_url(Address(self.source, path, self.revision, endpoints, self._credentials.name))

    def url(self, path: str) -> str:
        """What `fsspec.open` opens in any other process: the tree's own URL of a file, ours for a member.

        Raises:
            FileMissingError: There is no such file or member.
        """
        found = self._locate(path)
        return self.tree.url(found.path) if found.archive is None else self.unstrip_protocol(found.path)

    def members(self, folder: str) -> list[str]:
        """Paths below `folder`: of the members of the archive mounted there, or of a real folder's files."""
        return self._view.members(self._inside(folder)[1])

    # --- reading --------------------------------------------------------------------------------------------

    def info(self, path: str, **kwargs: Any) -> Info:
        """About one file or folder. A size that the listing of a mirror leaves out is asked for."""
        info = super().info(path, **kwargs)
        if info["type"] == "file" and info["size"] is None:
            info = {**info, "size": self.tree.size(self._inside(path)[1])}
        return info

    def _info(self, path: str) -> Info | None:
        root, inner = self._inside(path)
        info = self._view.info(inner)
        return None if info is None else _named_below(root, info)

    def _children(self, path: str) -> list[Info] | None:
        root, inner = self._inside(path)
        children = self._view.children(inner)
        return None if children is None else [_named_below(root, info) for info in children]

    def _locate(self, path: str) -> Whereabouts:
        inner = self._inside(path)[1]
        found = self._view.locate(inner)
        if found.archive is None:
            return found
        name, state = found.archive.name, self._view.state(found)
        if self._archive_states.setdefault(name, state) != state:
            self.invalidate_cache()  # an archive of a folder was replaced: what is known of it is of another one
            self._archive_states[name] = state
            found = self._view.locate(inner)
        return found

    def ukey(self, path: str) -> str:
        """Another text as soon as a file changes: size and time of what a local folder holds. Commits do not change."""
        return str(self._view.state(self._locate(path)))

    def _contents(self, paths: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        members: dict[CutArchive, dict[str, str]] = {}
        for path in paths:
            found = self._locate(path)
            if found.archive is None:
                yield path, self.tree.read(found.path)
            else:
                members.setdefault(found.archive, {})[found.member] = path
        for archive, path_of in members.items():
            for member, content in archive.read_many(path_of):
                yield path_of[member], content

    def _stretches(self, spans: Mapping[str, list[Span]]) -> Iterator[tuple[str, list[bytes]]]:
        members: dict[str, list[Span]] = {}
        for path in spans:
            found = self._locate(path)
            if found.archive is None:
                size = self.tree.size(found.path)
                bounds = [slice_bounds(start, end, size) for start, end in spans[path]]
                yield path, Parts(self.tree, PartSet("", (found.path,))).spans([size], bounds)
            else:
                members[path] = spans[path]
        yield from super()._stretches(members)

    def stream(self, path: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """The bytes of a file in chunks of at most 64 KiB, by one plain GET that ends when the iterator is
        closed.

        Args:
            path: File or member.
            start: First byte.
            stop: End, exclusive; the end of the file by default.
        """
        found = self._locate(path)
        if found.archive is None:
            yield from self.tree.stream(found.path, start, stop)
        else:
            yield from pieces(found.archive.read(found.member)[start:stop])

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        found = self._locate(path) if mode == "rb" else None
        if found is not None and found.archive is None:
            return TreeFile(self, path, self.tree, found.path, **said(options))
        return super()._open(path, mode, **options)


def _named_below(root: str, info: Info) -> Info:
    return {**info, "name": f"{root}/{info['name']}".rstrip("/")} if root else info


def _restore(
    cls: Any, source: str, options: dict[str, Any], sealed: str | None, tree: Tree | None
) -> ReasonKneeFileSystem:
    if sealed is not None:
        options["opened"] = name_here(options["opened"], sealed)
    instance: ReasonKneeFileSystem = cls(source, **options)
    if tree is not None and instance._mounted is None:
        instance._adopt(tree)
    return instance
