"""`reasonknee demo`: the main job on the built-in sample. Prints rows and writes a picture."""

from __future__ import annotations

import argparse
from importlib.util import find_spec


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", default="out/demo.png", help="where the picture goes (default: out/demo.png)"
    )


def run(args: argparse.Namespace) -> int:
    from reasonknee_hf.cli.show_command import draw_row
    from reasonknee_hf.cli.source_options import check_picture
    from reasonknee_hf.dataset.loading import load_dataset
    from reasonknee_hf.knee.moaks import CATEGORIES

    draws = find_spec("matplotlib") is not None
    if draws:
        check_picture(args.out)
    stream = load_dataset("full", split="train", streaming=True, source="sample")
    shown: set[str] = set()
    best = None
    for row in stream:
        category = CATEGORIES[row["category"]]
        grade = max((entry["grade"] for entry in row["grades"]), default=0)
        if best is None or (category == "Cartilage" and grade > best[0]):
            best = (grade, row)
        if category not in shown:
            shown.add(category)
            grades = ", ".join(f"{entry['attribute']} {entry['grade']}" for entry in row["grades"])
            print(f"{row['id']}  {category}: {row['structure']}, {row['subregion']}")
            print(f"    box {row['bbox']}  grades {grades}")
    assert best is not None
    row = best[1]
    crop = row["image"].crop(row["bbox"])
    print(
        f"\nimage {row['image']!r}: {row['image'].shape} {row['image'].array().dtype}, box crop {crop.shape}"
    )
    if not draws:
        print("pictures need matplotlib: pip install 'reasonknee_hf[viz]'")
        return 0
    draw_row(row, args.out)
    print(f"picture of row {row['id']}: {args.out}")
    return 0
