"""Tables of predictions: CSV and Parquet files, and data frames of any library, as rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from reasonknee_hf.errors import PredictionError

_DELIMITERS = ",;\t"


def kind_of_table(path: Path, ids: Collection[str] = ("id",)) -> str | None:
    """`"parquet"`, or the delimiter of a CSV file whose header has one of these names; `None` if it is no table."""
    with path.open("rb") as file:
        if file.read(4) == b"PAR1":
            return "parquet"
        file.seek(0)
        header = file.readline(10_000).decode("utf-8-sig", errors="replace").strip()
    if header.startswith(("{", "[")):
        return None
    for delimiter in _DELIMITERS:
        if not {name.strip().strip('"') for name in header.split(delimiter)}.isdisjoint(ids):
            return delimiter
    return None


def rows_of_file(path: Path, kind: str) -> Iterator[dict[str, Any]]:
    """The rows of a table; those of a CSV file hold texts alone.

    Raises:
        PredictionError: The table is damaged.
    """
    import pyarrow as pa
    from pyarrow import csv, parquet

    try:
        if kind == "parquet":
            table = parquet.read_table(path)
        else:
            names = csv.open_csv(path, **_csv_options(path, kind)).schema.names
            texts = csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
            table = csv.read_csv(path, convert_options=texts, **_csv_options(path, kind))
    except pa.ArrowInvalid as error:
        found = str(error).replace(str(path), "it").rstrip(".")
        raise PredictionError(f"{path}: a damaged table: {found}.") from error
    for batch in table.to_batches(max_chunksize=1000):
        yield from batch.rename_columns([name.strip() for name in batch.schema.names]).to_pylist()


def _csv_options(path: Path, delimiter: str) -> dict[str, Any]:
    from pyarrow import csv

    # One block, for a row must not be larger than a block, and answers may be long.
    block = csv.ReadOptions(block_size=min(path.stat().st_size + 1024, 2**31 - 1))
    return {
        "read_options": block,
        "parse_options": csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
    }


def rows_of_object(predictions: Any) -> Any:
    """A data frame of pandas or polars, or an Arrow table, as a list of rows; a series as a mapping of id to answer.

    Anything else is given back as it is.
    """
    if hasattr(predictions, "iterrows"):  # pandas
        return [_without_gaps(row) for row in predictions.to_dict("records")]
    if hasattr(predictions, "to_frame") and hasattr(predictions, "to_dict"):
        return _without_gaps(predictions.to_dict())
    for method in ("to_dicts", "to_pylist"):
        if hasattr(predictions, method):
            return getattr(predictions, method)()
    return predictions


def _without_gaps(row: dict[Any, Any]) -> dict[Any, Any]:
    """`row` with `None` where pandas has NaN, which is how it says that there is nothing."""
    return {key: None if isinstance(value, float) and value != value else value for key, value in row.items()}
