"""What lies in a folder or repository already: it stays loadable and whole, or is refused before anything is made."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from publishing import REPO, configs_of, files_of, push_bench
from support import files_below, in_fresh_process

from reasonknee_hf.errors import OptionError, PublishError
from reasonknee_hf.publish.convert import convert
from reasonknee_hf.publish.rules import front_matter


def loads(place: str, configs: list[str | None], cwd: Path, **env: str) -> list[int]:
    """Rows of configs as `datasets` alone loads them; `None` for no name."""
    code = """
    import json, sys, datasets
    names = json.loads(sys.argv[2])
    print([sum(map(len, datasets.load_dataset(sys.argv[1], name).values())) for name in names])
    """
    out = in_fresh_process(
        code, cwd, place, json.dumps(configs), HF_HOME=str(cwd / "home"), PYTHONPATH="", **env
    )
    return json.loads(out.strip().splitlines()[-1])


# --- the default config ------------------------------------------------------------------------------------------

NAMED = "---\nconfigs:\n- config_name: default\n  data_files: other/*.parquet\n---\n# t\n"


def two_rows() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"x": [1, 2]}), sink)
    return sink.getvalue()


SHARD = "data/train-00000-of-00001.parquet"


@pytest.mark.parametrize(
    "there",
    [
        {"README.md": NAMED, "other/a.parquet": two_rows()},
        {"README.md": "# t\n", SHARD: two_rows()},
        {SHARD: two_rows()},
    ],
)
def test_the_default_config_of_others_stays_the_default(origin, sample_dir, tmp_path, there):
    origin.put_tree(REPO, there)
    push_bench(origin, sample_dir, volumes="none", limit=3)
    env = {"HF_ENDPOINT": origin.url, "HF_TOKEN": "hf_x"}
    assert loads(REPO, [None, "default", "bench"], tmp_path, **env) == [2, 2, 3]
    push_bench(origin, sample_dir, volumes="none", limit=4)
    assert list(configs_of(files_of(origin)["README.md"])) == ["default", "bench"]


def test_data_in_a_folder_stay_loadable(sample_dir, tmp_path):
    (tmp_path / "knee/data").mkdir(parents=True)
    (tmp_path / "knee" / SHARD).write_bytes(two_rows())
    convert(tmp_path / "knee", "bench", source=str(sample_dir), on_error="null", volumes="none", limit=3)
    assert loads("./knee", [None, "bench"], tmp_path) == [2, 3]


@pytest.mark.parametrize(
    ("there", "options", "message"),
    [
        ({"README.md": NAMED.replace("default", "a\n  default: true")}, {"name": "default"}, "more than one"),
        ({"data/test-00000-of-00001.parquet": "x"}, {"name": "default"}, "Choose another name="),
        ({"README.md": "# t\n", "train.csv": "x\n1\n"}, {}, r"1 data files such as train\.csv"),
    ],
)
def test_data_that_could_not_be_loaded_any_more_are_refused_first(
    origin, sample_dir, there, options, message
):
    origin.put_tree(REPO, there)
    with pytest.raises(PublishError, match=message):
        push_bench(origin, sample_dir, volumes="none", **options)
    assert origin.requests("_lfs/", "PUT") == []
    assert set(files_of(origin)) == set(there)


# --- cards and descriptions --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("README.md", "---\nWords\n---\n", "keys and values"),
        ("README.md", "---\n- a\n---\n", "keys and values"),
        ("README.md", "---\nconfigs: {a: b}\n---\n", "configs of the card"),
        ("README.md", "---\nconfigs: [a]\n---\n", "configs of the card"),
        ("README.md", "---\ndataset_info: [a]\n---\n", "dataset_info of the card"),
        ("README.md", "---\na: 2001-99-99\n---\n", "not YAML"),
        ("README.md", "---\na: [\n---\n", "not YAML"),
        ("README.md", "# Käse\n".encode("latin-1"), "not UTF-8"),
        ("README.md", "x" * 1_000_000, "1,000,000"),
        ("croissant.json", "{", "not JSON"),
        ("croissant.json", "[]", "no object"),
        ("croissant.json", '"x"', "no object"),
        ("croissant.json", '{"distribution": ["a"]}', "no object"),
        ("croissant.json", "é".encode("latin-1"), "not UTF-8"),
    ],
)
def test_what_cannot_be_merged_is_refused_first(origin, sample_dir, tmp_path, name, content, message):
    origin.put_tree(REPO, {name: content})
    with pytest.raises(PublishError, match=message):
        push_bench(origin, sample_dir, volumes="none")
    assert origin.requests("_lfs/", "PUT") == []
    (tmp_path / "o").mkdir()
    (tmp_path / "o" / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    before = files_below(tmp_path / "o")
    with pytest.raises(PublishError, match=message):
        convert(tmp_path / "o", "bench", source=str(sample_dir), on_error="null", volumes="none")
    assert files_below(tmp_path / "o") == before


def test_what_was_wrong_before_is_not_in_the_way(sample_dir, tmp_path):
    """The Hub has taken it, or will say so itself."""
    old = "---\nlicense: theirs\nbase: &x {a: 1}\nother: *x\nconfigs: null\n---\nhello\n"
    (tmp_path / "README.md").write_text(old)
    (tmp_path / "croissant.json").write_text('{"distribution": null}')
    convert(tmp_path, "bench", source=str(sample_dir), on_error="null", volumes="none", limit=3)
    told = yaml.safe_load(front_matter((tmp_path / "README.md").read_text())[0])
    assert (told["license"], told["base"], told["other"]) == ("theirs", {"a": 1}, {"a": 1})


def test_line_ends_of_a_card_stay(sample_dir, tmp_path):
    options = {"source": str(sample_dir), "on_error": "null", "volumes": "none", "limit": 3}
    (tmp_path / "README.md").write_bytes(b"---\r\nmine: 1\r\n---\r\nhello\r\n")
    for name in ("one", "two"):
        convert(tmp_path, "bench", name=name, **options)
        card = (tmp_path / "README.md").read_bytes()
        assert card.count(b"\r\n") == card.count(b"\n") > 100
    assert card.startswith(b"---\r\nmine: 1\r\n")
    assert list(configs_of(card)) == ["one", "two"]


FULL_DISK = """
import errno, os, sys
from reasonknee_hf.errors import PublishError
from reasonknee_hf.publish import card
from reasonknee_hf.publish.convert import convert

