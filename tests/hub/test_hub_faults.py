"""Every fault at every operation: the bytes are right or there is a typed error, never wrong bytes."""

from __future__ import annotations

import io
import itertools
import random
import zipfile
from concurrent.futures import ThreadPoolExecutor

import pytest

from hub import faults as f
from reasonknee_hf.errors import ReasonKneeError
from reasonknee_hf.hub.fs.filesystem import ReasonKneeFileSystem
from reasonknee_hf.hub.trees.hub_tree import HubTree
from reasonknee_hf.hub.wire import mirrors, retries

_names = (f"owner/repo{n}" for n in itertools.count())
RAW = "data/question.json"
MEMBER = "data/masks/m3.nii.gz"


class Case:
    """A repository of its own with random content, and what each operation must give."""

    def __init__(self, seed: int = 0) -> None:
        noise = random.Random(seed)
        self.repo = next(_names)
        self.raw = noise.randbytes(300_000)
        self.masks = {f"m{n}.nii.gz": noise.randbytes(20_000) for n in range(8)}
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, content in self.masks.items():
                archive.writestr(f"masks/{name}", content)
        packed = buffer.getvalue()
        self.files = {
            "README.md": noise.randbytes(700),
            RAW: self.raw,
            "data/masks_aa": packed[:75_000],  # the cut goes through m3
            "data/masks_ab": packed[75_000:],
        }

    def range(self, endpoint) -> bool:
        tree = HubTree(self.repo, "main", endpoint)
        spans = [(200_000, 230_000), (1_000, 2_000)]
        return tree.ranges(RAW, spans) == [self.raw[a:b] for a, b in spans]

    def tail(self, endpoint) -> bool:
        return b"".join(HubTree(self.repo, "main", endpoint).stream(RAW, 100_000)) == self.raw[100_000:]

    def stream(self, endpoint) -> bool:
        return b"".join(HubTree(self.repo, "main", endpoint).stream(RAW)) == self.raw

    def read(self, endpoint) -> bool:
        return HubTree(self.repo, "main", endpoint).read(RAW) == self.raw

    def member(self, endpoint) -> bool:
        fs = ReasonKneeFileSystem(source=self.repo, endpoint=endpoint, skip_instance_cache=True)
        return fs.cat_file(MEMBER) == self.masks["m3.nii.gz"]

    def listing(self, endpoint) -> bool:
        found = HubTree(self.repo, "main", endpoint).entries()
        return {path: entry.size for path, entry in found.items()} == {
            path: len(content) for path, content in self.files.items()
        }


OPERATIONS = ("range", "tail", "stream", "read", "member", "listing")

# Every fault with the options of its rule. `between` skips so many requests that the fault hits a later one.
BETWEEN = {"range": 3, "tail": 2, "stream": 0, "read": 0, "member": 1, "listing": 0}
FAULTS = {
    "Range ignored (200, whole file)": (f.ignore_range, {}),
    "206 shifted, honest Content-Range": (f.shifted(7), {}),
    "206 shifted, lying Content-Range": (f.shifted(7, lie=True), {}),
    "206 shifted, no Content-Range": (f.both(f.shifted(7), f.without("Content-Range")), {}),
    "206 shorter than asked": (f.short_range, {}),
    "no X-Repo-Commit": (f.without("X-Repo-Commit"), {}),
    "no ETag": (f.without("ETag", "X-Linked-Etag"), {}),
    "no Content-Length": (f.without("Content-Length"), {}),
    "no Content-Range": (f.without("Content-Range"), {}),
    "503 once": (f.status(503), {"times": 1}),
    "503 for ever": (f.status(503), {}),
    "429, Retry-After, once": (f.status(429, Retry_After="1"), {"times": 1}),
    "429, RateLimit, once": (f.status(429, RateLimit='"api";r=0;t=1'), {"times": 1}),
    "429 for ever": (f.status(429, Retry_After="3600"), {}),
    "401 once": (f.status(401), {"times": 1}),
    "403 once": (f.status(403), {"times": 1}),
    "404 once": (f.status(404), {"times": 1}),
    "200 with HTML": (f.html, {}),
    "200 with HTML once": (f.html, {"times": 1}),
    "FIN in the body, once": (f.cut(100), {"times": 1}),
    "FIN in the body, twice": (f.cut(100), {"times": 2}),
    "FIN in the body, always": (f.cut(100), {}),
    "RST in the body, once": (f.cut(100, "rst"), {"times": 1}),
    "chunked body cut": (f.cut(100, framing="chunked"), {"times": 1}),
    "chunked body cut, always": (f.cut(100, framing="chunked"), {}),
    "body without length cut": (f.cut(100, framing="close"), {}),
    "Content-Length too small": (f.wrong_length(-100), {}),
    "Content-Length 0": (f.wrong_length(-(10**9)), {}),
    "Content-Length too big, then FIN": (f.wrong_length(100), {}),
    "Content-Length too big, kept open": (f.wrong_length(100, keep_open=True), {}),
    "stall before the head": (f.stall(1.5), {"times": 1}),
    "stall in the body": (f.cut(100, "stall", stall=1.5), {"times": 1}),
    "body drips": (f.drip(), {"times": 1}),
    "gzip although identity": (f.gzipped, {}),
    "redirect to a dead port": (f.redirect("http://127.0.0.1:9/x"), {}),
    "content and headers change between": (f.swapped(), {"between": True}),
    "content and headers wrong": (f.swapped(), {}),
    "content wrong, headers right": (f.swapped(headers=False), {}),
    "cut, then content changes": ("then", (f.cut(50_000), f.swapped())),
    "cut, then content changes silently": ("then", (f.cut(50_000), f.swapped(headers=False))),
    "cut, then Range ignored": ("then", (f.cut(50_000), f.ignore_range)),
}


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setenv("REASONKNEE_TIMEOUT", "5")
    monkeypatch.setattr(retries, "FIRST_PAUSE", 0.01)


