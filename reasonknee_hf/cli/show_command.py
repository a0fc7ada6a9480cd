"""`reasonknee show`: look at one row or one scan, as a picture or as a page to leaf through."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from reasonknee_hf.cli.source_options import add_source_options, check_picture, check_target, source_options
from reasonknee_hf.dataset.contract import Description, described
from reasonknee_hf.errors import OptionError, VolumeMissingError

_PLACES = ("source", "revision", "endpoint", "token", "images")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "id",
        help="id of a row (SCAN_QUESTION) or of a scan (PATIENT_VISIT_STUDY_SERIES_SIDE), as in the columns",
    )
    parser.add_argument("--out", help="file to write (default: ID.png, or ID.html with --html)")
    parser.add_argument(
        "--html", action="store_true", help="write one page with a slider for each plane instead"
    )
    parser.add_argument("--no-mask", action="store_true", help="leave the outlines out")
    add_source_options(parser, dataset=True)


def run(args: argparse.Namespace) -> int:
    out = Path(args.out or f"{args.id}.{'html' if args.html else 'png'}")
    (check_target if args.html else check_picture)(out)
    rows, at = find_rows(args.id, args.dataset, masks=not args.no_mask, **source_options(args))
    draw_row(rows[at], out, page=args.html, before=rows[:at], after=rows[at + 1 :])
    print(out)
    return 0


def draw_row(
    row: Mapping[str, Any],
    out: str | Path,
    *,
    page: bool = False,
    before: Sequence[Mapping[str, Any]] = (),
    after: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Writes the picture, or the page, of one row.

    Args:
        row: A decoded row of any config. One of `scans` has no question and no box; its volume is shown as a
            whole.
        out: File to write. The ending chooses the format of a picture.
        page: Write the page instead of the picture.
        before, after: Other rows of the same volume, which the page can go to.

    Raises:
        VolumeMissingError: The row has no volume.
        OptionError: Pictures are not written in the format of `out`.
    """
    from reasonknee_hf.look.figures import draw_case
    from reasonknee_hf.look.page import case_page, row_facts

    name = row.get("id") or row.get("scan_id") or "row"
    if row.get("image") is None:
        raise VolumeMissingError(
            f"{name}: there is no volume to show. Where the release does not hold it, as those of the Osteoarthritis"
            " Initiative, give the folder that does as --images"
        )
    facts: dict[str, Any] = {"mask": row.get("mask"), **row_facts(row)}
    if page:
        rows, more = [row_facts(other) for other in before], [row_facts(other) for other in after]
        written = case_page(row["image"], before=rows, after=more, **facts)
        Path(out).write_text(written, encoding="utf-8", errors="backslashreplace")
    else:
        draw_case(row["image"], out=out, **facts)


def find_row(wanted: str, dataset: str | None = None, **options: Any) -> dict[str, Any]:
    """The row with an id, or the row of a scan id in the config without questions; see `find_rows`."""
    rows, at = find_rows(wanted, dataset, **options)
    return rows[at]


def find_rows(wanted: str, dataset: str | None = None, **options: Any) -> tuple[list[dict[str, Any]], int]:
    """The rows of a scan, and which of them has an id; for a scan id its row without a question alone.

    Args:
        wanted: Id of a row or of a scan.
        dataset: Short name; the first one that is known by default.
        options: As in `load_dataset`. Without `on_error`, what of a row does not fit is null here.

    Raises:
        OptionError: No row and no scan has this id.
    """
    from reasonknee_hf.dataset.loading import load_dataset

    known = described(dataset)
    load: Any = partial(load_dataset, streaming=True, **{"on_error": "null", **options})
    release = known.open(**{name: options[name] for name in _PLACES if name in options})
    for split in release.splits:
        # Ids of rows begin with that of their scan, or rows are looked through.
        listed = (scan.scan_id for scan in release.scans(split))
        scan_id = next((one for one in listed if f"{wanted}_".startswith(f"{one}_")), None)
        config, key = _asking(known, release, split), "id"
        if scan_id == wanted:
            config, key = next(name for name, one in known.configs.items() if not one.asks), "scan_id"
        elif scan_id is None and config is not None:
            scan_id = _scan_of(wanted, load(f"{known.name}/{config}", split=split))
        if scan_id is None or config is None:
            continue
        found = [dict(row) for row in load(f"{known.name}/{config}", split=split, scans=[scan_id])]
        at = next((place for place, row in enumerate(found) if row[key] == wanted), None)
        if at is not None:
            return found, at
        raise OptionError(f"{wanted}: the scan is listed for {split}, but has no such row")
    raise OptionError(f"no row and no scan has the id {wanted!r}; `reasonknee rows` lists those of a config")


def _asking(known: Description, release: Any, split: str) -> str | None:
    """The first config with all rows and columns of the questions of a split."""
    for name, config in known.configs.items():
        complete = config.asks and config.chosen is None and config.row is None and not config.hidden
        if complete and split in release.annotated_splits(config.kind or "all"):
            return name
    return None


def _scan_of(wanted: str, rows: Iterable[Mapping[str, Any]]) -> str | None:
    for number, row in enumerate(rows):
        if row["id"] == wanted:
            return str(row["scan_id"])
        if number == 0 and row["id"].startswith(row["scan_id"]):
            return None
    return None
