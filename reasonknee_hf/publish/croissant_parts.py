"""The entries that a Croissant 1.1 description (JSON-LD) is made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from reasonknee_hf.publish.card_words import CardWords
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
REPOSITORY = "repo"


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
        "@context": _CONTEXT,
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
