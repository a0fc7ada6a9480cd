"""Croissant 1.1 descriptions (JSON-LD) of the raw release and of derived versions, for tools of any kind."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from datasets import ClassLabel, Value

from reasonknee_hf.errors import PublishError
from reasonknee_hf.publish.card_words import CardWords, card_text, words_of
from reasonknee_hf.publish.config_facts import ConfigFacts, Conversion
from reasonknee_hf.publish.schema import file_columns, is_volume
from reasonknee_hf.publish.standing import DESCRIPTION
from reasonknee_hf.version import __version__

REPOSITORY = "repo"


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
    sets = [one for one in before.get("distribution") or () if one.get("@id") != REPOSITORY]
    sets = [one for one in sets if str(one.get("@id")).removesuffix("-files") not in mine]
    records = [one for one in before.get("recordSet") or () if one.get("@id") not in mine]
    for config in conversion.configs:
        sets.append(
            file_set(
                f"{config.name}-files",
                [split.pattern for split in config.splits.values()],
                "application/x-parquet",
                f"Tables of the config {config.name}",
            )
        )
        records.append(_config_records(config))
    # A folder has no address of its own: the description then points to where the data come from.
    local = place.startswith("./")
    words = words_of(conversion.job.release.dataset)
    url = words.source_url if local else f"https://huggingface.co/datasets/{place}"
    text = f"A version of {words.name}, derived by reasonknee_hf"
    told = dataset_entry(
        words,
        place.rpartition("/")[2],
        f"{text} {__version__}; its card states the changes",
        url,
        [repository_entry("." if local else url, None), *sets],
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
    split = typed_entry(f"{config.name}/split", "split", "sc:Text") | {
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
    return record_set(config.name, fields, f"Rows: {rows}")


def _column_field(config: ConfigFacts, name: str, kind: Any, source: dict[str, str]) -> dict[str, Any]:
    inner = kind[0] if isinstance(kind, list) else getattr(kind, "feature", kind)
    many = inner is not kind
    if isinstance(inner, dict):
        whole = typed_entry(f"{config.name}/{name}", name, "sc:Text")
        del whole["dataType"]
        parts = [_part(config, name, part, one, source) for part, one in inner.items()]
        return whole | {"isArray": True, "arrayShape": "-1", "subField": parts}
    told = field_entry(config.name, name, _data_type(inner), source, name)
    if isinstance(kind, ClassLabel):
        told["description"] = "; ".join(f"{number}: {label}" for number, label in enumerate(kind.names))
    if name in file_columns(config.features):
        told["source"]["transform"] = {"jsonPath": "bytes"}
        told["description"] = "bytes of a NIfTI file" if is_volume(inner) else "picture"
        return told | ({"repeated": True} if many else {})
    return told | ({"isArray": True, "arrayShape": "-1"} if many else {})


def _part(config: ConfigFacts, column: str, name: str, kind: Any, source: dict[str, str]) -> dict[str, Any]:
    told = field_entry(f"{config.name}/{column}", name, _data_type(kind), source, column)
    told["source"]["transform"] = {"jsonPath": name}
    return told


def _data_type(kind: Any) -> str:
    if isinstance(kind, ClassLabel):
        return "sc:Integer"
    if isinstance(kind, Value):
        words = {"string": "sc:Text", "bool": "sc:Boolean", "binary": "sc:Text"}
        return words.get(kind.dtype, "sc:Integer" if "int" in kind.dtype else "sc:Float")
    return "sc:Text" if is_volume(kind) else "sc:ImageObject"


# --- the entries that a description is made of ----------------------------------------------------------------------


def dataset_entry(
    words: CardWords,
    name: str,
    text: str,
    url: str,
    distribution: list[dict[str, Any]],
    records: Iterable[Mapping[str, Any]],
) -> dict[str, Any]:
    """The whole description."""
    return {
        "@context": json.loads(card_text("croissant_context.json")),
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.1",
        "name": name,
        "description": text,
        "url": url,
        "license": words.licence_url,
        "creator": [{"@type": "sc:Person", "name": one} for one in words.creators],
        "citeAs": f"{', '.join(words.creators)}. {words.title}. {words.paper_url}",
        "sameAs": words.source_url,
        "version": __version__,
        "datePublished": words.published,
        "distribution": distribution,
        "recordSet": list(records),
    }


def repository_entry(url: str, sha: str | None) -> dict[str, Any]:
    return {
        "@type": "cr:FileObject",
        "@id": REPOSITORY,
        "name": REPOSITORY,
        "description": "The repository" + (f" at {sha}" if sha else ""),
        "contentUrl": url,
        "encodingFormat": "git+https",
        "sha256": "https://github.com/mlcommons/croissant/issues/80",  # the format's own word for "does not apply"
    }


def file_object(path: str, encoding: str, text: str) -> dict[str, Any]:
    return {
        "@type": "cr:FileObject",
        "@id": path,
        "name": path,
        "description": text,
        "contentUrl": path,
        "containedIn": {"@id": REPOSITORY},
        "encodingFormat": encoding,
    }


def file_set(name: str, includes: list[str], encoding: str, text: str) -> dict[str, Any]:
    return {
        "@type": "cr:FileSet",
        "@id": name,
        "name": name,
        "description": text,
        "containedIn": {"@id": REPOSITORY},
        "encodingFormat": encoding,
        "includes": includes,
    }


def record_set(name: str, fields: list[dict[str, Any]], text: str) -> dict[str, Any]:
    return {"@type": "cr:RecordSet", "@id": name, "name": name, "description": text, "field": fields}


def field_entry(records: str, name: str, kind: str, source: dict[str, str], column: str) -> dict[str, Any]:
    (where, file_id), *_ = source.items()
    told = {where: {"@id": file_id}, "extract": {"column": column}}
    return typed_entry(f"{records}/{name}", name, kind) | {"source": told}


def typed_entry(field_id: str, name: str, kind: str) -> dict[str, Any]:
    return {"@type": "cr:Field", "@id": field_id, "name": name, "dataType": kind}
