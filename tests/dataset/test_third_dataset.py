"""A third dataset, described as a user would: JSON lines about spleens, volumes in another folder, nothing of knees."""

from __future__ import annotations

import json
import pickle
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import nibabel
import numpy as np
import pytest
from datasets import Sequence, Value, load_dataset, load_from_disk
from publishing import REPO, files_of, push_bench
from publishing import configs_of as card_configs

import reasonknee_hf
from reasonknee_hf.bench.reading import Reading
from reasonknee_hf.dataset import contract
from reasonknee_hf.dataset.builder import RowsBuilder, RowsConfig, configs_of
from reasonknee_hf.dataset.contract import MANIFEST, Config, Description, make_known
from reasonknee_hf.dataset.row_features import RowFeatures
from reasonknee_hf.errors import GridMismatchError, OptionError, VolumeMissingError
from reasonknee_hf.hub.fs.filesystem import ReasonKneeFileSystem
from reasonknee_hf.prompting.chats import conversation
from reasonknee_hf.prompting.lessons import Lessons
from reasonknee_hf.publish.card_words import CardWords, words_of
from reasonknee_hf.publish.cardtext import require_attribution
from reasonknee_hf.publish.convert import convert
from reasonknee_hf.publish.job import make_job
from reasonknee_hf.publish.options import ConvertOptions
from reasonknee_hf.publish.push import push
from reasonknee_hf.publish.schema import scan_features
from reasonknee_hf.publish.viewer import check_card
from reasonknee_hf.volumes.feature import VolumeFeature

QUESTIONS = {1: SimpleNamespace(id=1, category="size", structure="spleen", attributes=())}
TEXT, BOX = Value("string"), [2, 5, 3, 8, 1, 4]


class SpleenRelease:
    """`questions/{split}.jsonl`; volumes lie under `images=` by the name that a record gives."""

    def __init__(self, source: str, images: str) -> None:
        self.labels, self.mask_parts = {}, ()
        self.dataset, self.images = SPLEENS, images
        self.tree = ReasonKneeFileSystem(source=source, skip_instance_cache=True).tree
        self.sha, self.identity = self.tree.sha, self.tree.identity
        self.splits = tuple(path[10:-6] for path in self.tree.entries())

    def annotation_path(self, split: str, kind: str = "all") -> str:
        return f"questions/{split}.jsonl"

    def annotated_splits(self, kind: str = "all") -> tuple[str, ...]:
        return self.splits

    def scans(self, split: str) -> list[Any]:
        records = map(json.loads, self.tree.read(self.annotation_path(split)).splitlines())
        return [scan_of(name) for name in dict.fromkeys(record["image"] for record in records)]

    def scan_count(self, split: str) -> int:
        return len(self.scans(split))

    def all_scans(self) -> Any:
        return (scan for split in self.splits for scan in self.scans(split))

    def scan_of(self, image: Any, split: str) -> Any:
        return next((scan for scan in self.scans(split) if scan.file == image), None)

    def image_url(self, scan: Any) -> str:
        return f"{self.images}/{scan.file}"

    def find_image(self, scan: Any) -> str | None:
        return self.image_url(scan) if Path(self.image_url(scan)).is_file() else None

    def mask_url(self, scan: Any) -> None:
        return None

    find_mask = mask_url

    def splits_without(self, columns: Any) -> frozenset[str]:
        return frozenset()

    def copy_path(self, scan: Any, column: str) -> str:
        return scan.file


def scan_of(name: Any, split: str = "") -> Any:
    return SimpleNamespace(scan_id=str(name).removesuffix(".nii.gz"), patient_id=str(name)[:2], file=name)


def features(config: str, release: Any, masks: bool) -> RowFeatures:
    scan = {"scan_id": TEXT, "image": VolumeFeature(axes="RAS")}
    asked = {"prompt": TEXT, "bbox": Sequence(Value("int32"), length=6), "answer": TEXT}
    return RowFeatures(scan if config == "scans" else {"id": TEXT, **scan, **asked})


