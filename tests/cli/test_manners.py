"""What all commands have in common: exit codes that are stated, silence on request, completion, no colours."""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys

import pytest

from reasonknee_hf.cli import COMMANDS, main


def commands() -> list[list[str]]:
    """Every command, and every command below one."""
    import importlib

    found = []
    for name, (module, _) in COMMANDS.items():
        parser = argparse.ArgumentParser()
        importlib.import_module(module).configure(parser)
        below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        found += [[name, each] for action in below for each in action.choices] or [[name]]
    return found


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_help_states_exit_codes_and_how_to_be_silent(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    told = capsys.readouterr().out
    assert ended.value.code == 0
    assert "Exit code" in told
    assert "--quiet" in told
    assert "\x1b[" not in told
    with pytest.raises(SystemExit) as ended:
        main([*command, "--no-such-option"])
    assert ended.value.code == 2


def test_quiet_leaves_the_data_and_nothing_else(tmp_path):
    command = [sys.executable, "-m", "reasonknee_hf", "rows", "bench", "--source", "sample", "--limit", "1"]
    loud = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    quiet = subprocess.run([*command, "--quiet"], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert quiet.stdout == loud.stdout
    assert json.loads(quiet.stdout)["id"]
    assert quiet.stderr == ""
    verify = [*command[:3], "verify", "--source", "sample", "--quiet", "--json"]
    told = subprocess.run(verify, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert told.returncode == 1  # a volume is missing there on purpose
    assert told.stderr == ""
    assert json.loads(told.stdout)


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("reasonknee ver", {"verify"}),
        ("reasonknee verify --de", {"--deep"}),
        ("reasonknee bench sc", {"score"}),
        ("reasonknee verify --dataset dee", {"deeptumorvqa"}),
    ],
)
def test_a_shell_completes_commands_options_and_values(line, offered, tmp_path):
    pytest.importorskip("argcomplete")
    out = tmp_path / "offered"
    asked = {
        "_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(out), "COMP_LINE": line, "COMP_POINT": str(len(line)),
    }  # fmt: skip
    subprocess.run(
        [sys.executable, "-m", "reasonknee_hf"],
        env=os.environ | asked,
        cwd=tmp_path,
        timeout=120,
        check=False,
    )
    assert offered <= {word.strip() for word in out.read_text().split("\n")}


def test_sizes_of_caches_as_json(capsys):
    assert main(["cache", "ls", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert main(["cache", "size", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == sum(kind["bytes"] for kind in told.values())


def test_errors_name_options_as_the_command_has_them(tmp_path, capsys):
    assert main(["convert", str(tmp_path / "out"), "--source", "sample", "--quiet"]) == 1
    told = capsys.readouterr().err
    assert "--images" in told
    assert "--on-error skip" in told
    assert "on_error" not in told


def test_quiet_ends_with_its_command(caplog):
    import datasets

    before = datasets.are_progress_bars_disabled()
    assert main(["env", "--quiet"]) == 0
    assert logging.getLogger("reasonknee_hf").level == logging.NOTSET
    assert datasets.are_progress_bars_disabled() == before
