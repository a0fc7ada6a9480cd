"""Publishing without regrets: nothing of others is taken, what is resumed is proven, and what fails fails first."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from email.utils import formatdate
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hub.faults import Rule
from publishing import REPO, configs_of, files_of, push_bench, tables
from support import files_below

from reasonknee_hf.errors import (
    EndpointError,
    ForbiddenError,
    OptionError,
    PublishError,
    RecordError,
    VolumeMissingError,
)
from reasonknee_hf.hub.wire import retries
from reasonknee_hf.knee.description import open_release
from reasonknee_hf.publish import destination as repository
from reasonknee_hf.publish.card import default_config, placed
from reasonknee_hf.publish.convert import convert
from reasonknee_hf.publish.options import ConvertOptions, PushOptions
from reasonknee_hf.publish.push import push
from reasonknee_hf.publish.question_rows import published_record
from reasonknee_hf.publish.rules import front_matter
from reasonknee_hf.publish.viewer import check_card


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(retries, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(retries, "LONGEST_PAUSE", 0.02)
    monkeypatch.setenv("REASONKNEE_RETRY_TIME", "0.5")


def parquet(**columns) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


def card_with(*configs: str, **keys) -> str:
    listed = [{"config_name": name, "data_files": f"{name}/*.parquet"} for name in configs]
    return f"---\n{yaml.safe_dump({**keys, 'configs': listed})}---\n# Theirs\n"


def default_of(origin) -> str | None:
    return default_config(front_matter(files_of(origin)["README.md"].decode())[0])


# --- names taken for ours ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("theirs", ["bench_volumes", "bench_crops", "bench_volumes_bytes"])
def test_a_config_of_others_beside_ours_stays(origin, sample_dir, theirs):
    there = {"README.md": card_with(theirs), f"{theirs}/a.parquet": parquet(x=[1])}
    origin.put_tree(REPO, there)
    for limit in (3, 4):
        push_bench(origin, sample_dir, volumes="none", limit=limit)
    assert files_of(origin)[f"{theirs}/a.parquet"] == there[f"{theirs}/a.parquet"]
    assert {**configs_of(files_of(origin)["README.md"])[theirs]} == {
        "config_name": theirs, "data_files": f"{theirs}/*.parquet", "default": True,
    }  # fmt: skip


@pytest.mark.parametrize(("theirs", "volumes"), [("bench", "none"), ("bench_volumes", "files"), ("bench_volumes_bytes", "embed")])  # fmt: skip  # noqa: E501
def test_a_config_of_others_is_not_replaced_unless_told(origin, sample_dir, theirs, volumes):
    origin.put_tree(REPO, {"README.md": card_with(theirs), f"{theirs}/a.parquet": parquet(x=[1])})
    before = files_of(origin)
    with pytest.raises(PublishError, match=f"config '{theirs}' that no manifest.*delete_configs"):
        push_bench(origin, sample_dir, volumes=volumes, limit=3)
    assert files_of(origin) == before
    push_bench(origin, sample_dir, volumes=volumes, limit=3, delete_configs=[theirs])
    assert f"{theirs}/a.parquet" not in files_of(origin)


def test_our_own_config_of_such_a_name_stays(origin, sample_dir):
    push_bench(origin, sample_dir, name="bench_volumes", volumes="none", limit=3)
    before = {name: content for name, content in files_of(origin).items() if name.startswith("bench_v")}
    assert len(before) == 2  # the table and its manifest
    push_bench(origin, sample_dir, volumes="none", limit=3)
    assert {name: files_of(origin).get(name) for name in before} == before
    with pytest.raises(PublishError, match="bench_volumes"):
        push_bench(origin, sample_dir, limit=3)


def test_a_file_that_was_put_under_our_name_stays(origin, sample_dir):
    push_bench(origin, sample_dir, volumes="none", limit=3)
    (mine,) = [name for name in files_of(origin) if name.endswith(".parquet")]
    origin.put_tree(REPO, {**files_of(origin), mine: parquet(x=[1])})
    push_bench(origin, sample_dir, volumes="none", limit=4)
    assert files_of(origin)[mine] == parquet(x=[1])


def test_a_picture_of_others_stays(origin, sample_dir):
    origin.put_tree(
        REPO, {"README.md": card_with("a"), "grades-bench.png": b"theirs", "a/1.parquet": parquet(x=[1])}
    )
    push_bench(origin, sample_dir, config="full", name="bench", volumes="none", limit=3)
    assert files_of(origin)["grades-bench.png"] == b"theirs"


SMALL = {"row_group_bytes": 10_000, "shard_bytes": 10_000}

# --- resume ------------------------------------------------------------------------------------------------------


def test_parts_that_are_missing_or_different_are_made_again(sample_dir, tmp_path):
    options = {"source": str(sample_dir), "on_error": "null", "volumes": "none", **SMALL}
    convert(tmp_path, "full", **options)
    before = files_below(tmp_path)
    parts = tables(tmp_path, "full", "train")
    assert len(parts) > 2
    parts[1].unlink()
    convert(tmp_path, "full", **options)
    assert files_below(tmp_path) == before
    for part, content in ((parts[1], b"PAR1"), (parts[2], parts[1].read_bytes())):
        part.write_bytes(content)
        convert(tmp_path, "full", **options)
        assert files_below(tmp_path) == before


def test_parts_of_a_repository_that_are_missing_are_sent_again(origin, sample_dir):
    options = {"volumes": "none", **SMALL}
    push_bench(origin, sample_dir, config="full", **options)
    before = files_of(origin)
    lost = next(name for name in before if name.endswith("-001.parquet"))
    origin.put_tree(REPO, {name: content for name, content in before.items() if name != lost})
    push_bench(origin, sample_dir, config="full", **options)
    assert files_of(origin) == before


def test_a_lost_file_beside_the_tables_is_made_again(sample_dir, tmp_path):
    options = {"source": str(sample_dir), "on_error": "null", "splits": "test", "volumes": "files"}
    convert(tmp_path, "scans", **options)
    before = files_below(tmp_path)
    volume = next(tmp_path.rglob("*.nii.gz"))
    volume.unlink()
    convert(tmp_path, "scans", **options)
    assert files_below(tmp_path) == before


def test_a_manifest_tells_rows_and_hashes(bench_folder):
    from hashlib import sha256

    (path,) = (bench_folder / "bench").glob("reasonknee-*.json")
    told = json.loads(path.read_text("utf-8"))
    assert (told["config"], told["of"], told["kind"]) == ("bench", "bench", "questions")
    tables_told = {name: one for name, one in told["files"].items() if name.endswith(".parquet")}
    assert set(tables_told) == {p.relative_to(bench_folder).as_posix() for p in tables(bench_folder, "bench")}
    for name, one in tables_told.items():
        content = (bench_folder / name).read_bytes()
        assert (one["bytes"], one["sha256"]) == (len(content), sha256(content).hexdigest())
        assert one["rows"] == pq.read_metadata(bench_folder / name).num_rows


# --- those who read today ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("configs", "default"), [(["a"], "a"), (["a", "b"], None), ([], "bench")])
def test_what_is_loaded_without_a_name_stays(origin, sample_dir, configs, default):
    origin.put_tree(
        REPO, {"README.md": card_with(*configs)} | {f"{n}/1.parquet": parquet(x=[1]) for n in configs}
    )
    before = default_of(origin)
    for _ in range(2):
        push_bench(origin, sample_dir, volumes="none", limit=3)
        assert default_of(origin) == default
    assert before in (default, None)


def test_another_default_is_said_before_sending(origin, sample_dir, caplog):
    origin.put_tree(REPO, {"README.md": card_with("a"), "a/1.parquet": parquet(x=[1])})
    push_bench(origin, sample_dir, volumes="none", limit=3, delete_configs=["a"])
    assert any("gives bench from now on, not a" in record.getMessage() for record in caplog.records)


# --- refused at the end ------------------------------------------------------------------------------------------


def nothing_sent(origin) -> bool:
    return origin.requests("_lfs", "PUT") == [] and origin.requests("/commit/", "POST") == []


def test_a_card_that_the_hub_refuses_is_refused_first(origin, sample_dir):
    def refuse(reply) -> None:
        reply.status = 400
        reply.body = json.dumps({"errors": [{"message": "license is wrong"}], "warnings": []}).encode()

    origin.faults(Rule(refuse, r"^POST .*/validate-yaml"))
    with pytest.raises(PublishError, match="license is wrong"):
        push_bench(origin, sample_dir, volumes="none")
    assert nothing_sent(origin)
    assert REPO not in origin.store.repos


def status(code: int, text: str = "no"):
    def fault(reply) -> None:
        reply.status, reply.body = code, json.dumps({"error": text}).encode()
        reply.headers["X-Error-Message"] = text

    return fault


def test_a_token_that_may_not_write_is_refused_first(origin, sample_dir):
    origin.put_tree(REPO, {"README.md": "# t\n"})
    origin.faults(Rule(status(403), r"^POST .*/preupload/"))
    with pytest.raises(ForbiddenError, match="create_pr=True"):
        push_bench(origin, sample_dir, volumes="none")
    assert nothing_sent(origin)


def test_a_token_that_only_reads_creates_nothing(origin, sample_dir):
    def reads(reply) -> None:
        reply.body = json.dumps({"name": "t", "auth": {"accessToken": {"role": "read"}}}).encode()

    origin.faults(Rule(reads, r"^GET .*/whoami"))
    with pytest.raises(ForbiddenError, match="may write"):
        push_bench(origin, sample_dir, volumes="none")
    assert origin.requests("/repos/create") == []


def test_missing_volumes_are_found_before_questions_travel(origin, sample_dir, tmp_path):
    import shutil

    release = Path(shutil.copytree(sample_dir, tmp_path / "release"))
    scan = open_release(str(release)).scans("test")[1]
    Path(open_release(str(release)).find_image(scan)).unlink()
    array = release / "data/generate_data/test.json"
    array.write_text(json.dumps([r for r in json.loads(array.read_text()) if not r.get("bad")]))
    options = {"on_error": "raise", "patients": [scan.patient_id]}
    for given in (options, options | {"where": fits}):
        with pytest.raises((VolumeMissingError, RecordError)) as caught:
            push_bench(origin, release, **given)
        assert scan.scan_id in str(caught.value)
        assert REPO not in origin.store.repos
        assert nothing_sent(origin)


def fits(row) -> bool:
    return row["category"] is not None


def test_a_selection_that_keeps_nothing_creates_nothing(origin, sample_dir):
    with pytest.raises(PublishError, match="keeps no row"):
        push_bench(origin, sample_dir, volumes="none", patients="1")
    assert origin.requests("/repos/create") == []


# --- data governance ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"volumes": "files"}, {"volumes": "none", "crops": True}, {"volumes": "none", "previews": True}])  # fmt: skip  # noqa: E501
@pytest.mark.parametrize("there", [True, False])
def test_voxels_do_not_become_public_unsaid(origin, sample_dir, options, there):
    if there:
        origin.put_tree(REPO, {"README.md": "# t\n"})
    with pytest.raises(PublishError, match="public_volumes=True"):
        push_bench(origin, sample_dir, public_volumes=False, **options)
    assert nothing_sent(origin)
    assert there or REPO not in origin.store.repos


def gated(reply) -> None:
    reply.body = json.dumps(json.loads(reply.body) | {"gated": "auto"}).encode()


@pytest.mark.parametrize("how", ["new", "private", "gated"])
def test_voxels_go_where_they_may(origin, sample_dir, how):
    if how != "new":
        origin.put_tree(REPO, {"README.md": "# t\n"})
        origin.store.repos[REPO].private = how == "private"
    if how == "gated":
        origin.faults(Rule(gated, r"^GET /api/datasets/.*/revision/"))
    push_bench(origin, sample_dir, public_volumes=False, private=True if how == "new" else None, limit=3)
    assert any(name.startswith("bench_volumes/") for name in files_of(origin))


def test_private_does_not_mean_public(origin, sample_dir):
    origin.put_tree(REPO, {"README.md": "# t\n"})
    with pytest.raises(PublishError, match="private=True makes only new ones private"):
        push_bench(origin, sample_dir, volumes="none", private=True)
    assert nothing_sent(origin)


def test_volumes_of_an_earlier_call_are_reported(sample_dir, tmp_path, caplog):
    options = {"source": str(sample_dir), "on_error": "null", "limit": 3}
    convert(tmp_path, "bench", **options)
    done = convert(tmp_path, "bench", volumes="none", **options)
    (left,) = [name for name in done.stale if name.endswith(".parquet")]
    assert left.startswith("bench_volumes/")
    assert "no config names any more" in caplog.text
    assert any(one.blocking and "earlier call" in one.text for one in check_card(tmp_path))


def test_the_card_states_terms_of_the_volumes(bench_folder):
    card = (bench_folder / "README.md").read_text("utf-8")
    assert "Licence of the annotations" in card
    assert "Osteoarthritis Initiative, not CC BY 4.0" in card


# --- names of files ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["README.md", "readme.MD", "croissant.json", "x" * 245])
def test_names_of_our_files_are_refused_first(origin, sample_dir, tmp_path, name):
    with pytest.raises(PublishError, match="would"):
        convert(tmp_path / "o", "bench", source=str(sample_dir), name=name)
    with pytest.raises(PublishError, match="would"):
        push_bench(origin, sample_dir, name=name)
    assert origin.requests() == []
    assert not (tmp_path / "o").exists()


# --- transport ---------------------------------------------------------------------------------------------------


def page(reply) -> None:
    reply.status, reply.body = 503, b"<html>busy</html>"
    reply.headers["Content-Type"] = "text/html"


def test_a_page_instead_of_a_card_check_is_tried_again(origin, sample_dir):
    origin.faults(Rule(page, r"^POST .*/validate-yaml", times=2))
    push_bench(origin, sample_dir, volumes="none", limit=3)
    origin.clear()
    origin.faults(Rule(page, r"^POST .*/validate-yaml"))
    with pytest.raises(EndpointError, match=r"checking the card.*not JSON"):
        push_bench(origin, sample_dir, volumes="none", limit=4)


@pytest.mark.parametrize("code", [520, 522, 524])
def test_failures_of_proxies_are_tried_again(origin, sample_dir, code):
    origin.faults(Rule(status(code), r"^POST .*/commit/", times=2))
    push_bench(origin, sample_dir, volumes="none", limit=3)
    assert "bench" in configs_of(files_of(origin)["README.md"])


def test_a_dated_wait_is_kept(monkeypatch):
    from huggingface_hub.errors import HfHubHTTPError

    class Answer:
        status_code, headers, request = 503, {"Retry-After": formatdate(time.time() + 30, usegmt=True)}, None

    failure = HfHubHTTPError.__new__(HfHubHTTPError)
    Exception.__init__(failure, "busy")
    failure.response = Answer()
    waits: list[float] = []
    monkeypatch.setattr(retries.time, "sleep", waits.append)

    def call() -> str:
        if not waits:
            raise failure
        return "done"

    assert repository.insist(call, "sending") == "done"
    assert 25 < waits[0] <= 33


def test_a_hub_that_is_not_there_is_said_soon(sample_dir, monkeypatch):
    monkeypatch.setattr(repository, "FIRST_SECONDS", 0.05)
    monkeypatch.delenv("REASONKNEE_RETRY_TIME")
    with pytest.raises(EndpointError, match=r"listing me/knee failed until"):
        push(
            REPO,
            "bench",
            source=str(sample_dir),
            volumes="none",
            hub_endpoint="http://127.0.0.1:9",
            token="hf_x",
        )


@pytest.mark.parametrize(("code", "text"), [(403, "Private repository storage limit reached"), (413, "too large"), (507, "full")])  # fmt: skip  # noqa: E501
def test_a_full_quota_is_not_answered_by_log_in(origin, sample_dir, code, text):
    origin.faults(Rule(status(code, text), r"^POST .*/info/lfs/objects/batch"))
    with pytest.raises(EndpointError, match="there is no room") as caught:
        push_bench(origin, sample_dir, volumes="none", limit=3)
    assert "Log in" not in str(caught.value)


def dies(row) -> bool:
    os._exit(9)


def test_a_process_that_dies_is_one_clear_error(sample_dir, tmp_path):
    with (
        ProcessPoolExecutor(1) as pool,
        pytest.raises(PublishError, match="process that made shards of full died"),
    ):
        convert(
            tmp_path,
            "full",
            source=str(sample_dir),
            on_error="null",
            volumes="none",
            where=dies,
            executor=pool,
        )


def test_an_interrupt_is_one_line(sample_dir, tmp_path):
    (tmp_path / "stops.py").write_text(
        f"import os, signal\ndef stop(row):\n    os.kill(os.getpid(), {int(signal.SIGINT)})\n"
    )
    command = [
        sys.executable,
        "-m",
        "reasonknee_hf",
        "convert",
        "o",
        "--source",
        str(sample_dir),
        "--where",
        "stops:stop",
    ]
    done = subprocess.run(
        [*command, "--on-error", "null", "--quiet"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (130, "reasonknee: interrupted\n")


# --- records that no column can hold -----------------------------------------------------------------------------


def test_records_with_half_a_character_follow_on_error(sample_dir, tmp_path):
    import shutil

    release = Path(shutil.copytree(sample_dir, tmp_path / "release"))
    array = release / "data/generate_data/test.json"
    records = json.loads(array.read_text("utf-8"))
    records[1]["answer"] += "\ud800"
    array.write_text(json.dumps(records))
    options = {"source": str(release), "volumes": "none", "splits": "test"}

    def rows(on_error: str) -> list[dict]:
        done = convert(tmp_path / on_error, "records", on_error=on_error, **options)
        return [row for name in done.files for row in pq.read_table(tmp_path / on_error / name).to_pylist()]

    with pytest.raises(RecordError, match="surrogate pair in answer"):
        rows("raise")
    assert [published_record(row) for row in rows("skip")] == [records[0], *records[2:]]
    kept = rows("null")
    assert kept[1]["answer"] is None
    assert [published_record(row) for row in kept] == records


# --- card text of others -----------------------------------------------------------------------------------------


def test_what_was_edited_inside_our_sections_is_kept_apart(sample_dir, tmp_path):
    options = {"source": str(sample_dir), "on_error": "null", "volumes": "none", "limit": 3}
    convert(tmp_path, "bench", **options)
    path = tmp_path / "README.md"
    once = path.read_text("utf-8")
    path.write_text(
        once.replace("### Columns", "Words of theirs.\n\n### Columns").replace("For research.", "For play.")
    )
    for number in (1, 2):
        convert(tmp_path, "bench", **options)
        card = path.read_text("utf-8")
        assert (card.count("Words of theirs."), card.count("For play."), card.count("For research.")) == (
            1,
            1,
            1,
        ), number
    assert card.index("As it was edited by hand: section bench") > card.index('end "bench"')


def test_sections_without_marks_do_not_double(sample_dir, tmp_path):
    import re

    options = {"source": str(sample_dir), "on_error": "null", "volumes": "none", "limit": 3}
    convert(tmp_path, "bench", **options)
    path = tmp_path / "README.md"
    once = path.read_text("utf-8")
    path.write_text(re.sub(r"<!--.*?-->\n?", "", once))
    convert(tmp_path, "bench", **options)
    card = path.read_text("utf-8")
    assert (card.count("## Config `bench`"), card.count("## Attribution and licence")) == (1, 1)
    assert "<details>" not in card


def test_a_heading_of_others_is_not_ours():
    body = "## Attribution and licence\n\nMine, all mine.\n\n## More\n"
    assert placed(body, "attribution", "## Attribution and licence\n\n*ours*\n\nx").startswith(body)


# --- left behind -------------------------------------------------------------------------------------------------

KILLED = """
import os, sys, tempfile
from reasonknee_hf.publish import destination
from reasonknee_hf.publish.push import push
destination.Repository.upload = lambda self, names: os._exit(9)
push("me/knee", "bench", source=sys.argv[1], on_error="null", hub_endpoint=sys.argv[2], token="hf_x", verify=False,
     volumes="none", limit=3)