def scan_row(scan: Any, image: str | None, mask: str | None) -> dict[str, Any]:
    return {"scan_id": scan.scan_id, "image": image and {"bytes": None, "path": image}}


def row(record: Any, scan: Any, image: str | None, mask: str | None) -> Any:
    asked = {name: record.get(name) for name in ("prompt", "bbox", "answer")}
    return {"id": f"{scan.scan_id}-{record['number']}"} | scan_row(scan, image, mask) | asked, []


LESSONS = Lessons(
    settings=("plain",), targets=("size",), box_targets=(),
    read=lambda text, question: Reading(grades={"size": int(text)}, box=tuple(BOX)),
    user_text=lambda row, *args, **options: row["prompt"], target_text=lambda row, *args, **options: row["answer"],
    region_of=lambda row, *args: row["bbox"], nearness=lambda question, name, said, grade: float(said == grade),
)  # fmt: skip
WORDS = CardWords(
    name="Spleens", title="Of spleens", creators=("A. One", "B. Two"), arxiv="2501.00001", published="2025-01-01",
    source="someone/spleens", licence="cc-by-4.0", licence_url="https://creativecommons.org/licenses/by/4.0/", tags=(),
    citation="one2025spleens", terms="- Volumes: free.", limits="### Limits\n\nNone.",
    about="Spleens.", scans="A spleen.", rows="A question.", changes=(), meanings={"scan_id": "the scan"},
)  # fmt: skip
HERE = "test_third_dataset"
SPLEENS = Description(
    name="spleens", title="Spleens", text="Questions about spleens.", source="someone/spleens", revision="main",
    licence="cc-by-4.0", configs={"asked": Config("All."), "scans": Config("Volumes.", asks=False)},
    categories=("size",), questions=QUESTIONS, features=features, row=row, scan_row=scan_row, unlisted=scan_of,
    open=lambda source, images, token=None: SpleenRelease(source, images), open_options=("source", "images"),
    question_of=lambda prompt: 1 if "large" in prompt else None, builder=f"{HERE}:Spleens",
    lessons=f"{HERE}:LESSONS", card=f"{HERE}:WORDS",
)  # fmt: skip
make_known("spleens", f"{HERE}:SPLEENS")


class Spleens(RowsBuilder):
    dataset = SPLEENS
    BUILDER_CONFIGS = configs_of(SPLEENS, RowsConfig)
    DEFAULT_CONFIG_NAME = "asked"


