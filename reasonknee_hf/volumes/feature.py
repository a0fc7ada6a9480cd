"""The Arrow column type of a volume: stored as `datasets.Nifti` stores it, decoded to a lazy `KneeVolume`."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, ClassVar

import datasets
import pyarrow as pa

from reasonknee_hf import environment
from reasonknee_hf.errors import OptionError, PublishError, VolumeMissingError, VolumeTypeError
from reasonknee_hf.volumes import volume_bytes as source
from reasonknee_hf.volumes.volume import KneeVolume

_STORAGE = pa.struct({"bytes": pa.binary(), "path": pa.string()})
_ARROW_LIMIT = 2**31 - 1  # bytes that one Arrow array of type binary can hold

if hasattr(datasets, "Nifti"):
    _Base: Any = datasets.Nifti
else:

    @dataclass
    class _Base:  # type: ignore[no-redef]
        """The same storage and serialised form as `datasets.Nifti`, for versions that lack it."""

        decode: bool = True
        id: str | None = field(default=None, repr=False)
        dtype: ClassVar[str] = "nibabel.nifti1.Nifti1Image"
        pa_type: ClassVar[pa.DataType] = _STORAGE
        _type: str = field(default="Nifti", init=False, repr=False)

        def __call__(self) -> pa.DataType:
            return self.pa_type

        def flatten(self) -> Any:
            if self.decode:
                return self
            return {"bytes": datasets.Value("binary"), "path": datasets.Value("string")}


class VolumeFeature(_Base):
    """Column of lazy volumes: decodes to [`KneeVolume`], reads nothing while doing so.

    Storage is `{bytes: binary, path: string}` and the serialised type name stays `"Nifti"`, so what is
    written or pushed loads with plain `datasets` (4.4 and later), and `cast_column(name, datasets.Nifti())`
    gives the stock behaviour. What makes the column ours (`mask`, `labels`, `axes`) is not part of the serialised
    form: cast a table that was read back with the same arguments.

    With the formats numpy and torch, rows hold voxels instead of volumes: those of `KneeVolume.array()`, which
    the formats turn into int64 or float32 unless they are given a `dtype`. Rows of a batch are stacked where
    they have the same shape.

    Args:
        mask (`bool`, defaults to `False`): the volumes are label masks.
        labels (mapping of `str` to `int`, *optional*): names of structures, for masks.
        decode (`bool`, defaults to `True`): with False, rows hold the stored dict.
        id (`str`, *optional*): as in every feature type of `datasets`.
        axes (`str`, *optional*): axis codes of the grid that the boxes of the rows live on, see [`KneeVolume`]. Images
            and masks with the same `axes` have voxels in one order, whatever order their files have.
        across (`str`, defaults to `"R"`): the axis that slices lie along, see [`KneeVolume`]; `"S"` for axial ones.

    Examples:
        >>> feature = rk.VolumeFeature(axes="PIR")
        >>> feature.decode_example({"path": "a.nii.gz", "bytes": None})
        KneeVolume('a.nii.gz')
    """

    def __init__(
        self,
        mask: bool = False,
        labels: Mapping[str, int] | None = None,
        decode: bool = True,
        id: str | None = None,
        axes: str | None = None,
        across: str = "R",
    ) -> None:
        super().__init__(decode=decode, id=id)
        self.mask = mask
        self.labels = dict(labels) if labels is not None else None
        self.axes = axes
        self.across = across
        environment.volume_cache_bytes()  # a setting that is wrong is said before the first row is touched

    def __repr__(self) -> str:
        return f"VolumeFeature(mask={self.mask}, decode={self.decode})"

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def encode_example(self, value: Any) -> dict[str, Any]:
        """Turns a value into its stored dict.

        Args:
            value: a `KneeVolume`, path, bytes, stored dict or `nibabel` image. An image is stored as its
                bytes, also where it came from a file: it may have been changed since.

        Raises:
            VolumeTypeError: any other value, or a dict with neither path nor bytes.
        """
        if isinstance(value, KneeVolume):
            return value.storage
        if isinstance(value, (str, PurePath)):
            return {"bytes": None, "path": str(value)}
        if isinstance(value, (bytes, bytearray, memoryview)):
            return {"bytes": bytes(value), "path": None}
        if isinstance(value, Mapping) and (value.get("bytes") is not None or value.get("path") is not None):
            return {"bytes": value.get("bytes"), "path": value.get("path")}
        if "nibabel" in sys.modules:
            import nibabel.spatialimages

            if isinstance(value, nibabel.spatialimages.SpatialImage):
                single = isinstance(value, (nibabel.Nifti1Image, nibabel.Nifti2Image))
                image = value if single else nibabel.Nifti1Image.from_image(value)
                return {"bytes": image.to_bytes(), "path": None}
        raise VolumeTypeError(
            f"cannot store {type(value).__name__} as a volume: give a KneeVolume, a path, bytes, a nibabel"
            " image or a dict with 'path' or 'bytes'"
        )

    def decode_example(
        self, value: Any, token_per_repo_id: dict[str, str | bool | None] | None = None
    ) -> KneeVolume | None:
        """Wraps a stored value. Reads nothing; an already decoded value comes back as it is.

        Args:
            value: stored dict or path.
            token_per_repo_id: not used: volumes are opened later, possibly elsewhere, with the token known
                there.
        """
        if isinstance(value, str):
            value = {"bytes": None, "path": value}
        if not isinstance(value, dict):
            return value  # type: ignore[no-any-return]
        path, data = value.get("path"), value.get("bytes")
        if path is None and data is None:
            return None
        given: dict[str, Any] = {
            "mask": self.mask,
            "labels": self.labels,
            "axes": self.axes,
            "across": self.across,
        }
        return KneeVolume(_without_gzip_hop(path), data, **given)

    def cast_storage(self, storage: pa.Array) -> pa.StructArray:
        """Casts strings (paths), binaries (files) or structs of either to the stored type.

        Raises:
            VolumeTypeError: a column of any other type.
        """
        kind = storage.type
        nothing = pa.nulls(len(storage))
        if pa.types.is_null(kind):
            return pa.nulls(len(storage), _STORAGE)
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            data, path = nothing, storage
        elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            data, path = storage, nothing
        elif pa.types.is_struct(kind):
            names = {field.name for field in kind}
            if not names & {"bytes", "path"} and storage.null_count < len(storage):
                raise OptionError(  # not a `TypeError`, at which `datasets` would store the struct in its place
                    f"a volume cannot be stored as a dict of {', '.join(sorted(names))}: give 'path', or the 'bytes' of"
                    " a NIfTI file (a nibabel image of array and affine does it)"
                )
            data = storage.field("bytes") if "bytes" in names else nothing
            path = storage.field("path") if "path" in names else nothing
        else:
            raise VolumeTypeError(
                f"cannot cast a column of {kind} to volumes: paths, bytes or {{bytes, path}} are needed"
            )
        return _stored(data.cast(pa.binary()), path.cast(pa.string()), storage)

    def embed_example(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """A stored value with the bytes of its file and the base name of its path, as [`embed_storage`] writes it.

        Raises:
            PublishError: Half of an `.hdr` / `.img` pair, or an empty file.
            VolumeMissingError: The file is not there.
        """
        data, path = value["bytes"], value["path"]
        return {"bytes": _file_bytes(path) if data is None else data, "path": _base_name(path)}

    def embed_storage(
        self,
        storage: pa.StructArray,
        token_per_repo_id: dict[str, str | bool | None] | None = None,
        local_files: bool = True,
        remote_files: bool = True,
    ) -> pa.StructArray:
        """Puts the bytes of all files into the column, so that it can be read anywhere.

        Args:
            storage: the column.
            token_per_repo_id: not used.
            local_files, remote_files: with False, leave paths of that kind as they are.

        Returns:
            The column with `bytes` set and `path` cut to its base name.

        Raises:
            PublishError: a row that would be left without bytes, half of an `.hdr` / `.img` pair, or more
                than 2 GiB.
            VolumeMissingError: a file is not there.
        """
        contents: list[bytes | None] = []
        paths: list[str | None] = []
        read: dict[str, bytes] = {}  # rows of one scan share a file
        for row in storage.to_pylist():
            path, data = (row["path"], row["bytes"]) if row is not None else (None, None)
            wanted = path is None or (local_files if source.is_local(path) else remote_files)
            if row is not None and (data is not None or wanted):
                if data is None:
                    if path is None:
                        raise PublishError(
                            "a volume has neither path nor bytes, so nothing could be embedded"
                        )
                    data = read[path] = read.get(path) or _file_bytes(path)
                path = _base_name(path)
            contents.append(data)
            paths.append(path)
        if sum(len(data) for data in contents if data is not None) > _ARROW_LIMIT:
            raise PublishError(
                f"{len(storage)} volumes are more than the 2 GiB that one Arrow array can hold: embed fewer"
                " rows at a time (one row a scan, or a smaller writer_batch_size)"
            )
        return _stored(pa.array(contents, pa.binary()), pa.array(paths, pa.string()), storage)


def _stored(data: pa.Array, path: pa.Array, like: pa.Array) -> pa.StructArray:
    return pa.StructArray.from_arrays([data, path], fields=list(_STORAGE), mask=like.is_null())


def _file_bytes(path: str) -> bytes:
    path = _without_gzip_hop(path) or path
    if re.search(r"\.(hdr|img)(\.gz)?$", path):
        raise PublishError(
            f"{path} is half of an .hdr/.img pair, which one column cannot hold: convert it to .nii first"
        )
    try:
        data = b"".join(bytes(chunk) for chunk in source.chunks(path))
    except VolumeMissingError:
        raise
    except FileNotFoundError as error:
        raise VolumeMissingError(
            f"{path}: the volume cannot be opened, so it cannot be embedded ({error})"
        ) from error
    if not data:
        raise PublishError(f"{path} is empty, so nothing could be embedded")
    return data


def _base_name(path: str | None) -> str | None:
    """The last part of a path or of the first hop of a URL chain."""
    return None if path is None else re.split(r"[\\/]", (_without_gzip_hop(path) or path).split("::")[0])[-1]


def _without_gzip_hop(path: str | None) -> str | None:
    """The file behind `gzip://T1.nii::/folder/T1.nii.gz`, as streaming writes it."""
    return (
        path.split("::", 1)[1] if path is not None and path.startswith("gzip://") and "::" in path else path
    )


class _ReadBack(VolumeFeature):
    """The type `"Nifti"` of a table that was read back from disk, which does not say on which axes its boxes live.

    Where `datasets` has a type of that name, rows hold its images. Before 4.4 they hold volumes, which refuse boxes.
    """

    def decode_example(
        self, value: Any, token_per_repo_id: dict[str, str | bool | None] | None = None
    ) -> KneeVolume | None:
        volume = super().decode_example(value, token_per_repo_id)
        if isinstance(volume, KneeVolume):
            volume.axes_unknown = True
        return volume


def _register() -> None:
    """Makes the type name `"Nifti"` known to versions of `datasets` that lack it."""
    from datasets.features.features import _FEATURE_TYPES, register_feature

    if "Nifti" not in _FEATURE_TYPES:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # says only that registering is experimental
            register_feature(_ReadBack, "Nifti")


_register()
