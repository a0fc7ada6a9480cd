"""The call: `load_dataset("reasonknee", ...)` and `reasonknee_hf.load_dataset(...)` over the built-in sample."""

from __future__ import annotations

import json
import pickle
from itertools import islice

import datasets
import pytest
from support import in_fresh_process, plain

import reasonknee_hf
from reasonknee_hf.errors import OptionError
from reasonknee_hf.knee.moaks import CATEGORIES

pytestmark = pytest.mark.floor

SPLITS = {
    "full": ["train", "validation", "test"],
    "bench": ["test"],
    "scans": ["train", "validation", "test"],
}
HIDDEN_IN_BENCH = {"cot", "answer"}


def test_first_row_in_a_fresh_process_and_an_empty_folder(tmp_path, sample_dir):
    printed = in_fresh_process(
        """
        import json, socket
        connect = socket.socket.connect
        def loopback_only(self, address):
            assert isinstance(address, str) or address[0].startswith("127."), address
            return connect(self, address)
        socket.socket.connect = loopback_only

        import reasonknee_hf
        from datasets import load_dataset
        row = next(iter(load_dataset("reasonknee", split="train", streaming=True, source="sample")))
        print(json.dumps({k: str(type(v).__name__) for k, v in row.items()}))
        """,
        tmp_path,
    )
    types = json.loads(printed)
    assert list(types) == [
        "id", "scan_id", "patient_id", "visit", "study", "series", "knee_side", "image", "mask", "question_id",
        "category", "structure", "subregion", "prompt", "bbox", "cot", "answer", "grades", "final_diagnosis",
    ]  # fmt: skip
    assert types["image"] == types["mask"] == "KneeVolume"
    assert types["bbox"] == types["grades"] == "list"
    assert types["category"] == types["question_id"] == types["knee_side"] == "int"


@pytest.mark.parametrize("config", SPLITS)
def test_both_calls_give_the_same_rows_in_every_split(config):
    ours = reasonknee_hf.load_dataset(config, streaming=True, source="sample")
    theirs = datasets.load_dataset("reasonknee", config, streaming=True, source="sample")
    assert list(ours) == list(theirs) == SPLITS[config]
    for split in ours:
        assert ours[split].features == theirs[split].features
        rows = [plain(row) for row in ours[split]]
        assert rows == [plain(row) for row in theirs[split]]
        assert rows
        assert list(rows[0]) == list(ours[split].features)


def test_all_62_questions_of_a_scan_come_together():
    rows = list(reasonknee_hf.load_dataset("full", split="train", streaming=True, source="sample"))
    scans = [row["scan_id"] for row in rows]
    assert len(rows) == 62 * len(set(scans))
    assert all(len({*scans[i : i + 62]}) == 1 for i in range(0, len(scans), 62))
    assert sorted({row["question_id"] for row in rows}) == list(range(1, 63))
    assert len({row["id"] for row in rows}) == len(rows)
    assert rows[0]["id"] == f"{rows[0]['scan_id']}_{rows[0]['question_id']}"


def test_bench_hides_what_gives_the_grade_away():
    full = reasonknee_hf.load_dataset("full", split="test", streaming=True, source="sample")
    bench = reasonknee_hf.load_dataset("bench", split="test", streaming=True, source="sample")
    assert set(full.features) - set(bench.features) == HIDDEN_IN_BENCH
    shown = [{k: v for k, v in plain(row).items() if k not in HIDDEN_IN_BENCH} for row in full]
    assert [plain(row) for row in bench] == shown


def test_high_fidelity_holds_the_scans_with_expert_segmentations(sample_dir):
    release = reasonknee_hf.open_release(str(sample_dir))
    stream = reasonknee_hf.load_dataset("high_fidelity", streaming=True, source=str(sample_dir))
    found = {row["scan_id"] for split in stream.values() for row in split}
    with_records = {
        row["scan_id"]
        for split in reasonknee_hf.load_dataset("full", streaming=True, source=str(sample_dir)).values()
        for row in split
    }
    assert found == set(release.expert_files) & with_records
    assert found
    assert found < with_records


def test_high_fidelity_takes_a_list_or_a_csv(sample_dir, tmp_path):
    chosen = reasonknee_hf.open_release(str(sample_dir)).scans("train")[0].scan_id
    table = tmp_path / "chosen.csv"
    table.write_text(f"scan_id\n{chosen}\n")
    for value in ([chosen], str(table)):
        ds = reasonknee_hf.load_dataset(
            "high_fidelity", streaming=True, source=str(sample_dir), high_fidelity=value
        )
        assert list(ds) == ["train"]
        assert {row["scan_id"] for row in ds["train"]} == {chosen}
    with pytest.raises(reasonknee_hf.ReasonKneeError, match="nobody"):
        reasonknee_hf.load_dataset(
            "high_fidelity", streaming=True, source=str(sample_dir), high_fidelity=["nobody"]
        )