"""


def test_the_folder_of_a_killed_push_goes_with_the_next(origin, sample_dir, tmp_path, monkeypatch):
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    killed = subprocess.run([sys.executable, "-c", KILLED, str(sample_dir), origin.url], env=env, check=False)
    assert killed.returncode == 9
    (left,) = tmp_path.glob("reasonknee-push-*")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    push_bench(origin, sample_dir, volumes="none", limit=3)
    assert not left.exists()
    assert list(tmp_path.glob("reasonknee-push-*")) == []


# --- options -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"crop_margin": 2.0}, {"limti": 3}, {"split": "test"}])
def test_options_that_would_be_ignored_are_refused(sample_dir, tmp_path, options):
    with pytest.raises(OptionError, match=r"crops=True|Did you mean"):
        convert(tmp_path / "o", "bench", source=str(sample_dir), **options)
    assert not (tmp_path / "o").exists()


def test_options_may_be_one_object(sample_dir, tmp_path):
    shared = ConvertOptions(config="bench", source=str(sample_dir), on_error="null", volumes="none", limit=2)
    assert convert(tmp_path / "a", options=shared).configs[0].rows == 2
    assert convert(tmp_path / "b", options=shared, limit=3).configs[0].rows == 3
    assert "limit: rows a split" in (ConvertOptions.__doc__ or "")
    assert "public_volumes:" in (PushOptions.__doc__ or "")


def test_a_word_means_one_thing_in_both_commands(capsys):
    from reasonknee_hf.cli import main

    told = {}
    for command in ("convert", "push"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        told[command] = " ".join(capsys.readouterr().out.split())
        assert "--revision REVISION branch, tag or commit of a Hub source" in told[command]
    assert "--branch BRANCH branch to push to" in told["push"]


def test_a_filter_lies_in_the_current_folder(sample_dir, tmp_path, monkeypatch):
    from reasonknee_hf.cli.publish_options import _function

    (tmp_path / "a_filter_of_mine.py").write_text("def keep(row):\n    return True\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one not in ("", str(tmp_path))])
    assert _function("a_filter_of_mine:keep")({}) is True


def test_another_licence_is_said_once(origin, sample_dir, caplog):
    origin.put_tree(REPO, {"README.md": "---\nlicense: mit\n---\n# t\n"})
    push_bench(origin, sample_dir, volumes="none", limit=3)
    assert caplog.text.count("licence 'mit'") == 1


# --- checks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("old", ["- name: id", "- name: prompt"])
def test_columns_that_a_file_lacks_are_found(sample_dir, tmp_path, old):
    convert(tmp_path, "bench", source=str(sample_dir), on_error="null", volumes="none", limit=3)
    path = tmp_path / "README.md"
    path.write_text(path.read_text("utf-8").replace(old, "- name: nowhere", 1))
    told = "\n".join(str(one) for one in check_card(tmp_path) if one.blocking)
    assert "lacks the columns nowhere" in told
    assert f"does not say: {old.partition(': ')[2]}" in told


@pytest.mark.parametrize("key", ["a.b", "$ref", "deep: {x.y"])
def test_keys_that_cannot_be_stored_are_found(sample_dir, tmp_path, key):
    convert(tmp_path, "bench", source=str(sample_dir), on_error="null", volumes="none", limit=3)
    path = tmp_path / "README.md"
    end = "}" if "{" in key else ""
    path.write_text(path.read_text("utf-8").replace("---\n", f"---\n{key}: 1{end}\n", 1))
    assert any("cannot be stored" in str(one) for one in check_card(tmp_path))


# --- what would be done ------------------------------------------------------------------------------------------


def test_a_dry_run_says_all_and_sends_nothing(origin, sample_dir, tmp_path):
    options = {"volumes": "none", "folder": tmp_path}
    push_bench(origin, sample_dir, limit=3, **options)
    before = files_of(origin)
    origin.clear()
    told = push_bench(origin, sample_dir, limit=4, dry_run=True, **options).plan
    assert nothing_sent(origin)
    assert (told["visibility"], told["default_before"], told["default_after"]) == ("public", "bench", "bench")
    assert set(told["deleted"]) == {name for name in before if name.startswith("bench/")}
    push_bench(origin, sample_dir, limit=4, **options)
    after = files_of(origin)
    assert set(told["files"]) == set(after)
    assert told["bytes"] == sum(map(len, after.values()))


def test_a_folder_that_convert_made_is_sent_as_it_is(origin, sample_dir, tmp_path, monkeypatch):
    from reasonknee_hf.publish import tasks

    options = {"source": str(sample_dir), "on_error": "null", "limit": 3}
    convert(tmp_path, "bench", **options)
    made = {name: content for name, content in files_below(tmp_path).items() if name.endswith(".parquet")}
    monkeypatch.setattr(tasks, "run_task", lambda task: pytest.fail("made again"))
    push_bench(origin, sample_dir, folder=tmp_path, limit=3)
    assert {name: content for name, content in files_of(origin).items() if name.endswith(".parquet")} == made


def test_commands_say_json(sample_dir, tmp_path, capsys):
    from reasonknee_hf.cli import main

    command = [
        "convert",
        str(tmp_path),
        "--config",
        "bench",
        "--source",
        str(sample_dir),
        "--on-error",
        "null",
    ]
    assert main([*command, "--volumes", "none", "--limit", "3", "--json", "--quiet"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["configs"]["bench"]["test"]["rows"] == 3
    assert main(["check-card", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_every_choice_of_rows_is_an_option(sample_dir, tmp_path):
    from dataclasses import fields

    from reasonknee_hf.publish.row_selection import Selection

    assert {one.name for one in fields(Selection)} <= {one.name for one in fields(ConvertOptions)}
    options = {"source": str(sample_dir), "on_error": "null", "volumes": "none"}
    rows = [row for name in convert(tmp_path, "bench", questions=[1, 2], **options).files
            for row in pq.read_table(tmp_path / name).to_pylist()]  # fmt: skip
    assert {row["question_id"] for row in rows} == {1, 2}
