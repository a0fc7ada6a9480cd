"""Publishing, side by side with what people use today: `python benchmarks/convert.py [--small]`.

Made-up records in the published form (see `annotations.py`) and volumes of 22 MB that do not compress. Every run is a
fresh process; the clock starts after the imports and the page cache is warm. Runs of all methods take turns; the least
CPU time is what a busy machine disturbs least. Only ratios within one table should be quoted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from annotations import release_of, write_array
from memory import peak_memory

RECORDS_PER_SCAN = 62
VOLUME_BYTES = 22_000_000


# --- annotations: each writes Parquet below a folder and returns how many rows ------------------------------------


def stock_json(source: str, out: str) -> int:
    import datasets

    array = str(Path(source) / "data/generate_data/train.json")
    rows = datasets.load_dataset("json", data_files=array, split="train", cache_dir=f"{out}/cache")
    rows.to_parquet(f"{out}/rows.parquet")
    return len(rows)


def ours(source: str, out: str, config: str = "records", workers: int = 1) -> int:
    from concurrent.futures import ProcessPoolExecutor

    from reasonknee_hf.publish.convert import convert

    with ProcessPoolExecutor(workers) as pool:
        executor = pool if workers > 1 else None
        return convert(out, config, source=source, volumes="none", executor=executor).configs[0].rows


ANNOTATIONS: dict[str, Callable[[str, str], int]] = {
    'load_dataset("json"), to_parquet': stock_json,
    "ours, records as published": ours,
    "ours, records, 2 processes": lambda source, out: ours(source, out, workers=2),
    "ours, rows of the full schema": lambda source, out: ours(source, out, "full"),
    "ours, full schema, 2 processes": lambda source, out: ours(source, out, "full", 2),
}


# --- volumes -------------------------------------------------------------------------------------------------------


def stock_rows(source: str, out: str, per_scan: int = RECORDS_PER_SCAN) -> int:
    """The calls that `push_to_hub` makes for a `Nifti` column: embed, then write."""
    import datasets
    from datasets.table import embed_table_storage

    paths = [str(path) for path in sorted(Path(source).rglob("*.nii.gz")) for _ in range(per_scan)]
    rows = datasets.Dataset.from_dict({"image": paths}).cast_column("image", datasets.Nifti())
    count = len(rows)
    rows = rows.with_format("arrow").map(
        embed_table_storage, batched=True, batch_size=1000, cache_file_name=f"{out}/c.arrow"
    )
    rows.with_format(None).to_parquet(f"{out}/rows.parquet")
    return count


def our_volumes(source: str, out: str) -> int:
    from reasonknee_hf.publish.convert import convert

    return sum(config.rows for config in convert(out, "scans", source=source, masks=False).configs)


VOLUMES: dict[str, Callable[[str, str], int]] = {
    "datasets, one volume a row": stock_rows,
    "datasets, one row a scan": lambda source, out: stock_rows(source, out, 1),
    "ours, one row a scan": our_volumes,
}


def write_volumes(folder: Path, scans: int) -> Path:
    """A release of `scans` volumes of 22 MB: random voxels, so that nothing compresses. Made once."""
    root = folder / f"volumes-{scans}"
    if root.exists():
        return root
    import gzip

    import nibabel
    import numpy as np

    side = int((VOLUME_BYTES / 2 / 160) ** 0.5)
    voxels = np.frombuffer(os.urandom(2 * 160 * side * side), "<i2").reshape(160, side, side)
    content = gzip.compress(nibabel.Nifti1Image(voxels, np.diag([0.7, 0.36, 0.36, 1.0])).to_bytes(), 1)
    lines = ["patient_id,time,study_folder,series_folder,knee_side,path,image_filepath,label_filepath"]
    partial = root.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    first: Path | None = None
    for number in range(scans):
        name = f"data/images/{9000001 + number}/00M/20041222_{10300001 + number}_1.nii.gz"
        target = partial / name
        target.parent.mkdir(parents=True)
        if first is None:
            target.write_bytes(content)
            first = target
        else:
            target.hardlink_to(first)
        lines.append(f"{9000001 + number},00M,20041222,{10300001 + number},1,-,../{name},")
    table = partial / "data/split_files/train_split.csv"
    table.parent.mkdir(parents=True)
    table.write_text("\n".join(lines) + "\n")
    partial.rename(root)
    return root


# --- runs ----------------------------------------------------------------------------------------------------------


def run_worker(method: str, source: str, out: str) -> None:
    import datasets
    import pyarrow.parquet  # noqa: F401 - imports are not part of what is measured

    from reasonknee_hf.publish import card, convert, croissant  # noqa: F401

    datasets.disable_progress_bars()
    begun, cpu = time.perf_counter(), time.process_time()
    try:
        rows: int | None = ({**ANNOTATIONS, **VOLUMES})[method](source, out)
        failure = None
    except Exception as error:
        rows, failure = None, f"{type(error).__name__}: {str(error)[:60]}"
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    told = {
        "rows": rows,
        "failure": failure,
        "seconds": time.perf_counter() - begun,
        "cpu": time.process_time() - cpu + children.ru_utime + children.ru_stime,
        "peak": peak_memory() / 2**20,
        "bytes": sum(path.stat().st_size for path in Path(out).rglob("*.parquet")),
    }
    print(json.dumps(told))


def peak_of_children(process: subprocess.Popen[str]) -> int:
    """Most KiB that a process and its children had at once, shared pages counted once; 0 without children."""
    peak = 0
    while process.poll() is None:
        with contextlib.suppress(OSError):  # one of them has just ended
            root = Path("/proc", str(process.pid))
            children = (root / "task" / root.name / "children").read_text().split()
            if children:
                peak = max(peak, sum(_proportional_size(pid) for pid in (root.name, *children)))
        time.sleep(0.05)
    return peak


def _proportional_size(pid: str) -> int:
    lines = Path("/proc", pid, "smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def run(method: str, source: Path, keep: Path | None = None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=source.parent) as out:
        command = [sys.executable, __file__, "--worker", method, "--source", str(source), "--out", out]
        with (Path(out) / "errors").open("w+") as errors:
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
                tree = peak_of_children(process)
                told = process.stdout.read() if process.stdout else ""
            if process.returncode != 0:
                raise RuntimeError(f"{method}: {(Path(out) / 'errors').read_text()[-2000:]}")
        if keep is not None:
            shutil.rmtree(keep, ignore_errors=True)
            shutil.copytree(Path(out), keep, ignore=shutil.ignore_patterns("cache"))
        one: dict[str, Any] = json.loads(told.splitlines()[-1])
        return one | {"peak": max(one["peak"], tree / 1024)}


def compare(methods: list[str], source: Path, rounds: int) -> dict[str, dict[str, Any]]:
    """Least time and largest peak of each method over all rounds, which take turns."""
    found: dict[str, list[dict[str, Any]]] = {method: [] for method in methods}
    for _ in range(rounds):
        for method in methods:
            found[method].append(run(method, source))
    return {
        method: runs[0]
        | {key: min(one[key] for one in runs) for key in ("seconds", "cpu")}
        | {"peak": max(one["peak"] for one in runs)}
        for method, runs in found.items()
    }


def print_table(title: str, results: dict[str, dict[str, Any]], unit: float, unit_name: str) -> None:
    peer = next(iter(results.values()))
    print(f"\n{title}\n")
    print(f"| method | s | CPU s | x faster | x less CPU | peak MiB | 1/x of peak | {unit_name} |")
    print("|---|---|---|---|---|---|---|---|")
    for method, one in results.items():
        if one["failure"]:
            print(f"| {method} | {one['failure']} | | | | {one['peak']:.0f} | | |")
            continue
        faster = "" if peer["failure"] else f"{peer['seconds'] / one['seconds']:.1f}"
        less = "" if peer["failure"] else f"{peer['cpu'] / one['cpu']:.1f}"
        print(
            f"| {method} | {one['seconds']:.2f} | {one['cpu']:.2f} | {faster} | {less} | {one['peak']:.0f} | "
            f"{peer['peak'] / one['peak']:.1f} | {one['bytes'] / unit:.4g} |"
        )


def check_records(source: Path, folder: Path) -> None:
    """Every record of our file equals what `json.load` gives."""
    import pyarrow.parquet as pq

    from reasonknee_hf.publish.question_rows import published_record

    published = iter(json.loads((source / "data/generate_data/train.json").read_text("utf-8")))
    count = 0
    for path in sorted((folder / "records").glob("*.parquet")):
        for batch in pq.ParquetFile(path).iter_batches(4096):
            for row in batch.to_pylist():
                if published_record(row) != next(published):
                    raise RuntimeError(f"row {count} differs from the published record")
                count += 1
    if next(published, None) is not None:
        raise RuntimeError(f"only {count} records were written")
    print(f"\n{count:,} records equal those of json.load")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--small", action="store_true", help="37,000 records and 4 volumes instead of 366,000 and 110"
    )
    parser.add_argument("--part", choices=("annotations", "volumes"), help="only one of the tables")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--data", default=str(Path(tempfile.gettempdir()) / "reasonknee-benchmark"))
    parser.add_argument("--json", help="also write all figures to this file")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--source", help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        run_worker(args.worker, args.source, args.out)
        return
    data = Path(args.data)
    results: dict[str, Any] = {}
    if args.part != "volumes":
        records = 37_000 if args.small else 366_000
        source = Path(release_of(str(write_array(data, records))))
        results = compare(list(ANNOTATIONS), source, args.rounds)
        print_table(f"{records:,} records to Parquet", results, 1e6, "MB")
        run("ours, records as published", source, keep=data / "records")
        check_records(source, data / "records")
    if args.part != "annotations":
        few = write_volumes(data, 1)
        stored = sum(path.stat().st_size for path in few.rglob("*.nii.gz"))
        found = compare(list(VOLUMES), few, 1)
        print_table("one scan with its 62 rows", found, stored, "x of the .nii.gz")
        many = write_volumes(data, 4 if args.small else 110)
        stored = sum(path.stat().st_size for path in many.rglob("*.nii.gz"))
        found_many = compare(list(VOLUMES)[1:], many, 1)
        print_table(
            f"an export of {stored / 2**30:.2f} GiB of volumes", found_many, stored, "x of the .nii.gz"
        )
        results |= {f"1 scan: {name}": one for name, one in found.items()}
        results |= {f"many: {name}": one for name, one in found_many.items()}
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
