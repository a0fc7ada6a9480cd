"""The dataset card: merged into whatever card is there, touching only what is ours."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from datasets import Features

from reasonknee_hf.errors import PublishError
from reasonknee_hf.publish.attribution import LICENCE, SOURCE_ID, attribution, require_attribution
from reasonknee_hf.publish.cardtext import section
from reasonknee_hf.publish.config_facts import ConfigFacts, Folder
from reasonknee_hf.publish.convert import Conversion
from reasonknee_hf.publish.picture import grade_picture, picture_name
from reasonknee_hf.publish.rules import card_problems, front_matter, is_default, size_category
from reasonknee_hf.publish.schema import has_volumes, plain_volumes
from reasonknee_hf.publish.texts import text_of, write

logger = logging.getLogger(__name__)

CARD = "README.md"

UNNAMED = re.compile(r"data/([^/]+?)-\d{5}-of-\d{5}[^/]*\.[^/]*")
"""Files that `datasets` takes for the config `default` of a card without configs."""

_TAGS = ["medical", "mri", "knee", "3d", "moaks", "nifti"]
_TASKS = ["visual-question-answering", "image-text-to-text"]
_KEY = re.compile(r"^(?=[^\s#-])(?:\"[^\"]*\"|'[^']*'|[^:#]+?)\s*:(?=\s|$)", re.MULTILINE)


def write_card(root: Path, conversion: Conversion, *, defects: Sequence[str] | None = None) -> str:
    """Merges a conversion into `README.md` of a folder and returns the card.

    Raises:
        PublishError: The merged card would be refused by the Hub; all problems are listed.
    """
    old, names = text_of(root / CARD), Folder(root).names()
    card, pictures = merged_card(old, conversion, place=local_place(root), defects=defects, names=names)
    for name, content in {**pictures, CARD: card.encode()}.items():
        write(root / name, content)
    return card


def local_place(root: Path) -> str:
    """What `load_dataset` is given for a folder, from the folder above it."""
    return f"./{root.resolve().name}"


def merged_card(
    old: str,
    conversion: Conversion,
    *,
    place: str,
    defects: Sequence[str] | None = None,
    names: Iterable[str] = (),
    deleted: Sequence[str] = (),
) -> tuple[str, dict[str, bytes]]:
    """The card with the configs and the section of a conversion, and the pictures that lie beside it.

    Other configs, unknown keys and hand-written text stay as they are, to the letter.

    Args:
        old: The card that is there; empty if there is none.
        conversion: What was written.
        place: What `load_dataset` is given: a repository id or a folder.
        defects: Known defects of the release, `None` if it was not verified.
        names: Files that lie beside the card.
        deleted: Configs whose entries and sections are to go.

    Raises:
        PublishError: The merge would bring in what the Hub refuses, or the old metadata cannot be read.
    """
    read_metadata(front_matter(old)[0])
    before = card_problems(old) if front_matter(old)[0] else []
    windows = old.count("\r\n") == old.count("\n") > 0
    old = without_configs(old.replace("\r\n", "\n"), deleted)
    first = conversion.configs[0]
    content = grade_picture(first.counts) if first.counts else None
    pictures = {} if content is None else {picture_name(first.name): content}
    text, body = front_matter(old)
    metadata = merged_metadata(text, conversion, names)
    if not body.strip():
        body = "\n# 3DReasonKnee, derived version\n"
    body = _placed(body, first.name, section(conversion, place, defects, next(iter(pictures), None)))
    body = _placed(body, "attribution", attribution())
    card = f"---\n{metadata}---\n{body}"
    require_attribution(card)
    problems = [problem for problem in card_problems(card) if problem not in before]
    if problems:
        raise PublishError("The card would be refused: " + "; ".join(problems) + ". Nothing was sent.")
    return card.replace("\n", "\r\n") if windows else card, pictures


def merged_metadata(old: str, conversion: Conversion, names: Iterable[str] = ()) -> str:
    """YAML text of the metadata: the old one, in which only the keys that we change are written anew.

    Raises:
        PublishError: The old metadata cannot be read, or data of others could not be loaded any more.
    """
    data = read_metadata(old)
    ours = _config_names(conversion)
    infos = [
        info for info in _listed(data.get("dataset_info")) if info.get("config_name", "default") not in ours
    ]
    unnamed = [] if data.get("configs") else _unnamed_config(names)
    there = data.get("configs") or unnamed
    if unnamed and "default" in ours:
        raise PublishError(
            f"The files {unnamed[0]['data_files'][0]['path']} that are there are loaded as the config 'default', "
            "which a config of that name would hide. Choose another name=, or remove them."
        )
    configs = [one for one in there if one.get("config_name") not in ours]
    entries = [_config_entry(config, name) for config, name, _ in _card_configs(conversion)]
    if not any(is_default(one) for one in configs):
        entries[0] = {**entries[0], "default": True}
    configs = _in_place(there, [*configs, *entries])
    infos = [
        *infos,
        *(_info_entry(config, name, features) for config, name, features in _card_configs(conversion)),
    ]
    changes: dict[str, Any] = {
        "license": data.get("license", LICENCE),
        "language": data.get("language", ["en"]),
        "pretty_name": data.get("pretty_name", "3DReasonKnee, derived version"),
        "size_categories": [size_category(_question_rows(infos))],
        "task_categories": _union(data.get("task_categories"), _TASKS),
        "tags": _union(data.get("tags"), _TAGS),
        "source_datasets": _union(data.get("source_datasets"), [SOURCE_ID]),
        "configs": configs,
        "dataset_info": infos,
    }
    if data.get("license") not in (None, LICENCE, [LICENCE]):
        logger.warning("the card says licence %r; the derived data are %s", data["license"], LICENCE)
    return _rewritten(old, data, {key: _plain(value) for key, value in changes.items()})


def read_metadata(text: str) -> dict[str, Any]:
    """The metadata of a card that is there.

    Raises:
        PublishError: They are not YAML, or not of the kinds that can be merged.
    """
    try:
        data = yaml.safe_load(text)
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


def _unnamed_config(names: Iterable[str]) -> list[dict[str, Any]]:
    """The config that a card without configs stands for: `datasets` finds files of this pattern by themselves."""
    splits = sorted({found[1] for name in names if (found := UNNAMED.fullmatch(name))})
    files = [{"split": split, "path": f"data/{split}-*"} for split in splits]
    return [{"config_name": "default", "data_files": files}] if files else []


def without_configs(card: str, names: Sequence[str]) -> str:
    """The card without some configs: their entries in the metadata and the sections that we wrote about them."""
    text, body = front_matter(card)
    if not names or not text:
        return card
    data = read_metadata(text)
    gone = {*names, *(f"{name}_bytes" for name in names)}
    changes: dict[str, Any] = {
        key: [one for one in _listed(data.get(key)) if one.get("config_name") not in gone]
        for key in ("configs", "dataset_info")
        if key in data
    }
    for name in names:
        begin, end = _marks(name)
        start, stop = body.find(begin), body.find(end)
        if 0 <= start < stop:
            body = body[:start].rstrip("\n") + "\n\n" + body[stop + len(end) :].lstrip("\n")
    return f"---\n{_rewritten(text, data, changes)}---\n{body}"


def _config_names(conversion: Conversion) -> set[str]:
    """Names that this conversion writes, or would with other options: stale ones must go."""
    job = conversion.job
    return {
        job.name,
        job.volumes_name,
        f"{job.volumes_name}_bytes",
        job.crops_name,
        f"{job.crops_name}_bytes",
    }


def _card_configs(conversion: Conversion) -> list[tuple[ConfigFacts, str, Features | None]]:
    """Config, name and features of each entry of the card.

    A single `Nifti` in the card keeps `datasets` before 4.4 from loading any config of the repository. So the
    card gives no features for volumes (the files do), and each such config a second entry with the plain struct.
    """
    entries: list[tuple[ConfigFacts, str, Features | None]] = []
    for config in conversion.configs:
        if has_volumes(config.features):
            entries.append((config, config.name, None))
            entries.append((config, f"{config.name}_bytes", plain_volumes(config.features)))
        else:
            entries.append((config, config.name, config.features))
    return entries


def _config_entry(config: ConfigFacts, name: str) -> dict[str, Any]:
    files = [{"split": split, "path": facts.pattern} for split, facts in config.splits.items()]
    return {"config_name": name, "data_files": files}


def _info_entry(config: ConfigFacts, name: str, features: Features | None) -> dict[str, Any]:
    entry: dict[str, Any] = {"config_name": name}
    if features is not None:
        entry["features"] = features._to_yaml_list()
    entry["splits"] = [
        {"name": split, "num_bytes": facts.data_bytes, "num_examples": facts.rows}
        for split, facts in config.splits.items()
    ]
    entry["download_size"] = sum(facts.file_bytes for facts in config.splits.values())
    entry["dataset_size"] = sum(facts.data_bytes for facts in config.splits.values())
    return entry


def _question_rows(infos: Sequence[Mapping[str, Any]]) -> int:
    """Rows of the largest config: rows of volumes, and of the same questions in other configs, are not further data."""
    splits = [[one for one in info.get("splits") or () if isinstance(one, dict)] for info in infos]
    counts = [[one.get("num_examples") for one in some] for some in splits]
    return max((sum(count for count in some if isinstance(count, int)) for some in counts), default=0)


def _in_place(old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """`new` in the order of `old`, what is not in there at the end."""
    order = {one.get("config_name"): number for number, one in enumerate(old)}
    return sorted(new, key=lambda one: order.get(one.get("config_name"), len(order)))


def _union(old: Any, ours: Sequence[str]) -> list[Any]:
    there = _listed(old)
    return [*there, *(word for word in ours if word not in there)]


def _plain(value: Any) -> Any:
    """Plain YAML values: no numpy scalars, tuples or subclasses of dict, which become tags that the Hub refuses."""
    if isinstance(value, Mapping):
        return {_plain(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if hasattr(value, "item") and not isinstance(value, (str, bytes)):
        return value.item()
    if isinstance(value, str):
        return str(value)
    return value


def _rewritten(old: str, data: Mapping[str, Any], changes: Mapping[str, Any]) -> str:
    """The YAML text with some keys changed; lines of all others stay, comments too."""
    text = old if not old or old.endswith("\n") else old + "\n"
    changed = {key: value for key, value in changes.items() if data.get(key) != value}
    starts = [match.start() for match in _KEY.finditer(text)]
    blocks = [text[start:stop] for start, stop in pairwise([*starts, len(text)])]
    result = text[: starts[0]] if starts else text
    wanted = {**data, **changes}
    try:
        for block in blocks:
            key = next(iter(yaml.safe_load(block) or {None: None}))
            result += _dump({key: changed.pop(key)}) if key in changed else block
        result += "".join(_dump({key: value}) for key, value in changed.items())
        same = yaml.safe_load(result) == wanted
    except (yaml.YAMLError, TypeError):
        same = False
    # Anchors or a flow mapping at the top: then the whole block is written anew.
    return result if same else _dump(wanted)


def _dump(value: Mapping[str, Any]) -> str:
    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, line_break="\n", width=1000))


def _placed(body: str, name: str, text: str) -> str:
    """The body with our block `name` replaced, or added at the end; everything between other marks stays."""
    begin, end = _marks(name)
    block = f"{begin}\n{text.strip()}\n{end}"
    start = body.find(begin)
    stop = body.find(end, start)
    if start >= 0 and stop >= 0:
        return body[:start] + block + body[stop + len(end) :]
    return body.rstrip("\n") + f"\n\n{block}\n"


def _marks(name: str) -> tuple[str, str]:
    return f'<!-- reasonknee_hf:begin "{name}" -->', f'<!-- reasonknee_hf:end "{name}" -->'


def _listed(value: Any) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]