def set_fault(origin, name: str, operation: str) -> None:
    fault, options = FAULTS[name]
    match = "/api/" if operation == "listing" else "^GET .*/resolve/.*(question|masks_|README)"
    if fault == "then":
        origin.faults(f.Rule(options[0], match, times=1), f.Rule(options[1], match))
        return
    between = options.get("between")
    skip = BETWEEN[operation] if between else 0
    origin.faults(fault, match=match, skip=skip, times=options.get("times"))


# Only these are noticed by waiting.
SILENCE = ("stall", "body drips", "Content-Length too big, kept open")


def outcome(name: str, case: Case, operation: str, endpoint, monkeypatch, patience: str = "5") -> str:
    monkeypatch.setattr(mirrors, "_health", {})  # as in a new process
    monkeypatch.setenv("REASONKNEE_TIMEOUT", "0.4" if name.startswith(SILENCE) else patience)
    monkeypatch.setenv("REASONKNEE_RETRY_TIME", "0.3")
    try:
        return "ok" if getattr(case, operation)(endpoint) else "WRONG"
    except ReasonKneeError as error:
        return type(error).__name__.removesuffix("Error")
    except Exception as error:
        return f"UNTYPED {type(error).__name__}"


def show(title: str, table: dict[str, dict[str, str]], capsys) -> list[str]:
    """Prints a table and returns the cells that must not be."""
    columns = list(next(iter(table.values())))
    with capsys.disabled():
        print(f"\n\n{title}\n{'fault':<36}" + "".join(f"{column:<14}" for column in columns))
        for name, row in table.items():
            print(f"{name:<36}" + "".join(f"{row[column]:<14}" for column in columns))
    cells = [(name, column, cell) for name, row in table.items() for column, cell in row.items()]
    bad = [
        f"{name} / {column}: {cell}" for name, column, cell in cells if cell.startswith(("WRONG", "UNTYPED"))
    ]
    with capsys.disabled():
        print(f"{len(cells)} cells, wrong bytes or untyped errors in {len(bad)}")
    return bad


def test_one_endpoint(origin, monkeypatch, capsys):
    case = Case()
    origin.put_tree(case.repo, case.files)
    table: dict[str, dict[str, str]] = {}
    for name in FAULTS:
        table[name] = {}
        for operation in OPERATIONS:
            set_fault(origin, name, operation)
            table[name][operation] = outcome(name, case, operation, origin.url, monkeypatch)
            origin.rules = []
    assert show("One endpoint", table, capsys) == []
    # What a client can survive alone, it must survive.
    for name in ("503 once", "429, Retry-After, once", "429, RateLimit, once", "FIN in the body, once",
                 "FIN in the body, twice", "RST in the body, once", "chunked body cut", "no X-Repo-Commit",
                 "no ETag", "no Content-Length", "stall before the head", "stall in the body"):  # fmt: skip
        assert set(table[name].values()) == {"ok"}, name