card.grade_picture = lambda counts: None
replace = os.replace
def full(source, target):
    if target.name == "README.md":
        raise OSError(errno.ENOSPC, "No space left on device")
    return replace(source, target)
os.replace = full
try:
    convert(sys.argv[2], "bench", source=sys.argv[1], on_error="null", volumes="none")
except PublishError as error:
    print(error)
"""


def test_a_full_disk_leaves_the_card_of_others(sample_dir, tmp_path):
    hand_written = "# Theirs\n" + "precious words\n" * 300
    (tmp_path / "README.md").write_text(hand_written)
    said = in_fresh_process(FULL_DISK, tmp_path, str(sample_dir), str(tmp_path))
    assert re.search(r"disk of .* is full; README\.md was not written", said)
    assert (tmp_path / "README.md").read_text() == hand_written
    assert list(tmp_path.glob(".*")) == []


def test_a_card_that_is_a_link_stays_one(sample_dir, tmp_path):
    (tmp_path / "elsewhere.md").write_text("theirs\n")
    (tmp_path / "o").mkdir()
    (tmp_path / "o/README.md").symlink_to("../elsewhere.md")
    convert(tmp_path / "o", "bench", source=str(sample_dir), on_error="null", volumes="none", limit=3)
    assert (tmp_path / "o/README.md").is_symlink()
    assert "theirs" in (tmp_path / "elsewhere.md").read_text()


# --- places ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["json", "my data", "d\"q'uote", "ünï", "."])
def test_the_three_lines_of_a_folder_run(sample_dir, tmp_path, monkeypatch, capsys, name):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here" if name == "." else tmp_path)
    convert(name, "bench", source=str(sample_dir), on_error="null", volumes="none", limit=3)
    (code,) = re.findall(r"```python\n(.*?)```", Path(name, "README.md").read_text("utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    assert "'question_id': 1" in capsys.readouterr().out
    name = "here" if name == "." else name
    told = json.loads(Path(name, "croissant.json").read_text("utf-8"))
    assert told["name"] == name
    assert told["url"] == "https://huggingface.co/datasets/rajpurkarlab/3DReasonKnee"
    assert "huggingface" not in told["distribution"][0]["contentUrl"]


@pytest.mark.parametrize(
    ("make", "out", "message"),
    [
        ("o", "o", "o is no folder"),
        ("o", "o/sub", "o is no folder"),
        ("o/bench", "o", "bench is no folder"),
        ("o/README.md/x", "o", r"README\.md is a folder"),
    ],
)
def test_files_where_folders_must_be(origin, sample_dir, tmp_path, make, out, message):
    (tmp_path / make).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / make).touch()
    with pytest.raises(PublishError, match=message):
        convert(tmp_path / out, "bench", source=str(sample_dir), on_error="null", volumes="none")
    with pytest.raises(PublishError, match=message):
        push_bench(origin, sample_dir, volumes="none", folder=tmp_path / out)
    assert origin.requests() == []


def test_a_hub_that_is_no_url_is_refused(origin, sample_dir):
    with pytest.raises(OptionError, match="not a url"):
        push_bench(origin, sample_dir, hub_endpoint="not a url")


@pytest.mark.parametrize("option", [["--workers", "0"], ["--frames", "-1"], ["--crop-margin", "nan"]])
def test_numbers_that_mean_nothing(sample_dir, tmp_path, option):
    command = [
        sys.executable,
        "-m",
        "reasonknee_hf",
        "convert",
        str(tmp_path / "o"),
        "--source",
        str(sample_dir),
    ]
    done = subprocess.run([*command, *option], capture_output=True, text=True, env=os.environ, timeout=120)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert option[0].strip("-").replace("-", "_") in line.replace("-", "_")
