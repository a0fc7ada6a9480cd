"""Volumes, side by side with what people use today: `python benchmarks/volumes.py [--small]`.

Made-up volumes in the published form: 160x384x384 int16 with Rician noise, gzip level 6, about 21 MB each,
and masks of 55 labels. Methods of one table take turns in one process, so that noise hits all alike; memory
is measured in a process of its own for each method. The page cache is warm. Only ratios within one table
should be quoted.
"""

from __future__ import annotations

import argparse
import gzip
import http.server
import itertools
import json
import multiprocessing
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import nibabel
import numpy as np

from reasonknee_hf.knee.moaks import QUESTIONS
from reasonknee_hf.knee.sample.prompts import prompt
from reasonknee_hf.volumes import decode, views
from reasonknee_hf.volumes import volume_bytes as inflate
from reasonknee_hf.volumes.volume import KneeVolume
from reasonknee_hf.volumes.volume_cache import volume_cache

SHAPE = (160, 384, 384)
BOX = [83, 140, 117, 260, 154, 257]
ROWS = 62  # questions that share a volume
CLOCK: Callable[[], float] = time.perf_counter
AFFINE = np.array([[0.7, 0, 0, -56], [0, -0.3646, 0, 70], [0, 0, -0.3646, 70], [0, 0, 0, 1.0]])


# --- files ------------------------------------------------------------------------------------------------


