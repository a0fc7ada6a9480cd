"""What `verify` reads, changes and prints: requests, memory, text, JSON, exit codes."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import verify_plants as plant
from bigjson import BYTES_PER_RECORD, RECORDS_PER_SCAN, write_big_json
from hub import faults
from verify_plants import counts, examples, report_on

import reasonknee_hf
from reasonknee_hf.cli import main
from reasonknee_hf.errors import OptionError
from reasonknee_hf.hub.wire import mirrors
from reasonknee_hf.hub.zips.opening import TAIL
from reasonknee_hf.knee.sample import write_sample
from reasonknee_hf.verify import Report, verify

REPO = "owner/knees"


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sample(tmp_path_factory.mktemp("clean") / "release", flaws=False)


@pytest.fixture
def root(clean: Path, tmp_path: Path) -> Path:
    return plant.copy_of(clean, tmp_path / "release")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirrors, "_health", {})


def files_of(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


def from_hub(origin, root: Path, **options) -> Report:
    sha = origin.put_tree(REPO, files_of(root))
    return verify(reasonknee_hf.open_release(REPO, revision=sha, endpoint=origin.url), **options)


# --- requests ---------------------------------------------------------------------------------------------


def test_no_volume_is_asked_for_and_of_the_archive_only_its_directory(origin, root):
    # The archive of the sample is so small that a look for its directory brings all of it.
    filler = random.Random(0).randbytes(3 * TAIL)
    plant.edit_members(root, lambda masks: masks.update({"masks/knee_900.nii.gz": filler}))
    plant.set_records(root, "test_balanced", plant.records(root, "test")[::4])
    report = from_hub(origin, root)
    assert counts(report) == {"file-unlisted": 1}
    assert report.sha == origin.store.repos[REPO].refs["main"]
    assert not origin.requests("/data/images/")
    assert not origin.requests("/data/OAI/")
    assert not origin.requests("masks_aa")
    assert len(origin.requests("masks_ab")) == 1
    assert origin.sent("masks_ab") == TAIL
    for name in ("train", "val", "test", "test_balanced"):
        path = root / f"data/generate_data/{name}.json"
        assert len(origin.requests(f"/{path.name}")) == 1
        assert origin.sent(f"/{path.name}") == path.stat().st_size
    assert {request.method for request in origin.log} <= {"GET", "HEAD"}


def test_deep_reads_each_volume_and_mask_once(origin, clean):
    report = from_hub(origin, clean, deep=True)
    assert counts(report) == {}
    assert report.boxes.conclusive
    volumes = [path for path in files_of(clean) if path.startswith("data/images/")]
    for path in volumes:
        answered = [r for r in origin.requests(path) if r.status in (200, 206) and r.method == "GET"]
        assert sum(r.sent for r in answered) <= (clean / path).stat().st_size + 8192  # and its header
    limited = len(origin.requests("/data/images/"))
    origin.clear()
    from_hub(origin, clean, deep=True, limit_scans=1)
    assert 0 < len(origin.requests("/data/images/")) * 6 <= limited


def test_defects_of_a_repository(origin, root):
    """At a Hub the listing gives hashes, and files that were committed as pointers are no LFS files."""
    origin.store.lfs_patterns = ("*.zip",)
    plant.volume(root, "train", 0).write_bytes(plant.POINTER)
    plant.volume(root, "test").write_bytes(plant.volume(root, "val").read_bytes())
    plant.volume(root, "train", 1).write_bytes(b"")
    report = from_hub(origin, root)
    assert counts(report) == {"pointer-file": 1, "identical-in-two-splits": 1, "empty-file": 1}
    asked = {request.path.rpartition("/")[2] for request in origin.requests("/data/images/")}
    assert asked == {plant.volume(root, "train", 0).name}


def test_identical_lfs_files_are_known_by_the_listing(origin, root):
    plant.volume(root, "test").write_bytes(plant.volume(root, "val").read_bytes())
    assert counts(from_hub(origin, root)) == {"identical-in-two-splits": 1}
    assert not origin.requests("/data/images/")


def test_an_endpoint_that_fails_is_an_error_and_no_finding(origin, clean):
    sha = origin.put_tree(REPO, files_of(clean))
    release = reasonknee_hf.open_release(REPO, revision=sha, endpoint=origin.url)
    origin.faults(faults.Rule(faults.status(404), match="val_split"))
    with pytest.raises(reasonknee_hf.errors.EndpointError):
        verify(release)


# --- what it says -----------------------------------------------------------------------------------------


def test_broken_json_is_reported_with_its_place_and_the_rest_is_read(root):
    path = root / "data/generate_data/train.json"
    data = path.read_bytes()
    at = data.index(b'"image"', len(data) // 3)
    path.write_bytes(data[:at] + b'"image": oops, ' + data[at:])
    report = report_on(root)
    assert counts(report) == {"annotation-broken": 1, "records-per-scan": 1}
    assert f"train.json, byte {at + 9}, record " in examples(report, "annotation-broken")
    assert ": 61 (" in examples(report, "records-per-scan")
    assert report.splits[0].records == 3 * RECORDS_PER_SCAN - 1


def test_several_breaks_of_one_file(root):
    path = root / "data/generate_data/train.json"
    data = path.read_bytes()
    for part in (5, 3, 2):  # from the end on, so that places stay
        at = data.index(b'"prompt": "', len(data) * part // 6)
        data = data[: at + 10] + data[at + 11 :]  # the text has lost its first quote
    path.write_bytes(data)
    report = report_on(root)
    assert counts(report)["annotation-broken"] == 3
    assert report.splits[0].records == 3 * RECORDS_PER_SCAN - 3


def test_a_file_that_is_not_what_the_listing_says(root):
    release = reasonknee_hf.open_release(str(root))
    path = root / "data/generate_data/train.json"
    path.write_bytes(path.read_bytes()[:100_000])
    report = verify(release)
    assert counts(report) == {"file-unreadable": 1, "records-per-scan": 1, "scan-without-records": 1}
    assert "train.json" in examples(report, "file-unreadable")


@pytest.mark.parametrize("broken", ["lost comma", "comma before the end", "text behind the end"])
def test_breaks_between_records_cost_no_record(broken, root):
    path = root / "data/generate_data/val.json"
    text = path.read_text("utf-8")
    text = {
        "lost comma": text.replace("},\n{", "}\n{", 1),
        "comma before the end": text.replace("}\n]", "},\n]"),
        "text behind the end": text + "x",
    }[broken]
    path.write_text(text, "utf-8")
    assert counts(report_on(root)) == {"annotation-broken": 1}


def test_columns_are_told_apart(root):
    def edit(records):
        records[0]["answer"] = 5
        records[1]["prompt"] = None
        records[2]["final_diagnosis"]["bounding_box"] = [1, 2, 3]
        records[3]["final_diagnosis"]["bounding_box"] = "here"

    plant.edit_records(root, "val", edit)
    unfit = {f.part: f.count for f in report_on(root).findings if f.kind == "record-unfit"}
    assert unfit == {"answer": 1, "prompt": 1, "bbox": 2}


def test_examples_name_row_file_and_offset_and_are_few(root):
    plant.edit_records(root, "val", lambda records: records + records[:9])
    report = report_on(root)
    (finding,) = (f for f in report.findings if f.kind == "record-duplicate")
    assert finding.count == 9
    assert len(finding.examples) == 5
    data = (root / "data/generate_data/val.json").read_bytes()
    for example in finding.examples:
        assert "data/generate_data/val.json, bytes " in example
        for offset in example.rpartition("bytes ")[2].rstrip(")").split(", "):
            assert data[int(offset) :].startswith(b"{")


def test_conflicts_and_repeats_are_told_apart(root):
    def edit(records):
        return [*records, records[0], records[0], {**records[0], "answer": "no"}, records[1]]

    plant.edit_records(root, "val", edit)
    assert counts(report_on(root)) == {
        "record-conflict": 1,
        "record-duplicate": 1,
        "answer-unmarked": 1,
    }


def test_counts_of_splits_stand_beside_the_published_ones(sample_dir):
    report = report_on(sample_dir)
    table = {s.split: (s.scans, s.scans_with_records, s.records) for s in report.splits}
    assert table == {"train": (5, 3, 186), "validation": (2, 2, 124), "test": (2, 2, 124)}
    assert [(s.published_scans, s.paper_scans) for s in report.splits] == [
        (5903, 5977),
        (837, 797),
        (1280, 1196),
    ]
    assert counts(report) == {"scan-without-records": 2, "volume-missing": 1}
    assert "5,903" in report.to_text()


def test_json_holds_everything(sample_dir):
    report = report_on(sample_dir, deep=True)
    value = json.loads(report.to_json())
    assert value["exit_code"] == report.exit_code == 1
    assert [f["kind"] for f in value["findings"]] == [f.kind for f in report.findings]
    assert value["findings"][0].keys() == {"kind", "level", "title", "part", "count", "examples"}
    assert value["boxes"]["conclusive"]
    assert value["boxes"]["best_is_declared"]
    assert len(value["boxes"]["ranking"]) == 24
    assert value["splits"][0]["records"] == 186


@pytest.mark.parametrize("width", [60, 100])
def test_text_fits_the_terminal(sample_dir, width):
    lines = report_on(sample_dir, deep=True).to_text(width).splitlines()
    assert any("volume-missing" in line for line in lines)
    # Words are not broken: paths may stick out.
    assert all(len(line) <= max(width, 92) for line in lines)


def test_nothing_is_changed(root):
    before = {path: (hashlib.sha256(content).hexdigest()) for path, content in files_of(root).items()}
    report_on(root, deep=True)
    assert before == {path: hashlib.sha256(content).hexdigest() for path, content in files_of(root).items()}


def test_the_public_name():
    assert reasonknee_hf.verify_release is verify


@pytest.mark.parametrize("options", [{"limit_scans": 2}, {"deep": True, "limit_scans": 0}])
def test_options_that_make_no_sense(clean, options):
    with pytest.raises(OptionError, match="limit_scans"):
        report_on(clean, **options)


class TestCommand:
    def test_exit_code_0_and_a_table(self, clean, capsys):
        assert main(["verify", "--source", str(clean), "--deep"]) == 0
        out = capsys.readouterr().out
        assert "0 of level error" in out
        assert "372 equal" in out

    def test_exit_code_1_and_json(self, sample_dir, capsys):
        assert main(["verify", "--source", str(sample_dir), "--json"]) == 1
        value = json.loads(capsys.readouterr().out)
        assert value["exit_code"] == 1
        assert not value["deep"]

    def test_what_is_no_release(self, tmp_path, capsys):
        assert main(["verify", "--source", str(tmp_path)]) == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("reasonknee: ")


# --- memory -----------------------------------------------------------------------------------------------


def big_release(root: Path, clean: Path, megabytes: int) -> Path:
    """A copy whose train.json is large, with a table that lists its scans."""
    plant.copy_of(clean, root)
    count = megabytes * 1_000_000 // BYTES_PER_RECORD // RECORDS_PER_SCAN * RECORDS_PER_SCAN
    write_big_json(root / "data/generate_data/train.json", records=count)
    header = plant.rows(root, "train_split")[0]
    scans = []
    for scan in range(count // RECORDS_PER_SCAN):
        key = [str(9000001 + scan), "00M", "20041222", str(10300001 + scan), str(1 + scan % 2)]
        image = f"../data/images/{key[0]}/00M/20041222_{key[3]}_{key[4]}.nii.gz"
        scans.append([*key, "", image, f"../data/masks/knee_{scan:03d}.nii.gz"])
    plant.set_rows(root, "train_split", [header, *scans])
    return root


@pytest.mark.parametrize(("megabytes", "limit"), [(30, 40), pytest.param(200, 120, marks=pytest.mark.slow)])
def test_memory_is_bounded_whatever_the_size_of_the_annotations(megabytes, limit, clean, tmp_path):
    root = big_release(tmp_path / "big", clean, megabytes)
    code = """
        import json, sys
        import reasonknee_hf
        from reasonknee_hf.verify import verify

        def peak():  # not ru_maxrss, which survives exec and may be that of the test process
            return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

        verify(reasonknee_hf.open_release(sys.argv[1]))  # so that all modules are loaded
        release = reasonknee_hf.open_release(sys.argv[2])
        base = peak()
        report = verify(release)
        print(json.dumps({"growth": (peak() - base) / 1024, "records": report.splits[0].records}))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(clean), str(root)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    measured = json.loads(done.stdout)
    size = (root / "data/generate_data/train.json").stat().st_size
    assert measured["records"] > 0.4 * size / BYTES_PER_RECORD
    assert measured["growth"] < limit
