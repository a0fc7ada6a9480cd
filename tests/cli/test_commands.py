"""Commands, and `loading_script.py` as a command and as a script."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import datasets
import pytest
from support import in_fresh_process, plain

import reasonknee_hf
from reasonknee_hf.cli import COMMANDS, main

pytestmark = pytest.mark.floor

ROOT = Path(__file__).resolve().parents[2]
RUNS_SCRIPTS = int(datasets.__version__.split(".")[0]) < 4


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, timeout=180)


def test_rows_are_json_lines(capsys):
    assert main(["rows", "bench", "--split", "test", "--limit", "3", "--source", "sample"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    stream = reasonknee_hf.load_dataset("bench", split="test", streaming=True, source="sample")
    names = {column: stream.features[column].names for column in ("knee_side", "category")}
    expected = [plain(row) | {c: names[c][row[c]] for c in names} for row in islice(stream, 3)]
    assert lines == expected


def test_the_script_is_the_same_command(capsys, tmp_path):
    arguments = ["bench", "--split", "test", "--limit", "3", "--source", "sample"]
    main(["rows", *arguments])
    printed = run(str(ROOT / "loading_script.py"), *arguments, cwd=tmp_path)
    assert printed.returncode == 0, printed.stderr
    assert printed.stdout == capsys.readouterr().out


@pytest.mark.skipif(not RUNS_SCRIPTS, reason="datasets runs loading scripts up to 3.x only")
@pytest.mark.parametrize("streaming", [True, False])
def test_the_script_loads_as_a_script(tmp_path, streaming):
    printed = in_fresh_process(
        """
        import json, sys
        from datasets import load_dataset
        options = {"split": "test", "streaming": sys.argv[2] == "True", "source": "sample"}
        ds = load_dataset(sys.argv[1], "bench", trust_remote_code=True, **options)
        row = next(iter(ds))
        print(json.dumps([row["id"], list(row["image"].shape)]))
        """,
        tmp_path,
        str(ROOT / "loading_script.py"),
        str(streaming),
    )
    row = next(iter(reasonknee_hf.load_dataset("bench", split="test", streaming=True, source="sample")))
    assert json.loads(printed) == [row["id"], list(row["image"].shape)]


def test_demo_prints_rows_and_draws_one(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    out = tmp_path / "pictures" / "demo.png"
    assert main(["demo", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert str(out) in printed
    assert "Cartilage" in printed
    assert out.read_bytes().startswith(b"\x89PNG")
    assert out.stat().st_size > 50_000


@pytest.mark.skipif(find_spec("matplotlib") is not None, reason="is for environments without pictures")
def test_demo_prints_rows_where_pictures_cannot_be_drawn(capsys, tmp_path):
    assert main(["demo", "--out", str(tmp_path / "demo.png")]) == 0
    printed = capsys.readouterr().out
    assert "Cartilage" in printed
    assert "reasonknee_hf[viz]" in printed


@pytest.mark.parametrize("wrong", [["--source", "{tmp}/nowhere"], ["--source", "sample", "--limit", "-1"]])
def test_errors_are_one_line_and_exit_code_one(wrong, capsys, tmp_path):
    assert main(["rows", *(word.format(tmp=tmp_path) for word in wrong)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("reasonknee: ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["show", "{row}", "--out", "{dir}"], "directory"),
        (["show", "{row}", "--html", "--out", "{dir}"], "directory"),
        (["show", "{row}", "--out", "{dir}/a.xyz"], "'xyz'; use one of"),
        (["demo", "--out", "{dir}"], "directory"),
        (["demo", "--out", "{dir}/a.xyz"], "'xyz'; use one of"),
        (["sample", "/dev/null/there"], "directory"),
    ],
)
def test_output_that_cannot_be_written_is_one_line(arguments, words, capsys, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("REASONKNEE_SOURCE", "sample")
    row = next(iter(reasonknee_hf.load_dataset("bench", split="test", streaming=True, source="sample")))
    (tmp_path / "d.png").mkdir()
    filled = [part.format(row=row["id"], dir=tmp_path / "d.png") for part in arguments]
    assert main(filled) == 1
    captured = capsys.readouterr()
    assert captured.out == ""  # nothing was done before
    assert captured.err.count("\n") == 1
    assert words in captured.err
    assert list((tmp_path / "d.png").iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("limit", ["1", "100"])  # less and more than what is held back before it is written
def test_a_full_disk_is_one_line(limit, tmp_path):
    command = [sys.executable, "-m", "reasonknee_hf", "rows", "--source", "sample", "--limit", limit]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, timeout=180
        )
    assert done.returncode == 1
    assert done.stderr == "reasonknee: [Errno 28] No space left on device\n"


def test_help_names_every_command_and_loads_nothing_heavy(tmp_path):
    printed = in_fresh_process(
        """
        import sys
        import datasets
        before = set(sys.modules)
        from reasonknee_hf.cli import main
        try:
            main(["--help"])
        except SystemExit as done:
            assert done.code == 0
        print("new:", {name.split(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names))
        """,
        tmp_path,
    )
    assert set(COMMANDS) <= set(printed.split())
    assert "new: {'reasonknee_hf'}" in printed


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as done:
        main([command, "--help"])
    assert done.value.code == 0
    assert command in capsys.readouterr().out


def test_env_tells_versions_and_settings_and_nothing_secret(capsys, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "https://me:secret-1@hub.example")
    monkeypatch.setenv("REASONKNEE_SOME_TOKEN", "secret-2")
    monkeypatch.setenv("REASONKNEE_MIRRORS", "https://a.example,https://x:secret-3@b.example")
    assert main(["env", "--json"]) == 0
    printed = capsys.readouterr().out
    facts = json.loads(printed)
    assert facts["datasets"] == datasets.__version__
    assert facts["HF_ENDPOINT"] == "https://…@hub.example"
    assert facts["REASONKNEE_MIRRORS"] == "https://a.example,https://…@b.example"
    assert "secret" not in printed