def write_volumes(folder: Path, count: int) -> tuple[list[str], str]:
    """Volumes and one mask. Made once, then reused."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"volume-{number}.nii.gz" for number in range(count)]
    for number, path in enumerate(paths):
        if not path.exists():
            _write(path, _grey(number))
    mask = folder / "mask.nii.gz"
    if not mask.exists():
        _write(mask, _labels())
    return [str(path) for path in paths], str(mask)


def _write(path: Path, array: np.ndarray) -> None:
    partial = path.with_suffix(".partial")
    partial.write_bytes(gzip.compress(nibabel.Nifti1Image(array, AFFINE).to_bytes(), 6))
    partial.rename(path)


def _axes() -> list[np.ndarray]:
    return list(np.meshgrid(*[np.linspace(-1, 1, length) for length in SHAPE], indexing="ij", sparse=True))


def _grey(seed: int) -> np.ndarray:
    z, x, y = _axes()
    random = np.random.default_rng(seed)
    signal = (
        120
        * np.exp(-(2 * z**2 + x**2 + y**2))
        * (1 + np.sin(6 * x + seed) * np.cos(5 * y) * np.cos(4 * z) / 2)
    )
    signal[70:90, 180:200, 180:200] += 400
    return np.hypot(signal + random.normal(0, 5, SHAPE), random.normal(0, 5, SHAPE)).astype(np.int16)


def _labels() -> np.ndarray:
    z, x, y = _axes()
    out = np.zeros(SHAPE, np.uint8)
    random = np.random.default_rng(0)
    for label in range(1, 56):
        a, b, c = random.uniform(-0.6, 0.6, 3)
        out[(z - a) ** 2 * 3 + (x - b) ** 2 + (y - c) ** 2 < random.uniform(0.01, 0.05)] = label
    return out


# --- measuring --------------------------------------------------------------------------------------------


def race(
    title: str,
    methods: dict[str, Callable[[], Any]],
    rounds: int,
    per: float = 1.0,
    clock: Callable[[], float] | None = None,
) -> dict[str, float]:
    """Runs methods in turns and prints medians. Ratios are the first method's time over the others'.

    Each round begins with another method, because what one leaves in memory slows down or speeds up the next.
    """
    clock = clock or CLOCK
    times: dict[str, list[float]] = {name: [] for name in methods}
    names = list(methods)
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            volume_cache().clear()
            start = clock()
            methods[name]()
            times[name].append(clock() - start)
    medians = {name: statistics.median(values) / per for name, values in times.items()}
    peer = next(iter(medians.values()))
    print(f"\n{title}")
    for name, values in times.items():
        low, high = min(values) / per * 1e3, max(values) / per * 1e3
        ratio = peer / medians[name]
        print(f"  {name:58}{medians[name] * 1e3:9.2f} ms  [{low:.2f}-{high:.2f}]  {ratio:7.2f} x")
    return medians


@contextmanager
def standard_library():
    """Without isal, as for users who did not install the extra."""
    inflate.inflater.cache_clear()
    kept = sys.modules.get("isal")
    sys.modules["isal"] = None  # type: ignore[assignment]
    try:
        inflate.inflater()
        yield
    finally:
        inflate.inflater.cache_clear()
        del sys.modules["isal"]
        if kept is not None:
            sys.modules["isal"] = kept


def ours(path: str, mask: bool = False) -> np.ndarray:
    return KneeVolume(path, mask=mask).array()


def ours_standard(path: str) -> np.ndarray:
    with standard_library():
        return ours(path)


def stock(path: str) -> np.ndarray:
    import datasets

    return datasets.Nifti().decode_example({"path": None, "bytes": Path(path).read_bytes()}).get_fdata()


# --- tables -----------------------------------------------------------------------------------------------


def decoding(path: str, mask: str, rounds: int) -> None:
    np.testing.assert_array_equal(ours(path), nibabel.load(path).get_fdata())
    race(
        "one volume to an array",
        {
            "nibabel get_fdata()": lambda: nibabel.load(path).get_fdata(),
            "np.asanyarray(nibabel dataobj)": lambda: np.asanyarray(nibabel.load(path).dataobj),
            "datasets.Nifti, get_fdata()": lambda: stock(path),
            "ours, isal": lambda: ours(path),
            "ours, standard library": lambda: ours_standard(path),
        },
        rounds,
    )
    race(
        "one mask to an array",
        {"nibabel get_fdata()": lambda: nibabel.load(mask).get_fdata(), "ours": lambda: ours(mask, True)},
        rounds,
    )


def memory(path: str) -> None:
    """Peak over what is there after the imports, from VmHWM."""
    print("\npeak memory of one volume over base, MiB")
    for name, load in (
        ("nibabel get_fdata()", "nibabel.load(path).get_fdata()"),
        ("datasets.Nifti, get_fdata()", "stock(path)"),
        ("ours", "ours(path)"),
    ):
        code = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
from volumes import nibabel, ours, stock, inflate
import datasets
path = {path!r}
inflate.inflater()
def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024
open("/proc/self/clear_refs", "w").write("5")
base = peak()
{load}
print(peak() - base)
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        print(f"  {name:58}{float(done.stdout):9.1f}")


def cropping(path: str, rounds: int) -> None:
    volume = KneeVolume(path)
    array = volume.array()
    region = tuple(slice(low, high + 1) for low, high in zip(BOX[::2], BOX[1::2], strict=True))
    key = volume._key()
    kept = volume_cache().get(key, lambda: None)

    def ours(copy: bool) -> None:
        volume_cache().get(key, lambda: kept)  # `race` clears the cache
        repeat(lambda: volume.crop(BOX, copy=copy))

    race(
        "crop of a box from a cached volume (100 times)",
        {
            "np.ascontiguousarray(array[box])": lambda: repeat(lambda: np.ascontiguousarray(array[region])),
            "array[box].copy(order='K'), numpy's limit": lambda: repeat(
                lambda: array[region].copy(order="K")
            ),
            "crop(box), file order": lambda: ours(copy=True),
            "crop(box, copy=False), a view": lambda: ours(copy=False),
        },
        rounds,
        per=100,
    )


def repeat(method: Callable[[], Any]) -> None:
    for _ in range(100):
        method()


def published_frames(data: np.ndarray, folder: Path | None = None) -> list[np.ndarray]:
    """What the published preprocessing does with a volume: one slice after the other, and PNG files."""
    from PIL import Image

    frames = []
    for index in range(data.shape[0]):
        one = np.clip(data[index, :, :], 0, 400)
        one = ((one - one.min()) / (max(one.max() - one.min(), 1e-8)) * 255).astype(np.uint8)
        if folder is not None:
            Image.fromarray(one).save(folder / f"slice_{index:04d}.png")
        frames.append(one)
    return frames


def from_file_with_png(path: str) -> None:
    folder = Path(tempfile.mkdtemp())
    published_frames(nibabel.load(path).get_fdata(), folder)
    shutil.rmtree(folder)


def framing(path: str, rounds: int) -> None:
    volume = KneeVolume(path)
    array, header = volume.array(), volume.header
    data = nibabel.load(path).get_fdata()
    np.testing.assert_array_equal(volume.frames(), np.stack(published_frames(data)))
    race(
        "160 frames from an array",
        {
            "published loop on float64": lambda: published_frames(data),
            "ours": lambda: views.frames(array, views.levels("upstream", array, array, header)),
        },
        rounds,
    )
    race(
        "file to 160 frames",
        {
            "published, with its PNG files": lambda: from_file_with_png(path),
            "published, without PNG": lambda: published_frames(nibabel.load(path).get_fdata()),
            "ours": lambda: KneeVolume(path).frames(),
        },
        max(rounds // 2, 2),
    )


def release_of(paths: list[str], folder: Path) -> str:
    """A release whose scans have these volumes, 62 records each. Made anew."""
    root = folder / "release"
    shutil.rmtree(root, ignore_errors=True)
    lines = ["patient_id,time,study_folder,series_folder,knee_side,path,image_filepath,label_filepath"]
    records = []
    for number, path in enumerate(paths):
        name = f"data/images/{9000001 + number}/00M/20041222_{10300001 + number}_1.nii.gz"
        (root / name).parent.mkdir(parents=True)
        (root / name).hardlink_to(path)
        lines.append(f"{9000001 + number},00M,20041222,{10300001 + number},1,-,../{name},")
        for question in itertools.islice(QUESTIONS.values(), ROWS):
            grades = {attribute.name: 0 for attribute in question.attributes}
            final = {"bounding_box": BOX, "final_diagnosis": {question.release_key: grades}}
            text = prompt(question)
            records.append({"image": f"/{name}", "prompt": text, "answer": "", "final_diagnosis": final})
    for file, text in (
        ("data/split_files/train_split.csv", "\n".join(lines) + "\n"),
        ("data/generate_data/train.json", json.dumps(records)),
    ):
        (root / file).parent.mkdir(parents=True)
        (root / file).write_text(text)
    return str(root)


def streaming(paths: list[str], folder: Path, rounds: int) -> None:
    import datasets

    import reasonknee_hf

    source = release_of(paths, folder)
    rows = reasonknee_hf.load_dataset("full", split="train", streaming=True, source=source, masks=False)
    first = list(itertools.islice(rows, 5))
    stock_rows = datasets.Dataset.from_list(
        [{"image": row["image"].path, "bbox": row["bbox"]} for row in first]
    ).cast_column("image", datasets.Nifti())

    def read(**options: Any) -> int:
        dataset = reasonknee_hf.load_dataset(
            "full", split="train", streaming=True, source=source, masks=False, **options
        )
        return sum(row["image"].crop(row["bbox"]).nbytes for row in dataset)

    def read_stock() -> int:
        region = tuple(slice(low, high + 1) for low, high in zip(BOX[::2], BOX[1::2], strict=True))
        return sum(row["image"].get_fdata()[region].copy().nbytes for row in stock_rows)

    read(shuffle=1)  # builds the row index
    times = race(
        f"streamed rows with a box crop: {len(paths)} scans x {ROWS} rows (time for all rows; stock: 5 rows)",
        {
            "datasets.Nifti column, get_fdata(), 5 rows": read_stock,
            "ours, scan order": read,
            "ours, shuffle=1": lambda: read(shuffle=1),
            "ours, scan order, prefetch=False": lambda: read(prefetch=False),
            "ours, shuffle=1, prefetch=False": lambda: read(shuffle=1, prefetch=False),
            "limit: inflating the volumes alone": lambda: [decode.load_voxels(path) for path in paths],
        },
        rounds,
    )
    stock_time, order, shuffled, order_alone, shuffled_alone, limit = times.values()
    count = ROWS * len(paths)
    print(
        f"  scan order: {count / order:.0f} rows a second, {stock_time / 5 / order * count:.0f} x stock,"
        f" {limit / order:.2f} of the limit; shuffled / scan order {order / shuffled:.2f}\n"
        f"  without the background thread: {limit / order_alone:.2f} of the limit,"
        f" shuffled / scan order {order_alone / shuffled_alone:.2f}"
    )


# --- over HTTP --------------------------------------------------------------------------------------------


class _Server(http.server.BaseHTTPRequestHandler):
    """Plain and ranged GET of one file, 50 ms before each answer and 100 MB/s on each connection."""

    protocol_version = "HTTP/1.1"
    content = b""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        time.sleep(0.05)
        low, high, status = 0, len(self.content), 200
        asked = self.headers.get("Range")
        if asked:
            first, last = asked.removeprefix("bytes=").split("-")
            low, high, status = int(first), min(int(last or high) + 1, high), 206
        self.send_response(status)
        self.send_header("Content-Length", str(high - low))
        self.send_header("Accept-Ranges", "bytes")
        if status == 206:
            self.send_header("Content-Range", f"bytes {low}-{high - 1}/{len(self.content)}")
        self.end_headers()
        start = time.perf_counter()
        for at in range(low, high if body else low, 1 << 16):
            self.wfile.write(self.content[at : min(at + (1 << 16), high)])
            wait = start + (at - low) / 100e6 - time.perf_counter()
            if wait > 0:
                time.sleep(wait)

    def handle(self) -> None:
        with suppress(ConnectionError):  # a client that has seen enough
            super().handle()

    def log_message(self, *_: Any) -> None:
        pass


def _serve(path: str, port: int) -> None:
    _Server.content = Path(path).read_bytes()
    http.server.ThreadingHTTPServer(("127.0.0.1", port), _Server).serve_forever()


def remote(path: str, rounds: int) -> None:
    import fsspec

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(path, port), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{port}/volume.nii.gz"
    for _ in range(1000):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.05)

    def default_reader() -> None:
        with fsspec.open(url, "rb") as file:
            data = file.read()
        decode.load_voxels(None, data)

    def whole_first() -> None:
        decode.load_voxels(None, fsspec.open(url).fs.cat_file(url))

    try:
        race(
            "a volume over HTTP, 100 MB/s, 50 ms",
            {
                "fsspec's default reader, same inflater": default_reader,
                "one GET, then inflate": whole_first,
                "ours: one GET, inflating as it arrives": lambda: KneeVolume(url).array(),
                "ours, up to the end of the box": lambda: KneeVolume(url).crop(
                    [0, 159, 0, 383, 0, 257], whole=False
                ),
            },
            rounds,
            clock=time.perf_counter,
        )
    finally:
        server.terminate()
        server.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="3 volumes and 3 rounds instead of 8 and 7")
    parser.add_argument("--folder", default=str(Path(tempfile.gettempdir()) / "reasonknee-benchmark"))
    parser.add_argument(
        "--only", help="one of: " + ", ".join(("decoding", "cropping", "framing", "streaming", "remote"))
    )
    parser.add_argument(
        "--cpu", action="store_true", help="measure processor time, for machines that others use too"
    )
    args = parser.parse_args()
    if args.cpu:
        global CLOCK
        CLOCK = time.process_time
    rounds = 3 if args.small else 7
    paths, mask = write_volumes(Path(args.folder), 3 if args.small else 8)
    print(f"inflater: {inflate.inflater().__name__}, threads now: {threading.active_count()}")
    print(
        f"files: volume {Path(paths[0]).stat().st_size / 1e6:.1f} MB,"
        f" mask {Path(mask).stat().st_size / 1e3:.0f} kB"
    )
    tables = {
        "decoding": lambda: (decoding(paths[0], mask, rounds), memory(paths[0])),
        "cropping": lambda: cropping(paths[0], rounds),
        "framing": lambda: framing(paths[0], rounds),
        "streaming": lambda: streaming(paths, Path(args.folder), rounds),
        "remote": lambda: remote(paths[0], rounds),
    }
    for name, table in tables.items():
        if args.only in (None, name):
            table()


if __name__ == "__main__":
    main()