@pytest.fixture(scope="module")
def spleens(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A release of five scans with three questions each, and its volumes elsewhere, each stored in another order."""
    root, images = tmp_path_factory.mktemp("spleens"), tmp_path_factory.mktemp("scans")
    (root / "questions").mkdir()
    lines = []
    for scan, codes in enumerate(("RAS", "LPS", "PIR", "SAL", "IPL")):
        voxels = np.random.default_rng(scan).integers(0, 99, (8, 10, 6), np.int16)
        placed = nibabel.Nifti1Image(voxels, np.diag([3.0, 1, 1, 1]))
        to = nibabel.orientations.axcodes2ornt(codes)
        turned = placed.as_reoriented(
            nibabel.orientations.ornt_transform(nibabel.io_orientation(placed.affine), to)
        )
        nibabel.save(turned, images / f"s{scan}.nii.gz")
        known = {"image": f"s{scan}.nii.gz", "bbox": BOX, "answer": str(scan)}
        lines += [
            json.dumps(known | {"number": n, "prompt": f"How large is spleen {n}?"}) + "\n" for n in range(3)
        ]
    (root / "questions/train.jsonl").write_text("".join(lines))
    return {"source": str(root), "images": str(images)}


def test_streams_shuffles_and_resumes(spleens):
    rows = [*load_dataset("spleens", split="train", streaming=True, **spleens)]
    assert [row["id"] for row in rows] == [f"s{scan}-{n}" for scan in range(5) for n in range(3)]
    for scan in range(5):
        voxels = np.random.default_rng(scan).integers(0, 99, (8, 10, 6), np.int16)
        assert (rows[3 * scan]["image"].crop(BOX) == voxels[2:6, 3:9, 1:5]).all()
    stream = load_dataset("spleens", split="train", streaming=True, shuffle=7, **spleens)
    shuffled = [row["id"] for row in stream]
    assert shuffled != sorted(shuffled) == sorted(row["id"] for row in rows)
    half = iter(stream)
    begun = [next(half)["id"] for _ in range(7)]
    stream.load_state_dict(stream.state_dict())
    assert begun + [row["id"] for row in stream] == shuffled


def test_prepares_with_and_without_masks_and_chooses(spleens, tmp_path):
    for masks in (True, False):
        ds = load_dataset("spleens", split="train", masks=masks, cache_dir=str(tmp_path), **spleens)
        assert len(ds) == 15
        assert ds[4]["image"].crop(BOX).shape == (4, 6, 4)
    some = load_dataset("spleens", "scans", split="train", streaming=True, scans=["s3"], **spleens)
    assert [row["scan_id"] for row in some] == ["s3"]
    asked = load_dataset("spleens", split="train", streaming=True, category="size", fraction=1, **spleens)
    assert len([*asked]) == 15


def test_balance_without_a_rule_is_refused(spleens):
    with pytest.raises(OptionError, match="no rule"):
        load_dataset("spleens", split="train", streaming=True, shuffle=1, balance="grades", **spleens)


STYLE = {"dataset": "spleens", "setting": "plain", "target": "size", "view": "jitter"}


def test_is_asked_in_its_own_words(spleens):
    row = next(iter(load_dataset("spleens", split="train", streaming=True, start=4, **spleens)))
    (_, asked), (said,) = (message["content"] for message in conversation(row, **STYLE))
    assert (asked["text"], said["text"]) == ("How large is spleen 1?", "1")


def test_what_was_saved_says_on_which_axes_its_boxes_live(spleens, tmp_path):
    load_dataset("spleens", split="train", cache_dir=str(tmp_path), **spleens).save_to_disk(tmp_path / "kept")
    kept = load_from_disk(tmp_path / "kept")
    with pytest.raises((OptionError, GridMismatchError), match="VolumeFeature\\(axes="):
        conversation(kept[6], **STYLE)
    if not hasattr(datasets, "Nifti"):
        with pytest.raises(GridMismatchError, match="read back from disk"):
            kept[6]["image"].crop(BOX)
    row = kept.cast_column("image", VolumeFeature(axes="RAS"))[6]
    assert conversation(row, **STYLE)
    voxels = np.random.default_rng(2).integers(0, 99, (8, 10, 6), np.int16)
    assert (row["image"].crop(BOX) == voxels[2:6, 3:9, 1:5]).all()


def test_rewards_read_answers_as_it_does(spleens):
    pytest.importorskip("PIL")
    from reasonknee_hf.train.rewards import grade_reward, iou_reward, ordinal_reward, prompt_stream

    rows = load_dataset("spleens", split="train", streaming=True, **spleens)
    prompt = next(iter(prompt_stream(rows, **STYLE)))
    assert (prompt["id"], prompt["dataset"]) == ("s0-0", "spleens")
    asked = {"question_id": [1, 1], "grades": [[{"attribute": "size", "grade": 4}]] * 2, "bbox": [BOX] * 2}
    for reward, earned in ((grade_reward, [1, 0]), (ordinal_reward, [1, 0]), (iou_reward, [1, 1])):
        assert reward(["4", "9"], **asked, dataset=[prompt["dataset"]] * 2) == earned


@pytest.mark.train
def test_feeds_the_collator(spleens, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    from tiny_model import tiny_processor
    from torch.utils.data import DataLoader

    from reasonknee_hf.train.collator import Collator

    stream = load_dataset("spleens", split="train", streaming=True, shuffle=3, **spleens)
    batches = DataLoader(stream, 2, num_workers=2, collate_fn=Collator(tiny_processor(), **STYLE))
    told = [one for batch in batches for one in batch.references]
    assert sorted(one.id for one in told) == [f"s{scan}-{n}" for scan in range(5) for n in range(3)]
    assert {(one.answer, one.bbox) for one in told} == {(str(scan), tuple(BOX)) for scan in range(5)}


@pytest.mark.parametrize("config", ["asked", "scans", "records"])
def test_converts_in_its_own_words(spleens, tmp_path, config):
    pytest.importorskip("PIL")
    told = convert(
        tmp_path, f"spleens/{config}", previews=config == "asked", crops=config == "asked", **spleens
    )
    first = told.configs[0]
    assert first.rows == (5 if config == "scans" else 15)
    rows = load_dataset(str(tmp_path), config, split="train")
    assert rows[4].get("answer") == {"scans": None, "asked": "1", "records": "1"}[config]
    assert rows.features["scan_id"] == TEXT
    card = (tmp_path / "README.md").read_text()
    assert re.findall("knee(?!_hf| verify)|Osteo|MOAKS", card, re.I) == []


def test_what_cannot_be_written_is_said_in_its_own_words(spleens, tmp_path):
    with pytest.raises(OptionError, match=r"Unknown category 'BML'. Valid: size\."):
        convert(tmp_path, "spleens/asked", categories="BML", **spleens)
    with pytest.raises(VolumeMissingError, match=r"s0: the volume \S+s0\.nii\.gz is not in"):
        convert(tmp_path, "spleens/asked", source=spleens["source"], images=str(tmp_path))
    with pytest.raises(OptionError, match="Spleens has no config with one row a scan"):
        scan_features(replace(SPLEENS, configs={"asked": Config("All.")}))


@pytest.mark.parametrize("option", ["revision", "endpoint"])
def test_what_it_is_not_opened_by_is_refused(spleens, tmp_path, option):
    for load in (load_dataset, partial(convert, tmp_path)):
        with pytest.raises(OptionError, match=f"not opened by {option}="):
            load("spleens" if load is load_dataset else "spleens/asked", **{option: "x"}, **spleens)


def test_processes_that_were_not_told_of_it_convert_it(spleens, tmp_path, monkeypatch):
    job, _ = make_job(ConvertOptions(config="spleens/asked", **spleens), tmp_path, None)
    sent = pickle.dumps(job)
    monkeypatch.delitem(contract._places, "spleens")
    assert pickle.loads(sent).dataset is SPLEENS


def test_its_card_is_checked_by_its_own_words(spleens, tmp_path):
    convert(tmp_path, "spleens/asked", volumes="none", **spleens)
    assert [one for one in check_card(tmp_path) if one.blocking] == []
    card = tmp_path / "README.md"
    licence = re.search(r"https://\S*licenses\S*?(?=\))", card.read_text())
    assert licence
    card.write_text(card.read_text().replace(licence[0], "gone"))
    assert [one.text for one in check_card(tmp_path) if licence[0] in one.text]


def test_it_is_pushed_beside_the_first_one(spleens, origin, sample_dir):
    """Two datasets in one repository: each card section, description and manifest speaks of its own."""
    push_bench(origin, sample_dir, volumes="none", limit=2)
    given = {"hub_endpoint": origin.url, "token": "hf_x", "verify": False, "public_volumes": True}
    for _ in range(2):
        done = push(REPO, "spleens/asked", **given, **spleens)
    assert done.configs[0].rows
    files = files_of(origin)
    assert {"bench", "asked", "asked_volumes"} <= {*card_configs(files["README.md"])}
    told = {json.loads(text)["dataset"] for name, text in files.items() if MANIFEST.fullmatch(name)}
    assert told == {"reasonknee", "spleens"}
    card = files["README.md"].decode()
    push_bench(origin, sample_dir, volumes="none", limit=2)
    assert files_of(origin)["README.md"].decode() == card
    rows = reasonknee_hf.load_dataset("bench", split="test", streaming=True, source=REPO, endpoint=origin.url)
    assert len({row["id"] for row in rows}) == 2
    for name in told:  # the licence of each asks for it
        require_attribution(card, words_of(name))
    assert len(re.findall("^## Attribution and licence", card, re.M)) == 2
