"""The dataset card: merged into whatever card is there, touching only what is ours."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import pairwise
from typing import Any

import yaml
from datasets import Features

from reasonknee_hf.errors import PublishError
from reasonknee_hf.publish.card_words import words_of
from reasonknee_hf.publish.cardtext import attribution, grade_picture, require_attribution, section
from reasonknee_hf.publish.config_facts import ConfigFacts, Conversion
from reasonknee_hf.publish.rules import (
    card_problems,
    front_matter,
    is_default,
    listed,
    read_metadata,
    read_yaml,
    size_category,
)
from reasonknee_hf.publish.schema import has_volumes, plain_volumes

logger = logging.getLogger(__name__)

UNNAMED = re.compile(r"data/([^/]+?)-\d{5}-of-\d{5}[^/]*\.[^/]*")
"""Files that `datasets` takes for the config `default` of a card without configs."""

_TASKS = ["visual-question-answering", "image-text-to-text"]
_KEY = re.compile(r"^(?=[^\s#-])(?:\"[^\"]*\"|'[^']*'|[^:#]+?)\s*:(?=\s|$)", re.MULTILINE)


def merged_card(
    old: str,
    conversion: Conversion,
    *,
    place: str,
    defects: Sequence[str] | None = None,
    names: Iterable[str] = (),
    deleted: Sequence[str] = (),
    ours: Collection[str] = (),
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
        ours: Entries that earlier calls of the conversion wrote; they are replaced, or go.

    Raises:
        PublishError: The merge would bring in what the Hub refuses, or the old metadata cannot be read.
    """
    read_metadata(front_matter(old)[0])
    before = card_problems(old) if front_matter(old)[0] else []
    windows = old.count("\r\n") == old.count("\n") > 0
    old = without_configs(old.replace("\r\n", "\n"), deleted)
    first = conversion.configs[0]
    picture, content = f"grades-{first.name}.png", None
    if first.counts:
        content = grade_picture(first.counts)
    taken = picture in names and first.name not in ours  # a file of others
    pictures = {} if content is None or taken else {picture: content}
    words = words_of(conversion.job.release.dataset)
    text, body = front_matter(old)
    metadata = merged_metadata(text, conversion, names, ours)
    if not body.strip():
        body = f"\n# {words.name}, derived version\n"
    text = section(conversion, place, defects, next(iter(pictures), None))
    body = placed(body, first.name, text)
    block, text = "attribution", attribution(words)
    named = _marked(block).search(body)
    if named and words.source_url not in named["text"]:  # that of another dataset stays
        block, text = f"{block}-{conversion.job.dataset.name}", text.replace("\n", f": {words.name}\n", 1)
    body = placed(body, block, text)
    card = f"---\n{metadata}---\n{body}"
    require_attribution(card, words)
    problems = [problem for problem in card_problems(card) if problem not in before]
    if problems:
        raise PublishError("The card would be refused: " + "; ".join(problems) + ". Nothing was sent.")
    return card.replace("\n", "\r\n") if windows else card, pictures


def merged_metadata(
    old: str, conversion: Conversion, names: Iterable[str] = (), ours: Collection[str] = ()
) -> str:
    """YAML text of the metadata: the old one, in which only the keys that we change are written anew.

    Raises:
        PublishError: The old metadata cannot be read, or data of others could not be loaded any more.
    """
    data = read_metadata(old)
    written = card_configs(conversion)
    mine = {*ours, *(name for _, name, _ in written)}
    infos: Sequence[Mapping[str, Any]] = [
        info for info in listed(data.get("dataset_info")) if info.get("config_name", "default") not in mine
    ]
    unnamed = [] if data.get("configs") else _unnamed_config(names)
    there = data.get("configs") or unnamed
    if unnamed and "default" in mine:
        raise PublishError(
            f"The files {unnamed[0]['data_files'][0]['path']} that are there are loaded as the config 'default', "
            "which a config of that name would hide. Choose another name=, or remove them."
        )
    configs = [one for one in there if one.get("config_name") not in mine]
    entries = [_config_entry(config, name) for config, name, _ in written]
    if not configs or (any(map(is_default, there)) and not any(map(is_default, configs))):
        entries[0] = {**entries[0], "default": True}
    elif len(there) == 1 and not is_default(there[0]):
        # The only config is the one that is loaded without a name. Beside others it must say so, or that would break.
        configs = [{**there[0], "default": True}]
    configs = _in_place(there, [*configs, *entries])
    infos = [*infos, *(_info_entry(config, name, features) for config, name, features in written)]
    infos = _in_place(listed(data.get("dataset_info")), infos)
    words = words_of(conversion.job.release.dataset)
    changes: dict[str, Any] = {
        "license": data.get("license", words.licence),
        "language": data.get("language", ["en"]),
        "pretty_name": data.get("pretty_name", f"{words.name}, derived version"),
        "size_categories": [size_category(_question_rows(infos))],
        "task_categories": _union(data.get("task_categories"), _TASKS),
        "tags": _union(data.get("tags"), [*words.tags]),
        "source_datasets": _union(data.get("source_datasets"), [words.source]),
        "configs": configs,
        "dataset_info": infos,
    }
    return _rewritten(old, data, {key: _plain(value) for key, value in changes.items()})


