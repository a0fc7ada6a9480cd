"""The Hub's rules for the metadata of a dataset card, checked offline, all problems at once."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import yaml

from reasonknee_hf.errors import PublishError
from reasonknee_hf.publish.card_words import card_text

MOST_BYTES = 1_000_000
"""Of a whole card; the Hub refuses much longer ones."""

_SPLIT = re.compile(r"\w+(\.\w+)*")
_FRONT = re.compile(r"\A(?:\ufeff)?---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)


@cache
def _hub_words() -> dict[str, list[str]]:
    """Key of a card → the values that the Hub takes."""
    return dict(read_yaml(card_text("hub_words.yaml")))


def read_yaml(text: str) -> Any:
    """What a text of plain YAML says; by the fast parser where it is there."""
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def size_category(rows: int) -> str:
    """The Hub's word for a number of rows: one for each power of ten from a thousand to a billion thousands."""
    *words, most, _ = _hub_words()["size_categories"]
    digits = len(str(rows))
    return [*words, most][min(max(digits - 3, 0), len(words))]


def front_matter(card: str) -> tuple[str, str]:
    """YAML text and body of a card; the first is empty where it has none."""
    found = _FRONT.match(card)
    return (found.group(1), card[found.end() :]) if found else ("", card)


def read_metadata(text: str) -> dict[str, Any]:
    """The metadata of a card that is there.

    Raises:
        PublishError: They are not YAML, or not of the kinds that can be merged.
    """
    try:
        data = read_yaml(text)
    except (yaml.YAMLError, ValueError) as error:
        raise PublishError(
            f"The card that is there has metadata that are not YAML: {' '.join(str(error).split())}. Mend it first."
        ) from None
    data = {} if data is None else data
    if not isinstance(data, dict):
        raise PublishError(
            "The card that is there begins with a block between lines of '---' that holds no keys and values but a "
            f"{type(data).__name__}. Mend it first."
        )
    for key in ("configs", "dataset_info"):
        listed = data.get(key) or []
        listed = [listed] if key == "dataset_info" and isinstance(listed, dict) else listed
        if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
            raise PublishError(
                f"{key} of the card that is there is no list of keys and values. Mend it first."
            )
    return data


def card_problems(card: str) -> list[str]:
    """What the Hub, or `datasets`, would refuse about a card; empty if nothing."""
    if len(card.encode()) > MOST_BYTES:
        return [f"the card has {len(card.encode()):,} bytes; more than {MOST_BYTES:,} are refused"]
    text, _ = front_matter(card)
    if not text:
        return ["there is no metadata: a card begins with a YAML block between two lines of '---'"]
    try:
        data = read_yaml(text)
    except (yaml.YAMLError, ValueError) as error:  # a date that does not exist is the latter
        return [f"the metadata are not plain YAML: {' '.join(str(error).split())}"]
    if not isinstance(data, dict):
        return ["the metadata must be keys and values"]
    return [*_keys(data), *_words(data), *_configs(data.get("configs")), *_infos(data.get("dataset_info"))]


