"""Which limits of the Hub's viewer a derived version would hit, said before anything is uploaded.

The limits are those of the hosted dataset viewer: the first rows of a config must fit into 200 kB of JSON when long
text is cut, a row group into 300 MB, and cells must be of types that can be shown.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from reasonknee_hf.errors import OptionError, PublishError
from reasonknee_hf.publish.card_words import words_of
from reasonknee_hf.publish.cardtext import require_attribution
from reasonknee_hf.publish.places import Place, Store, decoded
from reasonknee_hf.publish.rules import card_problems, front_matter, read_metadata
from reasonknee_hf.publish.standing import CARD, manifests, matches, patterns

FIRST_ROWS_BYTES = 200_000
LEAST_ROWS = 10
ROW_GROUP_BYTES = 300_000_000
SHOWN_BYTES = 5_000_000_000
MOST_COLUMNS = 1000
MOST_SPLITS = 30
_CUT_TEXT = 100  # bytes that a long cell keeps


@dataclass(frozen=True)
class Finding:
    """One thing that would go wrong.

    Args:
        config: The config; empty for the card as a whole.
        text: What, and by how much.
        blocking: Whether the Hub would refuse or fail; otherwise the viewer shows less.
    """

    config: str
    text: str
    blocking: bool = True

    def __str__(self) -> str:
        return f"{self.config or 'card'}: {self.text}"


def check_card(root: str | Path) -> list[Finding]:
    """Checks a folder before it is uploaded: metadata, attribution, files, and the viewer's limits of each config.

    Args:
        root: Folder, or fsspec URL, with `README.md` and the tables that it names.

    Raises:
        PublishError: There is no card, or it is not UTF-8.
    """
    place = Place(root)
    card = place.text(CARD)
    if not card:
        raise PublishError(f"{root}/{CARD} is not there; `reasonknee convert` writes it.")
    findings = [Finding("", problem) for problem in card_problems(card)]
    try:
        for dataset in {one.dataset for one in manifests(place.names(), place.text)} or {None}:
            require_attribution(card, words_of(dataset))
    except (PublishError, OptionError) as error:
        findings.append(Finding("", str(error)))
    readable = not findings or patterns_readable(card)
    return findings + check_viewer(place, card) if readable else findings


def check_viewer(store: Store, card: str) -> list[Finding]:
    """Checks the tables that a card names against the viewer's limits, config by config."""
    names = sorted(store.names())
    findings = [*_left_over(store, card)]
    told = read_metadata(front_matter(card)[0]).get("dataset_info") or ()
    infos = {one.get("config_name", "default"): one for one in ([told] if isinstance(told, dict) else told)}
    for config, globs in patterns(card).items():
        files = [name for name in names if any(matches(name, one) for one in globs)]
        unmatched = [glob for glob in globs if not any(matches(name, glob) for name in names)]
        findings += [Finding(config, f"no file fits {glob}") for glob in unmatched]
        tables = [name for name in files if name.endswith(".parquet")]
        if len(globs) > MOST_SPLITS:
            findings.append(Finding(config, f"{len(globs)} splits; {MOST_SPLITS} are shown", blocking=False))
        total = sum(store.size(name) for name in tables)
        if total > SHOWN_BYTES:
            shown = f"{total / 1e9:,.1f} GB; the viewer converts the first {SHOWN_BYTES / 1e9:.0f} GB"
            findings.append(Finding(config, shown, blocking=False))
        for name in tables:
            findings += _other_columns(store, name, config, infos.get(config, {}).get("features"))
        for number, name in enumerate(tables):
            findings += table_findings(store, name, config, first=number == 0)
    return findings


def _other_columns(store: Store, name: str, config: str, features: Any) -> Iterator[Finding]:
    """Columns that the card says and a file has not, or the other way round: `datasets` could not load it."""
    if not isinstance(features, list):
        return
    said = {str(one.get("name")) for one in features if isinstance(one, dict)}
    with store.open(name) as stream:
        held = set(pq.read_schema(stream).names)
    for text, columns in (
        ("lacks the columns", said - held),
        ("has columns that the card does not say:", held - said),
    ):
        if columns:
            yield Finding(config, f"{name} {text} {', '.join(sorted(columns))}")