def test_a_good_second_endpoint_saves_every_call(origin, second_origin, monkeypatch, capsys):
    case = Case()
    for one in (origin, second_origin):
        one.put_tree(case.repo, case.files)
    table: dict[str, dict[str, str]] = {}
    for name in FAULTS:
        table[name] = {}
        for operation in OPERATIONS:
            set_fault(origin, name, operation)
            endpoints = [origin.url, second_origin.url]
            table[name][operation] = outcome(name, case, operation, endpoints, monkeypatch)
            origin.rules = []
    assert show("A second endpoint that is well", table, capsys) == []
    failed = [(name, op, cell) for name, row in table.items() for op, cell in row.items() if cell != "ok"]
    # A stream has handed out most of a file before its hash is known: what is left is the error at its end.
    assert failed == [("content wrong, headers right", "stream", "Content")]


# Faults of the origin that reach the client through a mirror, or that the mirror turns into others.
THROUGH_A_MIRROR = (
    "Range ignored (200, whole file)", "206 shifted, lying Content-Range", "206 shorter than asked",
    "no X-Repo-Commit", "503 once", "503 for ever", "429 for ever", "404 once", "200 with HTML",
    "FIN in the body, once", "FIN in the body, always", "RST in the body, once", "chunked body cut",
    "Content-Length too small", "gzip although identity", "content wrong, headers right",
)  # fmt: skip


@pytest.mark.slow
def test_through_olah(olah, olah_origin, monkeypatch, capsys):
    table: dict[str, dict[str, str]] = {}
    for number, name in enumerate(THROUGH_A_MIRROR):
        table[name] = {}
        for operation in OPERATIONS[:-1]:
            case = Case(number)  # new content in a new repository: nothing of it is in the mirror's cache
            olah_origin.put_tree(case.repo, case.files)
            set_fault(olah_origin, name, operation)
            table[name][operation] = outcome(name, case, operation, olah, monkeypatch, "1.5")
            olah_origin.rules = []
    assert show("Through olah, the faults at its origin", table, capsys) == []
    assert set(table["no X-Repo-Commit"].values()) == {"ok"}


def test_a_mirror_keeps_wrong_bytes_for_ever_and_we_do_not_take_them(olah, olah_origin, monkeypatch):
    case = Case(99)
    olah_origin.put_tree(case.repo, case.files)
    set_fault(olah_origin, "content wrong, headers right", "read")
    assert outcome("", case, "read", olah, monkeypatch) == "Content"
    olah_origin.rules = []
    assert outcome("", case, "read", olah, monkeypatch) == "Content"  # out of its poisoned cache
    assert outcome("", case, "read", [olah, olah_origin.url], monkeypatch) == "ok"


def test_many_threads_in_the_middle_of_all_faults(origin, second_origin, monkeypatch):
    """Connections are shared and given up all the time here: no answer may end up with another question."""
    case = Case(7)
    sha = {one.put_tree(case.repo, case.files) for one in (origin, second_origin)}.pop()
    # Left out is what marks an endpoint for the whole process, and a lie that begins after the endpoint has
    # shown that it is honest, which nothing but a checksum can notice.
    left_out = ("429", "Range ignored", "206 shifted", "content wrong", "cut, then", "body drips")
    faults = [fault for name, (fault, _) in FAULTS.items() if not name.startswith(left_out)]
    dice = random.Random(8)
    monkeypatch.setattr(mirrors, "_health", {})
    origin.faults(lambda reply: dice.choice(faults)(reply) if dice.random() < 0.6 else None)

    def work(number: int) -> bool:
        tree = HubTree(case.repo, sha, [origin.url, second_origin.url])
        start = number * 1000
        if number % 4 == 0:
            return b"".join(tree.stream(RAW)) == case.raw
        if number % 4 == 1:
            return tree.read("data/masks_aa") == case.files["data/masks_aa"]
        return tree.ranges(RAW, [(start, start + 5000)]) == [case.raw[start : start + 5000]]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(200)))
    assert len(origin.requests("/resolve/")) >= 200