def _keys(value: Any, path: str = "") -> Iterator[str]:
    """Keys that the Hub's database cannot hold."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if "." in str(key) or "$" in str(key):
                yield f"{path}{key}: a key with '.' or '$' cannot be stored"
            yield from _keys(inner, f"{path}{key}/")
    elif isinstance(value, list):
        for inner in value:
            yield from _keys(inner, path)


def _words(data: dict[str, Any]) -> Iterator[str]:
    for key, valid in _hub_words().items():
        for value in listed(data.get(key)):
            if value not in valid:
                yield f"{key}: {value!r} is not one of the Hub's"
    for key in ("tags", "language", "source_datasets"):
        yield from (
            f"{key}: {value!r} is not text" for value in listed(data.get(key)) if not isinstance(value, str)
        )
    for value in listed(data.get("language")):
        if isinstance(value, str) and not re.fullmatch(
            r"[a-z]{2,3}(-[A-Za-z0-9]+)*|code|multilingual", value
        ):
            yield f"language: {value!r} is no ISO 639 code"
    if not isinstance(data.get("pretty_name", ""), str):
        yield f"pretty_name: {data['pretty_name']!r} is not text"


def _configs(configs: Any) -> Iterator[str]:
    if configs is None:
        return
    if not isinstance(configs, list) or not all(isinstance(one, dict) for one in configs):
        yield "configs must be a list of keys and values"
        return
    names = Counter(str(one.get("config_name")) for one in configs)
    yield from (f"configs: {name!r} is there {count} times" for name, count in names.items() if count > 1)
    defaults = [str(one.get("config_name")) for one in configs if is_default(one)]
    if len(defaults) > 1:
        yield f"configs: more than one is the default: {', '.join(defaults)}"
    for one in configs:
        name = one.get("config_name")
        if not isinstance(name, str):
            yield f"configs: config_name {name!r} is not text"
        data_files = one.get("data_files")
        for entry in data_files if isinstance(data_files, list) else ():
            if not isinstance(entry, dict):
                continue
            if not _SPLIT.fullmatch(str(entry.get("split"))):
                yield f"configs: {entry.get('split')!r} of {name!r} is no name for a split"
            if not listed(entry.get("path")):
                yield f"configs: split {entry.get('split')!r} of {name!r} has no path"


def is_default(config: Mapping[str, Any]) -> bool:
    """Whether `datasets` loads this config where none is named: it says so, or has that name."""
    return bool(config.get("default")) or config.get("config_name") == "default"


def _infos(infos: Any) -> Iterator[str]:
    from datasets import Features

    if infos is None:
        return
    for info in listed(infos):
        if not isinstance(info, dict):
            yield "dataset_info must be keys and values, or a list of them"
            continue
        name = info.get("config_name", "default")
        if info.get("features") is not None:
            try:
                Features._from_yaml_list(info["features"])
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                yield f"dataset_info: the features of {name!r} cannot be read ({error})"
        for split in info.get("splits") or ():
            if not isinstance(split, dict) or not isinstance(split.get("num_examples"), int):
                yield f"dataset_info: num_examples of {name!r} is not a whole number"


def listed(value: Any) -> list[Any]:
    """A value of a card as a list: one entry needs none there."""
    return [] if value is None else value if isinstance(value, list) else [value]


# --- names that load back ------------------------------------------------------------------------------------------

# What `datasets` and file names on all systems take; the Hub adds its own rule for repositories.
_CONFIG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_PART = re.compile(r"(?!.*(?:--|\.\.))[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?")
_RESERVED = {"all"}
_FILES = {
    "readme.md",
    "croissant.json",
    "eval.yaml",
    "license",
    "notice",
}  # what lies beside the folders of configs
_LONGEST = 96  # with what is added to it, it is the name of folders, files and configs


def check_name(what: str, name: str) -> None:
    """Refuses the name of a config that would not load back, and proposes one that would.

    Raises:
        PublishError: The name is refused.
    """
    taken = name in _RESERVED or name.lower() in _FILES
    if _CONFIG.fullmatch(name) and not taken and not name.endswith(".") and len(name) <= _LONGEST:
        return
    proposed = re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("_.-") or "config"
    proposed = proposed[:_LONGEST].rstrip("_.-")
    if proposed in _RESERVED or proposed.lower() in _FILES:
        proposed = f"{proposed.partition('.')[0]}_rows"
    raise PublishError(
        f"{name!r} is no name for a {what}: it would not load back (letters, digits, '_', '-' and '.', beginning "
        f"with a letter or digit; at most {_LONGEST}; not {', '.join(sorted(_RESERVED | _FILES))}). {proposed!r} would."
    )


def check_repo(repo_id: str) -> None:
    """Refuses the id of a repository that the Hub would not take, and proposes one.

    Raises:
        PublishError: The id is refused.
    """
    if "://" in repo_id or repo_id.startswith("buckets/"):
        raise PublishError(
            f"{repo_id!r} is no dataset repository, and push writes to nothing else: give OWNER/NAME. convert "
            "writes to folders and to everything that fsspec writes."
        )
    parts = repo_id.split("/")
    if len(parts) == 2 and all(_PART.fullmatch(part) for part in parts) and not repo_id.endswith(".git"):
        return
    cleaned = [re.sub(r"[^A-Za-z0-9_.-]+", "-", part) for part in parts[-2:]]
    cleaned = [re.sub(r"-{2,}", "-", re.sub(r"\.{2,}", ".", part)).strip("-.")[:96] for part in cleaned]
    cleaned = cleaned if len(parts) > 1 else ["OWNER", *cleaned]
    proposed = "/".join(part.removesuffix(".git") or "name" for part in cleaned)
    raise PublishError(
        f"{repo_id!r} is no repository id: OWNER/NAME of letters, digits, '_', '-' and '.', at most 96 each, without "
        f"'--' or '..', not ending in .git. {proposed!r} would be one."
    )
