"""Every snippet of the README and of the site's pages runs as it stands, against a Hub that holds the sample."""

from __future__ import annotations

import configparser
import contextlib
import os
import re
import shlex
from pathlib import Path

import dicom_writer
import numpy as np
import pytest
from hub.repos import Commit
from hub.server import Origin

from reasonknee_hf.cli import main
from reasonknee_hf.knee.description import open_release
from reasonknee_hf.knee.layout import BOX_AXES, DEFAULT_REVISION, DEFAULT_SOURCE
from reasonknee_hf.volumes.volume import KneeVolume

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TRAINING = "docs/guides/train.md"  # in tests/train/test_training_page.py
SHOWN_ONLY = {
    "docs/guides/publish.md": ["needs Ray"],
    "docs/guides/evaluate.md": ["needs a model"],
    "docs/guides/add.md": ["needs your files"],
    TRAINING: ["needs lightning"],
}
# Commands that end with another code than 0, as their pages say.
CODES = {
    "reasonknee verify --source sample": 1,
    "reasonknee verify --dataset deeptumorvqa --source sample": 1,
}
FENCE = re.compile(r"^(?:<!-- shown only: (.*?) -->\n)?```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def snippets(path: Path) -> list[tuple[str, str, str]]:
    """Reason not to run it (or ""), language and text of each block."""
    return FENCE.findall(path.read_text(encoding="utf-8"))


def write_download(root: Path, sample: Path) -> Path:
    """The sample's volumes as a download from the archive holds them: folders of DICOM on the grids of the masks."""
    release = open_release(str(sample))
    for scan in release.all_scans():
        mask = release.find_mask(scan)
        if mask is None:
            continue
        grid, image = KneeVolume(mask), release.find_image(scan)
        voxels = KneeVolume(image, axes=BOX_AXES).array() if image else np.ones(grid.shape)
        to_lps = np.diag([-1, -1, 1])  # the axes of DICOM
        across, along_row, along_column = (to_lps @ grid.affine[:3, axis] for axis in range(3))
        edges = [float(np.linalg.norm(axis)) for axis in (across, along_column, along_row)]
        rows, origin = voxels.astype(np.uint16).transpose(0, 2, 1), to_lps @ grid.affine[:3, 3]
        if np.cross(along_row, along_column) @ across < 0:  # the writer goes along the normal
            rows, origin = rows[::-1], origin + across * (len(rows) - 1)
        made = dicom_writer.slices(
            rows, patient=scan.patient_id, study=scan.study, series=scan.series,
            description=f"SAG_3D_DESS_{scan.knee_side.upper()}", origin=tuple(origin), spacing=tuple(edges), bits=16,
            orientation=(*(along_row / edges[2]), *(along_column / edges[1])),
        )  # fmt: skip
        dicom_writer.write_folder(root / scan.patient_id / scan.study / scan.series, made)
    return root


@pytest.fixture(scope="module")
def download(sample_dir, tmp_path_factory) -> Path:
    return write_download(tmp_path_factory.mktemp("download") / "OAI", sample_dir)


@pytest.fixture
def world(origin: Origin, second_origin: Origin, sample_dir, download, tmp_path, monkeypatch):
    """Two endpoints with the sample as the published release; texts of pages, and what they mean here."""
    files = {p.relative_to(sample_dir).as_posix(): p for p in sample_dir.rglob("*") if p.is_file()}
    for server in (origin, second_origin):
        sha = server.put_tree(DEFAULT_SOURCE, files)
        repo = server.store.repos[DEFAULT_SOURCE]
        repo.commits[DEFAULT_REVISION] = Commit(DEFAULT_REVISION, None, repo.at(sha).files)
        repo.refs["main"] = DEFAULT_REVISION
    monkeypatch.setenv("HF_ENDPOINT", origin.url)
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    monkeypatch.setenv("REASONKNEE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return {
        "https://huggingface.co": origin.url,
        "https://hf-mirror.com": second_origin.url,
        "/data/OAI": str(download),
        "/data/nifti": str(sample_dir),
    }


@pytest.mark.parametrize("page", [p for p in PAGES if name_of(p) != TRAINING], ids=name_of)
def test_the_page_runs(page, world, capsys):
    names: dict = {"__name__": "__main__"}
    for number, (reason, language, text) in enumerate(snippets(page), 1):
        if reason:
            assert reason in SHOWN_ONLY[name_of(page)]
            if language == "python":
                compile(text, name_of(page), "exec")
            continue
        for written, here in world.items():
            text = text.replace(written, here)
        if language == "python":
            run_python(text, f"{name_of(page)}, snippet {number}", names)
        elif language == "sh":
            for line in text.replace("\\\n", " ").splitlines():
                run_line(line)


def run_python(text: str, name: str, names: dict) -> None:
    """Runs a snippet; one that begins with `# file: NAME` is written to that file."""
    if text.startswith("# file: "):
        Path(text.split(maxsplit=3)[2]).write_text(text, encoding="utf-8")
    else:
        exec(compile(text, name, "exec"), names)


def run_line(line: str) -> None:
    """Runs one line of a shell: our command here, others as far as they can be proven without a network."""
    words = shlex.split(line, comments=True)
    environment = {}
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        key, _, environment[key] = words.pop(0).partition("=")
    if not words:
        return
    command, *arguments = words
    if command == "reasonknee":
        if arguments[0] == "push":
            arguments += ["--hub", os.environ["HF_ENDPOINT"]]  # the client reads it once, before tests set it
        out = arguments.index(">") if ">" in arguments else len(arguments)
        with contextlib.ExitStack() as stack:
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            for key, value in environment.items():
                patch.setenv(key, value)
            if out < len(arguments):
                target = stack.enter_context(open(arguments[out + 1], "w", encoding="utf-8"))
                stack.enter_context(contextlib.redirect_stdout(target))
            assert main(arguments[:out]) == CODES.get(line.split("  #")[0].strip(), 0), line
    elif command == "pip":
        assert arguments[0] == "install"
        assert not (extras_of(arguments[1]) - known_extras()), line
    elif command == "make":
        assert re.search(
            rf"^{arguments[0]}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
        ), line
    else:
        raise AssertionError(f"nothing here runs {line!r}")


def extras_of(requirement: str) -> set[str]:
    return set(re.findall(r"[\w-]+", "".join(re.findall(r"\[(.*)\]", requirement))))


def known_extras() -> set[str]:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    return set(config["options.extras_require"])


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_block_is_left_out(page):
    """A block has a language that is run here, or is text; what is only shown says why."""
    text = page.read_text(encoding="utf-8")
    blocks = snippets(page)
    assert len(re.findall(r"^```", text, re.MULTILINE)) == 2 * len(blocks)
    assert {language for _, language, _ in blocks} <= {"python", "sh", "text", "json"}
    assert [reason for reason, *_ in blocks if reason] == SHOWN_ONLY.get(name_of(page), [])
    for extras in map(extras_of, re.findall(r"pip install '([^']*)'", text)):
        assert extras <= known_extras()
    for target in re.findall(r"^    make (\S+)", text, re.MULTILINE):
        run_line(f"make {target}")
