"""Croissant 1.1 descriptions (JSON-LD) of the raw release and of derived versions, for tools of any kind."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from datasets import ClassLabel, Value

from reasonknee_hf.errors import PublishError
from reasonknee_hf.knee import layout
from reasonknee_hf.knee.release import Release
from reasonknee_hf.publish.cardtext import CREATORS, LICENCE_URL, PAPER_URL, SOURCE_URL, TITLE
from reasonknee_hf.publish.config_facts import ConfigFacts, Conversion
from reasonknee_hf.publish.schema import file_columns, is_volume
from reasonknee_hf.publish.stale import DESCRIPTION
from reasonknee_hf.version import __version__

_CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "arrayShape": "cr:arrayShape",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "containedIn": "cr:containedIn",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "description": {"@container": "@language"},
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileObject": "cr:fileObject",
    "fileProperty": "cr:fileProperty",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isArray": "cr:isArray",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "name": {"@container": "@language"},
    "parentField": "cr:parentField",
    "path": "cr:path",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}
_REPOSITORY = "repo"
_RECORD_TEXTS = ("image", "prompt", "answer")
_TABLE_COLUMNS = (
    "patient_id", "time", "study_folder", "series_folder", "knee_side", "image_filepath", "label_filepath",
)  # fmt: skip


def release_croissant(release: Release) -> dict[str, Any]:
    """Describes a release as it is published: volumes, archive parts, tables and annotation arrays.

    Records of its split tables and texts of its annotation arrays can be streamed through it. To read a local copy with
    `mlcroissant`, map the id `repo` to the folder.
    """
    paths = release.tree.entries()
    distribution = [_repository(f"{SOURCE_URL}", release.sha)]
    distribution.append(
        _file_set("volumes", ["data/images/**/*.nii.gz"], "application/gzip", "MRI volumes, NIfTI")
    )
    records = []
    for path, entry in paths.items():
        if path.startswith((f"{layout.MASKS_FOLDER}_", f"{layout.MASKS_FOLDER}.")):
            told = {"sha256": entry.sha256} if entry.sha256 else {}
            text = "Piece of the zip archive of the masks; joined in order of their names they are one zip"
            distribution.append(_file_object(path, "application/zip", text) | told)
    for split in release.splits:
        table = layout.split_table(split)
        distribution.append(_file_object(table, "text/csv", f"Scans of the split {split}"))
        fields = [
            _field(f"scans_{split}", name, "sc:Text", {"fileObject": table}, name) for name in _TABLE_COLUMNS
        ]
        records.append(_record_set(f"scans_{split}", fields, f"Scans of the split {split}"))
    for split in release.annotated_splits():
        array = layout.annotation_file(split)
        distribution.append(_file_object(array, "application/json", f"Records of the split {split}"))
        fields = []
        for name in _RECORD_TEXTS:
            source = {"fileObject": {"@id": array}, "extract": {"jsonPath": f"$[*].{name}"}}
            fields.append(_typed(f"records_{split}/{name}", name, "sc:Text") | {"source": source})
        records.append(
            _record_set(
                f"records_{split}",
                fields,
                f"Questions of the split {split}; final_diagnosis is left out: nested",
            )
        )
    return _dataset("3DReasonKnee", "Grounded reasoning about knee MRI", SOURCE_URL, distribution, records)


def version_croissant(old: str, conversion: Conversion, place: str, deleted: Collection[str] = ()) -> str:
    """The description of a derived version as JSON text; configs that `old` describes, and others wrote, stay.

    Args:
        old: The description that is there; empty if there is none.
        conversion: What was written.
        place: Repository id, or folder: `./NAME`.
        deleted: Configs whose descriptions are to go, because they do, or are written anew.

    Raises:
        PublishError: `old` is not JSON, or no description.
    """
    before = _read(old)
    mine = {*(config.name for config in conversion.configs), *deleted}
    sets = [one for one in before.get("distribution") or () if one.get("@id") != _REPOSITORY]
    sets = [one for one in sets if str(one.get("@id")).removesuffix("-files") not in mine]
    records = [one for one in before.get("recordSet") or () if one.get("@id") not in mine]
    for config in conversion.configs:
        sets.append(
            _file_set(
                f"{config.name}-files",
                [split.pattern for split in config.splits.values()],
                "application/x-parquet",
                f"Tables of the config {config.name}",
            )
        )
        records.append(_config_records(config))
    # A folder has no address of its own: the description then points to where the data come from.
    local = place.startswith("./")
    url = SOURCE_URL if local else f"https://huggingface.co/datasets/{place}"
    text = f"A version of {TITLE.partition(':')[0]}, derived by reasonknee_hf"
    told = _dataset(
        place.rpartition("/")[2],
        f"{text} {__version__}; its card states the changes",
        url,
        [_repository("." if local else url, None), *sets],
        records,
    )
    if before and not str(before.get("description")).startswith(text):  # what others say of the whole stays
        told = before | {key: told[key] for key in ("distribution", "recordSet")}
    return json.dumps(told, indent=2, ensure_ascii=False) + "\n"


def _read(old: str) -> dict[str, Any]:
    try:
        told = json.loads(old) if old else {}
    except ValueError as error:
        raise PublishError(
            f"The {DESCRIPTION} that is there is not JSON: {error}. Mend or remove it."
        ) from None
    parts = (
        [told.get(key) or [] for key in ("distribution", "recordSet")] if isinstance(told, dict) else [None]
    )
    if not all(map(_is_list_of_objects, parts)):
        raise PublishError(
            f"The {DESCRIPTION} that is there is no object with lists of objects as distribution and recordSet. Mend "
            "or remove it."
        )
    return dict(told)


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, dict) for one in value)


def _config_records(config: ConfigFacts) -> dict[str, Any]:
    source = {"fileSet": f"{config.name}-files"}
    splits = "|".join(config.splits)
    split = _typed(f"{config.name}/split", "split", "sc:Text") | {
        "source": {
            "fileSet": {"@id": f"{config.name}-files"},
            "extract": {"fileProperty": "fullpath"},
            "transform": {"regex": f".*{config.name}/({splits})-[^/]*\\.parquet"},
        }
    }
    fields = [split]
    for name, kind in config.features.items():
        fields.append(_column_field(config, name, kind, source))
    rows = ", ".join(f"{name} {facts.rows:,}" for name, facts in config.splits.items())
    return _record_set(config.name, fields, f"Rows: {rows}")


def _column_field(config: ConfigFacts, name: str, kind: Any, source: dict[str, str]) -> dict[str, Any]:
    inner = kind[0] if isinstance(kind, list) else getattr(kind, "feature", kind)
    many = inner is not kind
    if isinstance(inner, dict):
        whole = _typed(f"{config.name}/{name}", name, "sc:Text")
        del whole["dataType"]
        parts = [_part(config, name, part, one, source) for part, one in inner.items()]
        return whole | {"isArray": True, "arrayShape": "-1", "subField": parts}
    told = _field(config.name, name, _data_type(inner), source, name)
    if isinstance(kind, ClassLabel):
        told["description"] = "; ".join(f"{number}: {label}" for number, label in enumerate(kind.names))
    if name in file_columns(config.features):
        told["source"]["transform"] = {"jsonPath": "bytes"}
        told["description"] = "bytes of a NIfTI file" if is_volume(inner) else "picture"
        return told | ({"repeated": True} if many else {})
    return told | ({"isArray": True, "arrayShape": "-1"} if many else {})


def _part(config: ConfigFacts, column: str, name: str, kind: Any, source: dict[str, str]) -> dict[str, Any]:
    told = _field(f"{config.name}/{column}", name, _data_type(kind), source, column)
    told["source"]["transform"] = {"jsonPath": name}
    return told


def _data_type(kind: Any) -> str:
    if isinstance(kind, ClassLabel):
        return "sc:Integer"
    if isinstance(kind, Value):
        words = {"string": "sc:Text", "bool": "sc:Boolean", "binary": "sc:Text"}
        return words.get(kind.dtype, "sc:Integer" if "int" in kind.dtype else "sc:Float")
    return "sc:Text" if is_volume(kind) else "sc:ImageObject"


def _dataset(
    name: str, text: str, url: str, distribution: list[dict[str, Any]], records: Iterable[Mapping[str, Any]]
) -> dict[str, Any]:
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.1",
        "name": name,
        "description": text,
        "url": url,
        "license": LICENCE_URL,
        "creator": [{"@type": "sc:Person", "name": one} for one in CREATORS],
        "citeAs": f"{', '.join(CREATORS)}. {TITLE}. {PAPER_URL}",
        "sameAs": SOURCE_URL,
        "version": __version__,
        "datePublished": "2025-10-23",
        "distribution": distribution,
        "recordSet": list(records),
    }


def _repository(url: str, sha: str | None) -> dict[str, Any]:
    return {
        "@type": "cr:FileObject",
        "@id": _REPOSITORY,
        "name": _REPOSITORY,
        "description": "The repository" + (f" at {sha}" if sha else ""),
        "contentUrl": url,
        "encodingFormat": "git+https",
        "sha256": "https://github.com/mlcommons/croissant/issues/80",  # the format's own word for "does not apply"
    }


def _file_object(path: str, encoding: str, text: str) -> dict[str, Any]:
    return {
        "@type": "cr:FileObject",
        "@id": path,
        "name": path,
        "description": text,
        "contentUrl": path,
        "containedIn": {"@id": _REPOSITORY},
        "encodingFormat": encoding,
    }


def _file_set(name: str, includes: list[str], encoding: str, text: str) -> dict[str, Any]:
    return {
        "@type": "cr:FileSet",
        "@id": name,
        "name": name,
        "description": text,
        "containedIn": {"@id": _REPOSITORY},
        "encodingFormat": encoding,
        "includes": includes,
    }


def _record_set(name: str, fields: list[dict[str, Any]], text: str) -> dict[str, Any]:
    return {"@type": "cr:RecordSet", "@id": name, "name": name, "description": text, "field": fields}


def _field(records: str, name: str, kind: str, source: dict[str, str], column: str) -> dict[str, Any]:
    (where, file_id), *_ = source.items()
    told = {where: {"@id": file_id}, "extract": {"column": column}}
    return _typed(f"{records}/{name}", name, kind) | {"source": told}


def _typed(field_id: str, name: str, kind: str) -> dict[str, Any]:
    return {"@type": "cr:Field", "@id": field_id, "name": name, "dataType": kind}
