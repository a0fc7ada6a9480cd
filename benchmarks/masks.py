"""Masks out of a cut archive, side by side with what people use today: `python benchmarks/masks.py
[--small]`.

A loopback server in a process of its own plays the Hub: 50 ms are added to every request, TCP_NODELAY is set,
and requests and bytes are counted there. It holds an archive of 8,000 incompressible masks, 1.3 GB, in two
parts for us, and joined to one file for everyone else, who cannot read two. Every run is a fresh process with
fresh connections and, unless the row says "known", a fresh cache; the clock starts after the imports. Runs of
all methods take turns. Only ratios within one table should be quoted.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests"
REPO = "owner/knees"
FOLDER = "data"
LATENCY = 0.05


# --- the archive --------------------------------------------------------------------------------------------


def member_name(index: int) -> str:
    return f"masks/knee_{index:04d}.nii.gz"


def member_content(index: int) -> bytes:
    chance = random.Random(index)
    return chance.randbytes(chance.randrange(150_000, 180_000))


def write_archive(folder: Path, members: int) -> Path:
    """`joined.zip`, `masks_aa` and `masks_ab` with the cut inside a member. Made once, then reused."""
    target = folder / f"masks-{members}"
    if (target / "done").exists():
        return target
    target.mkdir(parents=True, exist_ok=True)
    joined = target / "joined.zip"
    # Deflate that stores: the layout of a deflated archive without the minutes of trying to pack random
    # bytes.
    with zipfile.ZipFile(joined, "w", zipfile.ZIP_DEFLATED, compresslevel=0) as archive:
        for index in range(members):
            archive.writestr(member_name(index), member_content(index))
        cut = archive.getinfo(member_name(crossing(members))).header_offset + 70_000
    with open(joined, "rb") as source:
        for name, size in (("masks_aa", cut), ("masks_ab", -1)):
            with open(target / name, "wb") as part:
                while size and (block := source.read(min(1 << 24, size) if size > 0 else 1 << 24)):
                    part.write(block)
                    size -= len(block) if size > 0 else 0
    (target / "done").touch()
    return target


def crossing(members: int) -> int:
    """The member that lies across the cut."""
    return members * 5 // 8


def wanted(task: str, members: int) -> list[int]:
    """The members that a task reads."""
    first = members // 4
    return {
        "one mask": [first],
        "one mask across the cut": [crossing(members)],
        "50 random masks": random.Random(50).sample(range(members), 50),
        "64 masks that lie together": list(range(first, first + 64)),
    }[task]


# --- the methods: each returns the contents by index, the clock runs around the call ------------------------


def ours(url: str, indices: list[int]) -> dict[int, bytes]:
    from reasonknee_hf.hub.fs.filesystem import ReasonKneeFileSystem

    fs = ReasonKneeFileSystem(REPO, endpoint=url)
    paths = {f"{FOLDER}/{member_name(index)}": index for index in indices}
    return {paths[path]: content for path, content in fs.cat(list(paths)).items()}


def remotezip_alone(url: str, indices: list[int]) -> dict[int, bytes]:
    from remotezip import RemoteZip

    with RemoteZip(joined_url(url)) as archive:
        return {index: archive.read(member_name(index)) for index in indices}


def remotezip_threads(url: str, indices: list[int]) -> dict[int, bytes]:
    """One instance per thread, which is what its interface allows; each reads the directory."""
    from remotezip import RemoteZip

    def some(chosen: list[int]) -> dict[int, bytes]:
        with RemoteZip(joined_url(url)) as archive:
            return {index: archive.read(member_name(index)) for index in chosen}

    shares = [indices[start::8] for start in range(min(8, len(indices)))]
    with ThreadPoolExecutor(8) as pool:
        return {index: content for found in pool.map(some, shares) for index, content in found.items()}


def fsspec_zip(url: str, indices: list[int]) -> dict[int, bytes]:
    import fsspec

    fs = fsspec.filesystem("zip", fo=joined_url(url))
    return {index: fs.cat_file(member_name(index)) for index in indices}


def hf_zipfile(url: str, indices: list[int]) -> dict[int, bytes]:
    from huggingface_hub import HfFileSystem

    path = f"datasets/{REPO}/{FOLDER}/joined.zip"
    with HfFileSystem(endpoint=url).open(path) as file, zipfile.ZipFile(file) as archive:
        return {index: archive.read(member_name(index)) for index in indices}


def published_way(url: str, indices: list[int]) -> dict[int, bytes]:
    """Both parts to disk, `cat`, read."""
    import shutil

    from huggingface_hub import hf_hub_download

    with tempfile.TemporaryDirectory() as folder, open(Path(folder) / "masks.zip", "w+b") as joined:
        for name in ("masks_aa", "masks_ab"):
            path = hf_hub_download(
                REPO, f"{FOLDER}/{name}", repo_type="dataset", endpoint=url, local_dir=folder
            )
            with open(path, "rb") as part:
                shutil.copyfileobj(part, joined, 1 << 24)
            os.unlink(path)
        with zipfile.ZipFile(joined) as archive:
            return {index: archive.read(member_name(index)) for index in indices}


def joined_url(url: str) -> str:
    return f"{url}/datasets/{REPO}/resolve/main/{FOLDER}/joined.zip"


METHODS: dict[str, Callable[[str, list[int]], dict[int, bytes]]] = {
    "ours": ours,
    "ours, directory known": ours,
    "remotezip": remotezip_alone,
    "remotezip, 8 threads": remotezip_threads,
    "fsspec zip over http": fsspec_zip,
    "HfFileSystem + zipfile": hf_zipfile,
    "both parts, cat": published_way,
}
TASKS = ("one mask", "one mask across the cut", "50 random masks", "64 masks that lie together")


# --- one run ------------------------------------------------------------------------------------------------


def run_worker(method: str, url: str, indices: list[int]) -> None:
    """In a fresh process: imports, then the clock, then the check of what came."""
    import fsspec.implementations.http
    import huggingface_hub  # noqa: F401
    import remotezip  # noqa: F401

    import reasonknee_hf.hub.fs.filesystem  # noqa: F401

    assert fsspec.implementations.http
    started = time.perf_counter()
    found = METHODS[method](url, indices)
    seconds = time.perf_counter() - started
    assert found == {index: member_content(index) for index in indices}, method
    print(json.dumps(seconds))


def measure(method: str, url: str, indices: list[int], home: str) -> float:
    environment = {
        **os.environ, "HF_HOME": home, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_UPDATE_DOWNLOAD_COUNTS": "0", "NO_PROXY": "127.0.0.1",
    }  # fmt: skip
    command = [sys.executable, __file__, "--worker", method, "--url", url, "--indices", json.dumps(indices)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{method} failed:\n{done.stderr[-3000:]}")
    return float(done.stdout.splitlines()[-1])


# --- the server ---------------------------------------------------------------------------------------------


def serve(connection, folder: Path, cdn: bool) -> None:
    sys.path.insert(0, str(TESTS))
    from hub.server import Origin

    with Origin() as origin:
        origin.put_tree(
            REPO, {f"{FOLDER}/{name}": folder / name for name in ("joined.zip", "masks_aa", "masks_ab")}
        )
        connection.send(origin.url)
        while connection.recv() == "counts":
            time.sleep(0.05)  # the last lines of the log are written after the client has its bytes
            data = [r for r in origin.log if "/api/" not in r.path]
            heads = sum(r.method == "HEAD" for r in data)
            sent = sum(request.sent for request in data)
            connection.send((len(data), heads, len(origin.log) - len(data), sent))
            origin.clear()
            origin.latency, origin.cdn = LATENCY, cdn


class Server:
    """The Hub, and what it has counted since the last question."""

    def __init__(self, connection) -> None:
        self._connection = connection
        self.url = connection.recv()
        self.counts()

    def counts(self) -> tuple[int, int, int, int]:
        """Requests for data (HEAD included), HEADs among them, requests of the API, bytes of data."""
        self._connection.send("counts")
        return self._connection.recv()


@contextmanager
def running_server(folder: Path, cdn: bool) -> Iterator[Server]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=serve, args=(there, folder, cdn), daemon=True)
    process.start()
    try:
        yield Server(here)
    finally:
        here.send("stop")
        process.join(10)


# --- the table ----------------------------------------------------------------------------------------------


def compare(server: Server, task: str, members: int, rounds: int, methods: list[str]) -> dict[str, dict]:
    """Runs all methods in turns and collects seconds and counts."""
    results: dict[str, dict] = {method: {"seconds": []} for method in methods}
    indices = wanted(task, members)
    with tempfile.TemporaryDirectory() as known:
        measure("ours", server.url, indices[:1], known)  # fills the cache of "directory known"
        server.counts()
        for _ in range(rounds):
            for method in methods:
                with tempfile.TemporaryDirectory() as fresh:
                    home = known if method == "ours, directory known" else fresh
                    results[method]["seconds"].append(measure(method, server.url, indices, home))
                results[method]["counts"] = server.counts()
    return results


def print_table(task: str, members: int, results: dict[str, dict]) -> None:
    needed = sum(len(member_content(index)) for index in wanted(task, members))
    base = statistics.median(results["ours"]["seconds"])
    print(f"\n### {task} ({needed:,} bytes)\n")
    print("| method | s, median [range] | x ours | data requests (HEAD) | API | bytes | x needed |")
    print("|---|---|---|---|---|---|---|")
    for method, result in results.items():
        seconds, (data, heads, api, sent) = result["seconds"], result["counts"]
        median = statistics.median(seconds)
        print(
            f"| {method} | {median:.3f} [{min(seconds):.3f}-{max(seconds):.3f}] | {median / base:.1f} "
            f"| {data} ({heads}) | {api} | {sent:,} | {sent / needed:.4f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="800 members, 3 rounds, without the slow peers")
    parser.add_argument("--members", type=int, help="default: 8,000, or 800 with --small")
    parser.add_argument("--rounds", type=int, help="default: 5, or 3 with --small")
    parser.add_argument("--data", default=str(Path(tempfile.gettempdir()) / "reasonknee-benchmark"))
    parser.add_argument(
        "--cdn", action="store_true", help="answer with redirects to signed storage, as the Hub does"
    )
    parser.add_argument("--json", help="also write all figures to this file")
    parser.add_argument("--task", action="append", choices=TASKS, help="only this table; may be repeated")
    parser.add_argument("--method", action="append", choices=list(METHODS), help="only this peer beside ours")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--indices", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        run_worker(args.worker, args.url, json.loads(args.indices))
        return
    members = args.members or (800 if args.small else 8000)
    rounds = args.rounds or (3 if args.small else 5)
    folder = write_archive(Path(args.data), members)
    size = (folder / "joined.zip").stat().st_size
    print(f"{members:,} members, {size / 1e9:.2f} GB in two parts, {LATENCY * 1000:.0f} ms more a request")
    everything = {}
    with running_server(folder, args.cdn) as server:
        for task in args.task or TASKS:
            whole = task == "one mask" and not args.small
            methods = [method for method in METHODS if whole or method != "both parts, cat"]
            if args.method:
                methods = [method for method in methods if method in {"ours", *args.method}]
            everything[task] = compare(server, task, members, rounds, methods)
            print_table(task, members, everything[task])
    if args.json:
        Path(args.json).write_text(json.dumps(everything, indent=1))


if __name__ == "__main__":
    main()
