"""Files against tables, by the listing and the directory of the mask archive alone: no volume is read.

But for one thing: of gzip files of equal size in a folder, which lists no hashes, the last eight bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from reasonknee_hf.dataset.paths import PathResolver
from reasonknee_hf.errors import AmbiguousPathError, ArchiveError, IntegrityError, PointerError
from reasonknee_hf.hub.fs.filesystem import ReasonKneeFileSystem
from reasonknee_hf.hub.tree import POINTER_LIMIT, Tree, refuse_pointer
from reasonknee_hf.knee import layout
from reasonknee_hf.knee.checks.table_checks import Tables, fold_id
from reasonknee_hf.knee.images import ImageFolder
from reasonknee_hf.knee.published_release import PublishedRelease
from reasonknee_hf.knee.release import Release
from reasonknee_hf.knee.scans import Scan
from reasonknee_hf.verify.findings import Findings

_VOLUMES = (".nii", ".nii.gz")
_DATA = (*_VOLUMES, ".json", ".csv")
_GZIP_TRAILER = 8  # CRC-32 and size of what was packed


@dataclass(frozen=True)
class Held:
    """A volume or mask that is there.

    Args:
        source: The tree that holds it, or the filesystem of the release for a member of the mask archive.
        path: Of a file in its tree; `data/masks/…` of a member.
        size: Bytes; `None` where the listing does not say.
        content: Equal for equal contents, as far as listing or directory tell; else `None`.
        usable: False if it is empty, a pointer or cannot be read.
        opened: What opens it, where that is not the file of the tree: a series of DICOM.
    """

    source: Tree | ReasonKneeFileSystem
    path: str
    size: int | None
    content: str | None = None
    usable: bool = True
    opened: str | None = None

    @property
    def url(self) -> str:
        """What `fsspec.open` opens."""
        return self.opened or str(self.source.url(self.path))


@dataclass
class Files:
    """The volume and the mask of every scan, by its id, as far as they are there.

    `identical` holds the groups of paths that were reported as identical.
    """

    volumes: dict[str, Held] = field(default_factory=dict)
    masks: dict[str, Held] = field(default_factory=dict)
    identical: list[frozenset[str]] = field(default_factory=list)

    def report_identical(self, groups: Iterable[list[tuple[Scan, str]]], found: Findings) -> None:
        """Reports groups of files with the same content, unless a larger one was reported before.

        Args:
            groups: Scans, each with the path of its file; those of a group have the same content.
            found: Where defects go.
        """
        for group in groups:
            paths = frozenset(path for _, path in group)
            if len(paths) < 2 or any(paths <= known for known in self.identical):
                continue
            self.identical.append(paths)
            kind = "identical-files" if len({s.split for s, _ in group}) == 1 else "identical-in-two-splits"
            found.add(kind, ", ".join(f"{path} ({scan.split})" for scan, path in group[:4]))


def check_contents(release: Release, found: Findings) -> set[str]:
    """Reports empty files and pointers among the files of the release, and returns their paths.

    Small files are read, as only those can be pointers; at a Hub only those that the listing does not already
    show to be kept in LFS.
    """
    parts = {path for archive in release.fs.archives.values() for path in archive.parts.paths}
    return _unusable(release.tree, lambda path: path.endswith(_DATA) or path in parts, found)


def check_files(release: Release, tables: Tables, unusable: set[str], found: Findings) -> Files:
    """Compares volumes and masks with the tables.

    Args:
        release: Where they lie.
        tables: What is listed.
        unusable: What [`check_contents`] returned.
        found: Where defects go.
    """
    files = Files()
    own = _Root(_held(release.tree, unusable))
    members, archive_is_open = _archive_members(release, unusable, found)
    volume_roots = [own]
    if release.image_folder is not None:
        volume_roots = [
            _Images(release.image_folder, release.tree, tables, found),
            own,
        ]  # in the order in which a release looks
    mask_roots = [own, _Root(members)]
    if isinstance(release, PublishedRelease):
        volume_roots.append(_Published(release.tree, tables, "image_filepath", release.find_image))
        mask_roots.append(_Published(release.tree, tables, "label_filepath", release.find_mask))
    lost_volumes, named_volumes = _match(tables, "image_filepath", volume_roots, files.volumes, found)
    lost_masks, named_masks = _match(tables, "label_filepath", mask_roots, files.masks, found)
    for scan in tables:
        if scan.label_filepath is None:
            found.add("mask-unnamed", scan.scan_id)

    masks = {p: h for p, h in own.held.items() if p.endswith(_VOLUMES) and _is_mask(p)} | members
    volumes = {p: h for p, h in own.held.items() if p.endswith(_VOLUMES) and not _is_mask(p)}
    volumes = {p: h for p, h in volumes.items() if not _is_expert(p)}
    left_volumes = {p: h for p, h in volumes.items() if p not in named_volumes and h.usable}
    left_masks = {p: h for p, h in masks.items() if p not in named_masks and h.usable}
    _report_lost(lost_volumes, left_volumes, "volume", absent=not files.volumes, found=found)
    if archive_is_open:
        _report_lost(lost_masks, left_masks, "mask", absent=not (masks or files.masks), found=found)
    if tables.complete:
        for path in (*left_volumes, *left_masks, *_unlisted_experts(release, own.held)):
            found.add("file-unlisted", path)
    for held in (files.volumes, files.masks):
        files.report_identical(_alike_by_listing(tables, held, found), found)
    _report_unmeasured(release, found)
    return files


# --- what is there -----------------------------------------------------------------------------------------


def _is_mask(path: str) -> bool:
    return path.startswith(f"{layout.MASKS_FOLDER}/")


def _is_expert(path: str) -> bool:
    return path.startswith(f"{layout.EXPERT_FOLDER}/")


def _held(tree: Tree, unusable: set[str]) -> dict[str, Held]:
    return {
        path: Held(tree, path, entry.size, entry.sha256 or entry.blob_id, path not in unusable)
        for path, entry in tree.entries().items()
    }


def _unusable(tree: Tree, is_data: Callable[[str], bool], found: Findings) -> set[str]:
    unusable: set[str] = set()
    for path, entry in tree.entries().items():
        if not is_data(path) or entry.size is None or entry.size > POINTER_LIMIT:
            continue
        if entry.size == 0:
            found.add("empty-file", path)
            unusable.add(path)
        elif entry.sha256 is None:
            try:
                tree.read(path)
            except PointerError as error:
                found.add("pointer-file", str(error))
                unusable.add(path)
            except IntegrityError as error:
                found.add("file-unreadable", str(error))
                unusable.add(path)
    return unusable


def _archive_members(release: Release, unusable: set[str], found: Findings) -> tuple[dict[str, Held], bool]:
    """The members of the mask archive by path, and whether its directory could be read (or there is none)."""
    archive = release.fs.archives.get(release.mask_archive or layout.MASKS_FOLDER)
    if archive is None:
        return {}, True
    if unusable.intersection(archive.parts.paths):
        return {}, False  # reported as what it is
    try:
        directory, mounted = archive.directory, archive.mounted
    except (ArchiveError, IntegrityError) as error:
        found.add("archive-broken", str(error))
        found.not_checked.append("masks: their archive could not be opened")
        return {}, False
    members: dict[str, Held] = {}
    for below, name in mounted.items():
        path = f"{layout.MASKS_FOLDER}/{below}"
        member = directory[directory.files[name]]
        usable = True
        if member.size == 0:
            found.add("empty-file", f"{path} in {archive.name}")
            usable = False
        elif member.size <= POINTER_LIMIT:
            try:
                refuse_pointer(path, archive.read(name), archive.name)
            except PointerError as error:
                found.add("pointer-file", str(error))
                usable = False
            except (ArchiveError, IntegrityError) as error:
                found.add("file-unreadable", str(error))
                usable = False
        content = f"{member.size} bytes, CRC {member.crc:08x}"
        members[path] = Held(release.fs, path, member.size, content, usable)
    return members, True


# --- joining -----------------------------------------------------------------------------------------------


class _Root:
    """Files by path, and what finds them by a published path."""

    def __init__(self, held: Mapping[str, Held]) -> None:
        self.held = held
        self._resolver = PathResolver(held)

    def find(self, published: str) -> Held | None:
        """Raises [`AmbiguousPathError`] if several files fit."""
        path = self._resolver.find(published)
        return None if path is None else self.held[path]


class _Images(_Root):
    """What lies under `images=`, in any of its layouts."""

    def __init__(self, folder: ImageFolder, own: Tree, tables: Tables, found: Findings) -> None:
        self._folder, self._tree = folder, folder.tree or own
        self._scans = {scan.image_filepath: scan for scan in tables}
        broken = _unusable(folder.tree, lambda p: p.endswith(_VOLUMES), found) if folder.tree else set()
        self.held = _held(folder.tree, broken) if folder.tree else {}

    def find(self, published: str) -> Held | None:
        scan = self._scans[published]
        path = self._folder.path(scan)
        if path is None:
            return None
        return replace(self.held.get(path) or Held(self._tree, path, None), opened=self._folder.find(scan))


class _Published(_Root):
    """What lies in the tables of a published version, or beside them."""

    def __init__(self, tree: Tree, tables: Tables, column: str, find: Callable[[Scan], str | None]) -> None:
        self._tree, self._url = tree, find
        self._scans = {getattr(scan, column): scan for scan in tables}
        self.held = {}

    def find(self, published: str) -> Held | None:
        url = self._url(self._scans[published])
        return None if url is None else Held(self._tree, layout.from_root(published), None, opened=url)


def _match(
    tables: Tables, column: str, roots: Sequence[_Root], into: dict[str, Held], found: Findings
) -> tuple[list[tuple[Scan, str]], set[str]]:
    """Finds the file that each scan names in `column`, in the first root that has it.

    Returns:
        The scans without one, each with the path, and the paths of the files that are named.
    """
    lost: list[tuple[Scan, str]] = []
    named: set[str] = set()
    for scan in tables:
        published = getattr(scan, column)
        if published is None:
            continue
        try:
            hits = [held for root in roots if (held := root.find(published)) is not None]
        except AmbiguousPathError as error:
            found.add("path-ambiguous", f"{scan.scan_id}: {error}")
            continue
        if hits:
            into[scan.scan_id] = hits[0]
            named.update(held.path for held in hits)
        else:
            lost.append((scan, published))
    return lost, named


def _report_lost(
    lost: list[tuple[Scan, str]], left: dict[str, Held], what: str, *, absent: bool, found: Findings
) -> None:
    """Reports scans without their file; takes files out of `left` that differ in zeros or case only."""
    alike = {fold_id(path): path for path in left}
    for scan, published in lost:
        path = alike.get(fold_id(layout.from_root(published)))
        if path is not None:
            left.pop(path, None)
            found.add("ids-alike", f"{scan.scan_id} names {published}, the release holds {path}")
        else:
            kind = f"{what}s-absent" if absent else f"{what}-missing"
            found.add(kind, f"{scan.scan_id}: {published} ({scan.split})")


def _unlisted_experts(release: Release, own: Mapping[str, Held]) -> list[str]:
    named = {path for paths in release.expert_files.values() for path in paths}
    return [path for path in own if _is_expert(path) and path.endswith(_VOLUMES) and path not in named]


# --- identical files ---------------------------------------------------------------------------------------


def _alike_by_listing(
    tables: Tables, held: dict[str, Held], found: Findings
) -> Iterable[list[tuple[Scan, str]]]:
    sizes = Counter(one.size for one in {one.path: one for one in held.values()}.values())
    groups: dict[str, list[tuple[Scan, str]]] = {}
    for scan in tables:
        one = held.get(scan.scan_id)
        if one is not None and one.usable:
            try:
                content = one.content or (_trailer(one) if sizes[one.size] > 1 else None)
            except IntegrityError as error:
                found.add("file-unreadable", str(error))
                held[scan.scan_id] = replace(one, usable=False)
                continue
            if content is not None:
                groups.setdefault(content, []).append((scan, one.path))
    return groups.values()


def _trailer(held: Held) -> str | None:
    """Size and, from the end of a gzip file, CRC of its content: for folders, whose listing has no hashes."""
    if held.size is None or held.size < _GZIP_TRAILER or not held.path.endswith(".gz"):
        return None
    assert isinstance(held.source, Tree)
    (trailer,) = held.source.ranges(held.path, [(held.size - _GZIP_TRAILER, held.size)])
    return f"{held.size} bytes, {trailer.hex()}"


def _report_unmeasured(release: Release, found: Findings) -> None:
    unknown = [path for path, entry in release.tree.entries().items() if entry.size is None]
    if unknown:
        found.not_checked.append(
            f"pointer and empty files among {len(unknown):,} files: the listing does not give their sizes"
        )