def _unnamed_config(names: Iterable[str]) -> list[dict[str, Any]]:
    """The config that a card without configs stands for: `datasets` finds files of this pattern by themselves."""
    splits = sorted({found[1] for name in names if (found := UNNAMED.fullmatch(name))})
    files = [{"split": split, "path": f"data/{split}-*"} for split in splits]
    return [{"config_name": "default", "data_files": files}] if files else []


def default_config(metadata: str, names: Iterable[str] = ()) -> str | None:
    """The config that `load_dataset` gives without a name; `None` if it asks for one, or there is none."""
    configs = read_metadata(metadata).get("configs") or _unnamed_config(names)
    found = [str(one.get("config_name")) for one in configs if len(configs) == 1 or is_default(one)]
    return found[0] if found else None


def without_configs(card: str, names: Sequence[str]) -> str:
    """The card without some configs: their entries in the metadata and the sections that we wrote about them."""
    text, body = front_matter(card)
    if not names or not text:
        return card
    data = read_metadata(text)
    changes: dict[str, Any] = {
        key: [one for one in listed(data.get(key)) if one.get("config_name") not in names]
        for key in ("configs", "dataset_info")
        if key in data
    }
    for name in names:
        body = without_section(body, name)
    return f"---\n{_rewritten(text, data, changes)}---\n{body}"


def card_configs(conversion: Conversion) -> list[tuple[ConfigFacts, str, Features | None]]:
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
    there = listed(old)
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
            key = next(iter(read_yaml(block) or {None: None}))
            result += _dump({key: changed.pop(key)}) if key in changed else block
        result += "".join(_dump({key: value}) for key, value in changed.items())
        same = read_yaml(result) == wanted
    except (yaml.YAMLError, TypeError):
        same = False
    # Anchors or a flow mapping at the top: then the whole block is written anew.
    return result if same else _dump(wanted)


def _dump(value: Mapping[str, Any]) -> str:
    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, line_break="\n", width=1000))


# --- our blocks in the text: between marks that tell what we wrote, so that words of others are seen and kept ---------


def placed(body: str, name: str, text: str) -> str:
    """The body with our block `name` replaced, or added at the end; everything else stays.

    A block that was edited since it was written, or has lost its marks, is kept below the new one where it says what
    the new one does not.
    """
    text = text.strip()
    block = f"{_begin(name, text)}\n{text}\n{_end(name)}"
    found = _marked(name).search(body) or _unmarked(text).search(body)
    if found is None:
        return body.rstrip("\n") + f"\n\n{block}\n"
    written, there = found.groupdict().get("hash"), found["text"].strip()
    lines = {line.strip() for line in text.splitlines()}
    if written != _hash(there) and any(line.strip() not in lines for line in there.splitlines()):
        logger.warning("the section %s of the card was edited by hand: what was there is kept below it", name)
        block += f"\n\n<details><summary>As it was edited by hand: section {name}</summary>\n\n{there}\n\n</details>"
    after = body[found.end() :]
    return body[: found.start()] + block + ("" if after.startswith("\n") or not after else "\n\n") + after


def without_section(body: str, name: str) -> str:
    """The body without our block of that name."""
    found = _marked(name).search(body)
    if found is None:
        return body
    return body[: found.start()].rstrip("\n") + "\n\n" + body[found.end() :].lstrip("\n")


def _begin(name: str, text: str) -> str:
    return f'<!-- reasonknee_hf:begin "{name}" {_hash(text)} -->'


def _end(name: str) -> str:
    return f'<!-- reasonknee_hf:end "{name}" -->'


def _hash(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:8]


def _marked(name: str) -> re.Pattern[str]:
    begin = rf'<!-- reasonknee_hf:begin "{re.escape(name)}"(?: (?P<hash>[0-9a-f]{{8}}))? -->\n'
    return re.compile(rf"{begin}(?P<text>.*?){re.escape(_end(name))}", re.DOTALL)


def _unmarked(text: str) -> re.Pattern[str]:
    """A section of the same heading, as far as the next one, with the marks that are left of it."""
    heading = re.escape("\n".join(text.splitlines()[:3]))  # with the line that says whose it is
    mark = r"(?:<!-- reasonknee_hf:begin [^\n]*-->\n)?"
    end = r"(?:<!-- reasonknee_hf:end [^\n]*-->)|(?=^## |^<!-- reasonknee_hf:)|\Z"
    return re.compile(rf"^{mark}(?P<text>{heading}$.*?)(?:{end})", re.DOTALL | re.MULTILINE)
