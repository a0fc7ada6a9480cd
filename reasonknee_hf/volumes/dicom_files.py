"""A DICOM series as one NIfTI file of a filesystem, so that whatever reads volumes reads series as well.

    dicom://PatientID=9000001/SeriesDescription=DESS_RIGHT/axes=PIR/10300001.nii::/downloads/9000001/20041222/10300001

Behind `::` stands the folder of the slices, or a tar of them (`.tar`, `.tar.gz`, `.tgz`), local or any URL; before it
a name for the file and, as folders above it, what the series must say of itself (see `read_series`) and the axis codes
that are wanted. A tar is read as a stream and never unpacked to disk.
"""

from __future__ import annotations

import io
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO
from urllib.parse import quote, unquote

import fsspec
from fsspec.spec import AbstractFileSystem

from reasonknee_hf.errors import VolumeDataError
from reasonknee_hf.volumes.dicom_series import Series, read_ends, read_series
from reasonknee_hf.volumes.inflate import gzip_file
from reasonknee_hf.volumes.naming import NamedErrors

TARS = (".tar", ".tar.gz", ".tgz")
_BESIDE = re.compile(
    r"(^|/)(\.[^/]*|DICOMDIR|Thumbs\.db|[^/]*\.(csv|txt|json|xml|md5|html?|pdf|jpe?g|png))$", re.I
)
"""Names of files that lie beside slices and are none. Anything else must be a slice: a broken one is never skipped."""


def series_url(series: str, name: str, axes: str, wanted: Mapping[str, str]) -> str:
    """URL of a series as a NIfTI file.

    Args:
        series: Path or URL of its folder or tar.
        name: What to call the file; ends in `.nii`.
        axes: Axis codes, such as "PIR".
        wanted: What the series must say of itself; see [`read_series`].
    """
    said = "".join(f"{keyword}={quote(text, safe='')}/" for keyword, text in wanted.items())
    return f"dicom://{said}axes={axes}/{name}::{series}"


class DicomSeriesFileSystem(AbstractFileSystem):
    """The file system of `dicom://` URLs; `fsspec` opens them by itself.

    Args:
        fo: Path of the folder or tar in the target filesystem.
        target_protocol, target_options: The filesystem that holds it.
    """

    protocol = "dicom"
    cachable = False

    def __init__(
        self,
        fo: str,
        target_protocol: str | None = None,
        target_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.fo = fo.rstrip("/")
        self.target = fsspec.filesystem(target_protocol or "file", **(target_options or {}))

    def stream(self, path: str) -> Iterator[bytes]:
        """The bytes of the file in pieces; the series is read before the first."""
        yield from self._read(path).pieces()

    def header(self, path: str) -> bytes:
        """All bytes before the voxels: from the first and last slice of a folder where they settle them."""
        return self._header(path).header

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        series = self._header(path)
        size = len(series.header) + series.voxels.nbytes
        return {**self.target.info(self.fo), "name": path, "size": size, "type": "file"}

    def _open(self, path: str, mode: str = "rb", **options: Any) -> BinaryIO:
        return io.BytesIO(b"".join(self.stream(path)))

    # --- inside ----------------------------------------------------------------------------------------------

    def _header(self, path: str) -> Series:
        if not self.fo.endswith(TARS):
            names = self._names()
            ends = self._files(names[:: max(1, len(names) - 1)], start=True)
            with self._named_errors():
                found = read_ends(ends, len(names), *_wishes(path))
            if found is not None:
                return found
        return self._read(path)

    def _read(self, path: str) -> Series:
        files = self._tar_files() if self.fo.endswith(TARS) else self._files(self._names())
        with self._named_errors():
            return read_series(files, *_wishes(path))

    def _named_errors(self) -> NamedErrors:
        return NamedErrors(lambda: f"series {self.fo}", False, None)

    def _names(self) -> list[str]:
        """Names of the slices, the shorter first: `2` before `10`."""
        files = [entry["name"] for entry in self.target.ls(self.fo, detail=True) if entry["type"] == "file"]
        return sorted(
            (name for name in files if not _BESIDE.search(name)), key=lambda name: (len(name), name)
        )

    def _files(self, names: list[str], start: bool = False) -> Iterator[tuple[str, BinaryIO]]:
        for name in names:
            with self.target.open(name, "rb") as file:
                yield name.rpartition("/")[2], file if start else io.BytesIO(file.read())

    def _tar_files(self) -> Iterator[tuple[str, BinaryIO]]:
        with self.target.open(self.fo, "rb") as packed:
            file = packed if self.fo.endswith(".tar") else gzip_file(packed)
            try:
                with tarfile.open(fileobj=file, mode="r|") as tar:
                    for member in tar:
                        content = tar.extractfile(member)
                        if content is not None and not _BESIDE.search(member.name):
                            yield member.name.rpartition("/")[2], io.BytesIO(content.read())
                while file.read(1 << 20):  # to the end, where the checksum is verified
                    pass
            except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
                raise VolumeDataError(f"the tar is not whole ({error}); fetch it again") from error


def _wishes(path: str) -> tuple[dict[str, str], str | None]:
    pairs = [part.split("=", 1) for part in path.split("/") if "=" in part]
    wanted = {keyword: unquote(text) for keyword, text in pairs}
    return wanted, wanted.pop("axes", None)
