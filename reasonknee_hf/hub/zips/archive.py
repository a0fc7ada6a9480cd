"""Members of a zip archive that lies in a tree in one or several parts, at the price of one request each."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

from reasonknee_hf.errors import ArchiveError, IntegrityError, MemberMissingError, UnsafeNameError
from reasonknee_hf.hub.disk import GIB, DiskCache, ForkSafeLock, our_folders, write_file
from reasonknee_hf.hub.tree import Tree
from reasonknee_hf.hub.zips.archive_names import PartSet, common_folder, parent_folders, unsafe_reason
from reasonknee_hf.hub.zips.directory import LOCAL_HEADER, ArchiveMember, Directory, Location
from reasonknee_hf.hub.zips.opening import Opened, fetch_directory, listed_sizes, refuse_incomplete
from reasonknee_hf.hub.zips.ranges import Parts, execute, plan_requests

logger = logging.getLogger(__name__)

# A local header may be longer than the directory lets one think. Where something follows at once (always, in
# an archive without holes) this plays no part.
_SLACK = 4096
_LONGEST = 2 * 65535
# Names the form of a directory on disk: the number goes up when the fields of `Location` change.
_FORM = "zip directory 1"


class CutArchive:
    """A zip archive, cut into parts or whole, read by absolute byte ranges.

    Nothing is read before the first question about a member. Then the directory is fetched once: by one
    request where the last part holds it, by none where it is cached on disk. Each member costs one request
    after that, two at a time where it lies across a cut. Safe to share by threads, to pickle and to fork.

    Args:
        tree: Where the parts lie.
        parts: Found by [`find_part_sets`], or paths in the order of the bytes.
        encoding: Code page of member names that are not flagged as UTF-8, e.g. `"gbk"`.
        directory_cache: Folder for the directory. `None`: below `HF_HOME` for a tree at a commit, nowhere for
            others, whose content may change. `False`: nowhere.
        cache: Keeps the contents of members on disk.
    """

    def __init__(
        self,
        tree: Tree,
        parts: PartSet | Sequence[str],
        *,
        encoding: str | None = None,
        directory_cache: str | os.PathLike[str] | Literal[False] | None = None,
        cache: DiskCache | None = None,
    ) -> None:
        self.tree = tree
        self.parts = parts if isinstance(parts, PartSet) else PartSet("", tuple(parts))
        if not self.parts.paths:
            raise ArchiveError(f"an archive of {tree.name} was asked for without naming its parts")
        self.encoding = encoding
        self.cache = cache
        self._directory_cache = directory_cache
        self._lock = ForkSafeLock()
        self._opened: Opened | None = None

    @cached_property
    def _parts(self) -> Parts:
        return Parts(self.tree, self.parts)

    @property
    def name(self) -> str:
        """For messages: the parts and where they lie."""
        return self._parts.name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def __getstate__(self) -> dict[str, Any]:
        # The directory is cheaper to read again than to send along. Cached properties go with it.
        derived = {"path_names", "mounted", "_parts"}
        return {key: value for key, value in self.__dict__.items() if key not in derived} | {"_opened": None}

    # --- what is inside -------------------------------------------------------------------------------------

    @property
    def directory(self) -> Directory:
        """Every entry of the archive, also those that [`names`] hides.

        Raises:
            ArchiveError: The parts are not a readable zip archive.
        """
        return self._open().directory

    @property
    def part_sizes(self) -> tuple[int, ...]:
        """Bytes of each part."""
        return self._open().sizes

    def names(self) -> list[str]:
        """Names of the real members in the order of the directory: no folders, links or shadow entries.

        Names have forward slashes. They may be unsafe as paths (`../x`); [`extract`] refuses those.
        """
        return list(self.directory.files)

    def member(self, name: str | bytes) -> ArchiveMember:
        """The entry of one member. Of several with one name it is the last.

        Args:
            name: As in [`names`], or the raw bytes as they stand in the archive.

        Raises:
            MemberMissingError: There is no such entry.
        """
        directory = self.directory
        index = directory.files.get(name) if isinstance(name, str) else None
        if index is None:  # links, folders and shadow entries have no place among the files
            every = enumerate(directory)
            index = max((number for number, one in every if name in (one.name, one.raw_name)), default=None)
        if index is None:
            raise MemberMissingError(
                f"no member {name!r} in {self.name}, which holds {len(directory.files)} files"
            )
        return directory[index]

    @cached_property
    def path_names(self) -> list[str]:
        """The names that can be paths. Other members can be read by name but are no files of a filesystem."""
        names = self.names()
        safe = [name for name in names if unsafe_reason(name) is None]
        folders = parent_folders(safe)
        kept = [name for name in safe if name not in folders]
        hidden = len(names) - len(kept)
        if hidden:
            logger.warning(
                "%d of %d members of %s have names that cannot be paths; they are not shown as files and can "
                "only be read by name",
                hidden,
                len(names),
                self.name,
            )
        return kept

    @cached_property
    def mounted(self) -> Mapping[str, str]:
        """Paths below the folder that stands for the archive -> names of the members.

        They are the [`path_names`] without the leading folder that all of them share.
        """
        prefix = len(common_folder(self.path_names))
        return {name[prefix:]: name for name in self.path_names}

    # --- reading --------------------------------------------------------------------------------------------

    def read(self, name: str | bytes) -> bytes:
        """The content of one member, verified by size and CRC.

        Raises:
            MemberMissingError: There is no such member.
            ArchiveError: The member is encrypted, a link, too large, or packed by another method than
                deflate.
            IntegrityError: What came is not what the directory announces.
        """
        return next(content for _, content in self.read_many([name]))

    def read_many(self, names: Iterable[str | bytes]) -> Iterator[tuple[str, bytes]]:
        """Yields `(name, content)` of members, each once: those of the disk cache first, then as they lie.

        Members that lie together travel in one request; requests run side by side, and what is held stays
        within bounds. Raises what [`read`] raises, and before anything is fetched where the directory
        alone tells that a member cannot be read.
        """
        members = {member.raw_name: member for member in map(self.member, names)}
        wanted = []
        for member in members.values():
            cached = self.cache.get(self._cache_key(member)) if self.cache else None
            if cached is None:
                wanted.append(member)
            else:
                yield member.name, cached
        plan = plan_requests([self._span(member) for member in wanted], self.part_sizes)
        for index, answer in execute(plan, partial(self._parts.fetch, checked_later=True)):
            content = self._content(wanted[index], answer)
            if self.cache:
                self.cache.put(self._cache_key(wanted[index]), content)
            yield wanted[index].name, content

    def extract(self, folder: str | os.PathLike[str], names: Iterable[str] | None = None) -> list[Path]:
        """Writes members to a folder, under their full names.

        Each file appears complete or not at all. All names are checked before the first byte is written.

        Args:
            folder: Made if absent.
            names: Members; all of them by default.

        Raises:
            UnsafeNameError: A name would leave the folder, or a link in the folder leads out of it.
        """
        root = Path(folder).resolve()
        members = [self.member(name) for name in (self.names() if names is None else names)]
        folders = parent_folders(member.name for member in members)
        for member in members:
            reason = member.unsafe
            if member.name in folders:
                reason = "it is also the folder of another member"
            elif reason is None and not (root / member.name).parent.resolve().is_relative_to(root):
                reason = "a link in the folder leads out of it"
            if reason is not None:
                raise UnsafeNameError(
                    f"member {member.name!r} of {self.name} is not written to {root}: {reason}. Use `read` "
                    f"and choose a file name of your own"
                )
        return [write_file(root / name, content) for name, content in self.read_many(m.name for m in members)]

    def _cache_key(self, member: ArchiveMember) -> str:
        where_it_lies = (self.tree.identity, *self.parts.paths, member.header)
        return repr(("member", *where_it_lies, member.size, member.crc))

    def _span(self, member: ArchiveMember, slack: int = _SLACK) -> tuple[int, int]:
        """The range that brings a member's local header and data in one go."""
        member.refuse_unreadable(self.name)
        least = LOCAL_HEADER.size + len(member.raw_name) + member.compressed_size
        length = max(least, min(self.directory.room(member.header), least + slack))
        if member.header + length > self.directory.location.start:
            raise ArchiveError(
                f"member {member.name!r} of {self.name} would reach into the directory behind it: damaged"
            )
        return member.header, member.header + length

    def _content(self, member: ArchiveMember, answer: bytes) -> bytes:
        try:
            return member.unpack(answer, self.name)
        except IntegrityError as error:
            # The checksum was the only proof so far. Ask once more, with the proofs that cost extra, if need be at
            # every endpoint, and for all of a local header that is longer than could be foreseen.
            logger.info("%s; reading it once more", error)
            requests = plan_requests([self._span(member, _LONGEST)], self.part_sizes).requests
            return self._parts.checked(requests, partial(member.unpack, where=self.name))

    # --- opening --------------------------------------------------------------------------------------------

    def _open(self) -> Opened:
        if self._opened is None:
            with self._lock:
                if self._opened is None:
                    self._opened = self._load()
        return self._opened

    def _load(self) -> Opened:
        refuse_incomplete(self._parts)
        listed = listed_sizes(self._parts)
        folder = self._directory_cache
        if folder is None and self.tree.sha is not None:
            folder = our_folders()["directories"]
        if not folder:
            return self._fetch(listed)[0]

        def fetched() -> bytes:
            opened, data = self._fetch(listed)
            return json.dumps([opened.sizes, vars(opened.directory.location)]).encode() + b"\n" + data

        key = json.dumps([_FORM, self.tree.identity, self.parts.paths, listed])
        head, _, data = DiskCache(Path(folder), GIB).once(key, fetched).partition(b"\n")
        sizes, location = json.loads(head)
        return Opened(Directory(data, Location(**location), encoding=self.encoding), tuple(sizes))

    def _fetch(self, listed: Sequence[int | None]) -> tuple[Opened, bytes]:
        opened, data = fetch_directory(self._parts, listed, encoding=self.encoding)
        repeated = opened.directory.repeated
        if repeated:
            logger.warning("%s holds %d members whose name comes again; the last counts", self.name, repeated)
        return opened, data