def test_map_style_equals_the_stream(tmp_path):
    options = {"split": "validation", "source": "sample", "cache_dir": str(tmp_path)}
    stream = [plain(row) for row in datasets.load_dataset("reasonknee", streaming=True, **options)]
    prepared = datasets.load_dataset("reasonknee", num_proc=2, **options)
    again = reasonknee_hf.load_dataset("full", **options)  # from the cache, without features of its own
    for ds in (prepared, again):
        assert type(ds[0]["image"]).__name__ == "KneeVolume"
        assert ds[0]["image"].label == ds[0]["id"]
        assert [plain(row) for row in ds] == stream
        assert ds.features == datasets.load_dataset("reasonknee", streaming=True, **options).features


def one_more(row):
    return {"n": 1}


def lengths(batch):
    return {"n": [len(prompt) for prompt in batch["prompt"]]}


@pytest.mark.parametrize(
    "transform",
    [
        lambda ds: ds.map(one_more),
        lambda ds: ds.map(lengths, batched=True),
        lambda ds: ds.map(one_more, num_proc=2),
        lambda ds: ds.map(one_more).filter(lambda row: row["n"] == 1).rename_column("n", "m"),
        lambda ds: ds.select(range(70)).map(one_more),
        lambda ds: ds.train_test_split(0.5, seed=1)["train"].map(one_more),
        lambda ds: ds.sort("question_id").flatten_indices(),
        lambda ds: pickle.loads(pickle.dumps(ds)).map(one_more),
        lambda ds: datasets.concatenate_datasets([ds, ds]).map(one_more),
        lambda ds: datasets.DatasetDict({"train": ds}).map(one_more)["train"],
    ],
)
def test_volumes_stay_lazy_when_a_transform_comes_from_the_cache(tmp_path, transform):
    def again():
        ds = reasonknee_hf.load_dataset("full", split="train", source="sample", cache_dir=str(tmp_path))
        return transform(ds)

    first, second = again(), again()
    for ds in (first, second):
        assert type(ds[0]["image"]).__name__ == "KneeVolume"
        assert ds[0]["mask"].structure("medial meniscus").any()
    assert [plain(row) for row in first] == [plain(row) for row in second]


def test_names_of_configs_and_splits():
    assert datasets.get_dataset_config_names("reasonknee") == ["full", "high_fidelity", "bench", "scans"]
    assert datasets.get_dataset_split_names("reasonknee", "bench", source="sample") == ["test"]
    builder = datasets.load_dataset_builder("reasonknee", "bench", source="sample")
    assert builder.info.features["category"].names == list(CATEGORIES)
    assert builder.info.license == "cc-by-4.0"


@pytest.mark.parametrize(
    ("call", "named"),
    [
        ({"name": "bunch"}, ["bunch", "full", "high_fidelity", "bench", "scans"]),
        ({"split": "training"}, ["training", "train", "validation", "test"]),
        ({"sauce": "sample"}, ["sauce", "source", "endpoint", "on_error"]),
        ({"on_error": "ignore"}, ["ignore", "raise", "skip", "null"]),
        ({"annotations": "some"}, ["some", "all", "balanced"]),
    ],
)
def test_unknown_names_are_answered_with_the_valid_ones(call, named):
    call = {"source": "sample", "split": "test", "streaming": True} | call
    name = call.pop("name", "full")
    for load in (
        reasonknee_hf.load_dataset,
        lambda name, **kw: datasets.load_dataset("reasonknee", name, **kw),
    ):
        with pytest.raises(OptionError) as caught:
            load(name, **call)
        assert all(word in str(caught.value) for word in named)


def test_data_files_are_refused_with_the_option_to_use():
    with pytest.raises(OptionError, match="source="):
        datasets.load_dataset("reasonknee", data_files="x.json")


def test_a_folder_of_the_same_name_changes_nothing(tmp_path, sample_dir):
    folder = tmp_path / "reasonknee"
    folder.mkdir()
    (folder / "train.json").write_text('[{"a": 1}]')
    (folder / "reasonknee.py").write_text("raise SystemExit('a local script was run')")
    printed = in_fresh_process(
        """
        import reasonknee_hf
        from datasets import load_dataset
        print(next(iter(load_dataset("reasonknee", split="test", streaming=True, source="sample")))["scan_id"])
        """,
        tmp_path,
    )
    assert printed.strip().startswith("9")


def test_pickling_keeps_rows_and_drops_the_token():
    ds = reasonknee_hf.load_dataset(
        "full", split="test", streaming=True, source="sample", token="hf_secretsecret"
    )
    data = pickle.dumps(ds)
    assert b"hf_secretsecret" not in data
    assert len(data) < 1_000_000
    assert [plain(row) for row in islice(pickle.loads(data), 3)] == [plain(row) for row in islice(ds, 3)]


def test_the_import_loads_nothing_but_datasets(tmp_path):
    printed = in_fresh_process(
        """
        import sys
        import datasets
        before = set(sys.modules)
        import reasonknee_hf
        print({name.split(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names))
        print("torch" in sys.modules, "matplotlib" in sys.modules)
        """,
        tmp_path,
    )
    assert printed.splitlines() == ["{'reasonknee_hf'}", "False False"]


def test_registration_can_be_switched_off(tmp_path):
    printed = in_fresh_process(
        """
        import datasets.load, reasonknee_hf
        print(hasattr(datasets.load.dataset_module_factory, "_answers_for_reasonknee"))
        """,
        tmp_path,
        REASONKNEE_REGISTER="0",
    )
    assert printed.strip() == "False"
