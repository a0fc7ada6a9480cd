"""`reasonknee show`: look at one row or one scan, as a picture or as a page to leaf through."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reasonknee_hf.cli.source_options import add_source_options, check_picture, check_target, source_options
from reasonknee_hf.errors import OptionError, VolumeMissingError

_PLACES = ("source", "revision", "endpoint", "token", "images")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "id", help="id of a row (SCAN_QUESTION) or of a scan (PATIENT_VISIT_STUDY_SERIES_SIDE)"
    )
    parser.add_argument("--out", help="file to write (default: ID.png, or ID.html with --html)")
    parser.add_argument(
        "--html", action="store_true", help="write one page with a slider for each plane instead"
    )
    parser.add_argument("--no-mask", action="store_true", help="leave the outlines out")
    add_source_options(parser)


def run(args: argparse.Namespace) -> int:
    out = Path(args.out or f"{args.id}.{'html' if args.html else 'png'}")
    (check_target if args.html else check_picture)(out)
    rows, at = find_rows(args.id, masks=not args.no_mask, **source_options(args))
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
            f"{name}: there is no volume to show. The MRI volumes come from the Osteoarthritis Initiative;"
            " give the folder that holds them as --images"
        )
    facts: dict[str, Any] = {"mask": row.get("mask"), **row_facts(row)}
    if page:
        rows, more = [row_facts(other) for other in before], [row_facts(other) for other in after]
        written = case_page(row["image"], before=rows, after=more, **facts)
        Path(out).write_text(written, encoding="utf-8", errors="backslashreplace")
    else:
        draw_case(row["image"], out=out, **facts)


def find_row(wanted: str, **options: Any) -> dict[str, Any]:
    """The row with an id, or the `scans` row of a scan id; see `find_rows`."""
    rows, at = find_rows(wanted, **options)
    return rows[at]


def find_rows(wanted: str, **options: Any) -> tuple[list[dict[str, Any]], int]:
    """The rows of a scan, and which of them has an id; for a scan id its `scans` row alone.

    Args:
        wanted: Id of a row or of a scan.
        options: As in `load_dataset`. Without `on_error`, what of a row does not fit is null here.

    Raises:
        OptionError: No row and no scan has this id.
    """
    from reasonknee_hf.dataset.loading import load_dataset
    from reasonknee_hf.knee.description import open_release

    places = {name: options[name] for name in _PLACES if name in options}
    scan_of_row, _, question = wanted.rpartition("_")
    for scan in open_release(**places).all_scans():
        if scan.scan_id == wanted:
            config = "scans"
        elif scan.scan_id == scan_of_row and question.isdigit():
            # The rows of this scan alone: `on_error` would have to look at the volumes of the others.
            config = "high_fidelity"
            options = {"on_error": "null", **options, "high_fidelity": [scan.scan_id]}
        else:
            continue
        rows = load_dataset(config, split=scan.split, streaming=True, **options)
        key = "scan_id" if config == "scans" else "id"
        found = [dict(row) for row in rows if row["scan_id"] == scan.scan_id]
        at = next((place for place, row in enumerate(found) if row[key] == wanted), None)
        if at is not None:
            return found, at
        raise OptionError(f"{wanted}: the scan is listed for {scan.split}, but has no such row")
    raise OptionError(f"no row and no scan has the id {wanted!r}; `reasonknee rows` lists those of a config")
