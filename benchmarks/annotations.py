"""Annotation arrays, side by side with what people use today: `python benchmarks/annotations.py [--small]`.

Made-up records in the published form, 366,000 of them in one array of 700 MB, or 37,000 in 70 MB. Every run
is a fresh process; the clock starts after the imports, and the page cache is warm. Runs of all methods take
turns, so that noise hits all alike; the least CPU time is what a busy machine disturbs least. Only ratios
within one table should be quoted.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from memory import peak_memory

TESTS = Path(__file__).resolve().parents[1] / "tests"
CHUNK = 1 << 16


# --- the array ----------------------------------------------------------------------------------------------


def write_array(folder: Path, records: int) -> Path:
    """One line of JSON. Made once, then reused."""
    target = folder / f"annotations-{records}.json"
    if not target.exists():
        sys.path.insert(0, str(TESTS))
        from bigjson import big_records

        folder.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(".partial")
        with partial.open("w", encoding="utf-8") as out:
            separator = "["
            for record in big_records(records):
                out.write(separator + json.dumps(record))
                separator = ", "
            out.write("]")
        partial.rename(target)
    return target


def chunks(path: str, start: int = 0) -> Iterator[bytes]:
    with open(path, "rb", buffering=0) as file:
        file.seek(start)
        while chunk := file.read(CHUNK):
            yield chunk


# --- the bare record iterator: each gives the records one by one --------------------------------------------


def ours(path: str) -> Iterator[Any]:
    from reasonknee_hf.dataset.json_array import iter_records

    return iter_records(chunks(path), name=path)


def ours_without_orjson(path: str) -> Iterator[Any]:
    sys.modules["orjson"] = None  # type: ignore[assignment]  # an import of it fails
    return ours(path)


def ours_with_offsets(path: str) -> Iterator[Any]:
    return ((record.offset, record.value) for record in ours(path))


def ours_in_four_shares(path: str) -> Iterator[Any]:
    from reasonknee_hf.dataset.json_array import iter_share

    size = Path(path).stat().st_size
    for start, stop in itertools.pairwise(size * part // 4 for part in range(5)):
        yield from iter_share(chunks(path, start), name=path, start=start, stop=stop)


def ijson_c(path: str) -> Iterator[Any]:
    from ijson.backends import yajl2_c

    with open(path, "rb") as file:
        yield from yajl2_c.items(file, "item", buf_size=CHUNK)


def json_load(path: str) -> Iterator[Any]:
    with open(path, "rb") as file:
        return iter(json.load(file))


RECORDS: dict[str, Callable[[str], Iterator[Any]]] = {
    "ijson, C backend": ijson_c,
    "ours, orjson": ours,
    "ours, standard library": ours_without_orjson,
    "ours, orjson, with offsets": ours_with_offsets,
    "ours, orjson, in 4 shares": ours_in_four_shares,
    "json.load": json_load,
}


# --- through `datasets`: each gives a stream of rows ---------------------------------------------------------


def release_of(path: str) -> str:
    """A release whose train array is `path`, made beside it once."""
    from reasonknee_hf.dataset.json_array import iter_records
    from reasonknee_hf.knee.scans import scan_from_image_path

    root = Path(path).with_suffix(".release")
    array = root / "data/generate_data/train.json"
    if not array.exists():
        images = dict.fromkeys(record.value["image"] for record in iter_records(chunks(path), name=path))
        lines = ["patient_id,time,study_folder,series_folder,knee_side,path,image_filepath,label_filepath"]
        for number, image in enumerate(images):
            scan = scan_from_image_path(image)
            assert scan is not None
            lines.append(
                f"{scan.patient_id},{scan.visit},{scan.study},{scan.series},{scan.published_side},-,"
                f"..{image},../data/masks/knee_{number:03}.nii.gz"
            )
        table = root / "data/split_files/train_split.csv"
        for file in (table, array):
            file.parent.mkdir(parents=True, exist_ok=True)
        table.write_text("\n".join(lines) + "\n")
        array.hardlink_to(path)
    return str(root)


def stock_json(path: str) -> Iterator[Any]:
    import datasets

    return iter(datasets.load_dataset("json", data_files=path, split="train", streaming=True))


def stock_json_with_features(path: str) -> Iterator[Any]:
    import datasets

    text = datasets.Value("string")
    diagnosis = datasets.Json() if hasattr(datasets, "Json") else text
    features = datasets.Features(
        {"image": text, "prompt": text, "answer": text, "final_diagnosis": diagnosis}
    )
    return iter(
        datasets.load_dataset("json", data_files=path, split="train", streaming=True, features=features)
    )


def our_stream(path: str, **options: Any) -> Iterator[Any]:
    import reasonknee_hf

    stream = reasonknee_hf.load_dataset(
        "full", split="train", streaming=True, source=release_of(path), **options
    )
    return iter(stream)


def our_shuffle(path: str) -> Iterator[Any]:
    return our_stream(path, shuffle=1)


def bare_generator(path: str) -> Iterator[Any]:
    """The same columns out of a generator function that has nothing to do."""
    import datasets

    import reasonknee_hf

    features = reasonknee_hf.load_dataset(
        "full", split="train", streaming=True, source=release_of(path)
    ).features
    row = next(our_stream(path))
    stored = features.encode_example(row)
    count = sum(1 for _ in ours(path))
    stream = datasets.IterableDataset.from_generator(
        lambda: (dict(stored) for _ in range(count)), features=datasets.Features(dict(features))
    )
    return iter(stream)


STREAMS: dict[str, Callable[[str], Iterator[Any]]] = {
    'load_dataset("json")': stock_json,
    'load_dataset("json", features=)': stock_json_with_features,
    "from_generator of the same columns": bare_generator,
    "ours": our_stream,
    "ours, shuffle=1": our_shuffle,
}


# --- one run ------------------------------------------------------------------------------------------------


def run_worker(method: str, path: str) -> None:
    """In a fresh process: imports, then the clock; prints figures as JSON."""
    import_what_is_used(method)
    base = peak_memory()
    started, started_cpu = time.perf_counter(), time.process_time()
    records = iter((RECORDS | STREAMS)[method](path))
    next(records)
    first = time.perf_counter() - started
    count = 1 + sum(1 for _ in records)
    seconds, cpu = time.perf_counter() - started, time.process_time() - started_cpu
    peak = peak_memory() - base
    print(json.dumps({"first": first, "all": seconds, "cpu": cpu, "count": count, "peak": peak}))


def import_what_is_used(method: str) -> None:
    """Imports are not part of what is compared."""
    modules = ["orjson", "ijson.backends.yajl2_c", "reasonknee_hf.dataset.json_array"]
    if method in STREAMS:
        modules += ["datasets", "pandas", "reasonknee_hf.dataset.builder"]
        # `datasets` makes its streams torch datasets, and loads scipy for every builder it prepares for streaming.
        for optional in ("torch.utils.data", "scipy.io"):
            with contextlib.suppress(ImportError):
                importlib.import_module(optional)
    for module in modules:
        importlib.import_module(module)


def measure(method: str, path: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--worker", method, "--path", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{method} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


# --- the table ----------------------------------------------------------------------------------------------


def compare(methods: list[str], path: Path, records: int, rounds: int) -> dict[str, list[dict[str, float]]]:
    """Runs all methods in turns."""
    results: dict[str, list[dict[str, float]]] = {method: [] for method in methods}
    for _ in range(rounds):
        for method in methods:
            figures = measure(method, path)
            assert figures["count"] == records, f"{method} gave {figures['count']} records"
            results[method].append(figures)
    return results


def print_table(title: str, peer: str, results: dict[str, list[dict[str, float]]]) -> None:
    def median(method: str, figure: str) -> float:
        return statistics.median(run[figure] for run in results[method])

    print(f"\n### {title}\n")
    print(
        "| method | first, ms | all, s, median [range] | records/s | x peer "
        "| CPU, s, best | x peer, CPU | peak over base, MiB |"
    )
    print("|---|---|---|---|---|---|---|---|")
    best_cpu = {method: min(run["cpu"] for run in runs) for method, runs in results.items()}
    for method, runs in results.items():
        seconds = [run["all"] for run in runs]
        print(
            f"| {method} | {median(method, 'first') * 1000:.2f} "
            f"| {median(method, 'all'):.3f} [{min(seconds):.3f}-{max(seconds):.3f}] "
            f"| {runs[0]['count'] / median(method, 'all'):,.0f} "
            f"| {median(peer, 'all') / median(method, 'all'):.2f} "
            f"| {best_cpu[method]:.3f} | {best_cpu[peer] / best_cpu[method]:.2f} "
            f"| {max(run['peak'] for run in runs) / 2**20:.1f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="70 MB instead of 700 MB, 3 rounds")
    parser.add_argument("--part", choices=("records", "streams"), help="only one of the two tables")
    parser.add_argument("--rounds", type=int, help="default: 5, or 3 with --small")
    parser.add_argument("--data", default=str(Path(tempfile.gettempdir()) / "reasonknee-benchmark"))
    parser.add_argument("--json", help="also write all figures to this file")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        run_worker(args.worker, args.path)
        return
    records = 37_000 if args.small else 366_000
    rounds = args.rounds or (3 if args.small else 5)
    path = write_array(Path(args.data), records)
    print(f"{records:,} records, {path.stat().st_size / 1e6:.0f} MB, {rounds} rounds")
    results = {}
    if args.part != "streams":
        results = compare(list(RECORDS), path, records, rounds)
        print_table("the bare record iterator", "ijson, C backend", results)
    if args.part != "records":
        release_of(str(path))
        streams = compare(list(STREAMS), path, records, rounds)
        print_table("through datasets", 'load_dataset("json")', streams)
        results |= streams
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