def _left_over(store: Store, card: str) -> Iterator[Finding]:
    """Files that we wrote and no config names any more: whoever uploads the folder publishes them."""
    named = {glob for globs in patterns(card).values() for glob in globs}
    names = store.names()

    def text(name: str) -> str:
        with store.open(name) as file:
            return decoded(bytes(file.read()), name)

    for one in manifests(names, text):
        left = [name for name, part in one.parts.items() if name in names and part.rows is not None]
        if left and not one.patterns & named:
            yield Finding(
                one.config,
                f"{len(left)} tables of an earlier call are there that no config names, e.g. {left[0]}; remove them",
                blocking=one.kind != "questions",
            )


def patterns_readable(card: str) -> bool:
    """Whether the metadata say which files belong to which config."""
    try:
        return bool(patterns(card))
    except (PublishError, AttributeError, TypeError):
        return False


def first_rows_bytes(rows: Sequence[Mapping[str, Any]]) -> int:
    """Bytes of rows as the viewer answers them: long text is cut, pictures are URLs, bytes are left out."""
    return sum(len(json.dumps(_shown(row), ensure_ascii=False, default=str).encode()) for row in rows)


def table_findings(store: Store, name: str, config: str, first: bool) -> list[Finding]:
    """Checks one table of a config; what the viewer shows of it is only looked at in the first."""
    return [Finding(config, *found) for found in _table_findings(store, name, first)]


def _table_findings(store: Store, name: str, first: bool) -> Iterator[tuple[str, bool]]:
    with store.open(name) as stream, pq.ParquetFile(stream) as file:
        metadata = file.metadata
        sizes = [metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups)]
        if sizes and max(sizes) > ROW_GROUP_BYTES:
            yield f"{name}: a row group has {max(sizes):,} bytes; {ROW_GROUP_BYTES:,} can be read", True
        if metadata.num_row_groups and not metadata.row_group(0).column(0).has_offset_index:
            yield f"{name}: it has no page index, so the viewer reads whole row groups", False
        if not first:
            return
        if metadata.num_columns > MOST_COLUMNS:
            yield f"{metadata.num_columns:,} columns; {MOST_COLUMNS:,} are shown", True
        schema = file.schema_arrow
        for column in hidden_columns(schema):
            yield (
                f"the column {column} holds volumes or bytes, which are not shown; browse the config of the questions",
                False,
            )
        shown = [column for column in schema.names if column not in hidden_columns(schema)]
        rows: list[dict[str, Any]] = []
        for batch in file.iter_batches(batch_size=LEAST_ROWS, columns=shown):
            rows = batch.to_pylist()
            break
        size = first_rows_bytes(rows)
        if size > FIRST_ROWS_BYTES:
            yield (
                f"the first {len(rows)} rows have {size:,} bytes even with text cut; {FIRST_ROWS_BYTES:,} fit",
                True,
            )


def hidden_columns(schema: pa.Schema) -> list[str]:
    """Columns of a type that the viewer cannot show: volumes and raw bytes, but not pictures."""
    declared: dict[str, Any] = {}
    if schema.metadata and b"huggingface" in schema.metadata:
        declared = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
    hidden = []
    for field in schema:
        kind = declared.get(field.name)
        kind = kind[0] if isinstance(kind, list) else kind
        picture = isinstance(kind, dict) and kind.get("_type") == "Image"
        if not picture and "binary" in str(field.type):
            hidden.append(field.name)
    return hidden


def _shown(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {"bytes", "path"}:
            return {"src": "https://" + "x" * 200, "height": 0, "width": 0}
        return {key: _shown(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_shown(one) for one in value]
    if isinstance(value, str) and len(value.encode()) > _CUT_TEXT:
        return value.encode()[:_CUT_TEXT].decode("utf-8", "ignore")
    return value
