"""Published versions of the sample, and helpers, that several tests of publishing share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import datasets
import pytest
import yaml

REPO = "me/knee"
READER = Path(__file__).with_name("plain_reader.py")
HAS_NIFTI = hasattr(datasets, "Nifti")
HAS_PILLOW = find_spec("PIL") is not None


@pytest.fixture(scope="session")
def bench_folder(sample_dir, tmp_path_factory) -> Path:
    """The config `bench` of the sample, with previews; do not change it."""
    from reasonknee_hf.publish.convert import convert

    out = tmp_path_factory.mktemp("bench") / "knee"
    convert(out, "bench", source=str(sample_dir), on_error="null", previews=HAS_PILLOW)
    return out


@pytest.fixture(scope="session")
def full_folder(sample_dir, tmp_path_factory) -> Path:
    """The config `full` of the sample; do not change it."""
    from reasonknee_hf.publish.convert import convert

    out = tmp_path_factory.mktemp("full") / "knee"
    convert(out, "full", source=str(sample_dir), on_error="null")
    return out


def read_plainly(place: str, split: str, configs: list[str], home: Path, **env: str) -> dict:
    """What an interpreter without this package reads: config → how → rows."""
    done = subprocess.run(
        [sys.executable, str(READER), place, split, *configs],
        env={**os.environ, "HF_HOME": str(home), "PYTHONPATH": "", **env},
        capture_output=True, text=True, cwd=home, timeout=180,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def rows_of(release: Path, config: str, split: str) -> list[dict]:
    """Rows of the release without their volumes, as our own stream gives them."""
    from reasonknee_hf.dataset.loading import load_dataset

    rows = load_dataset(
        config, split=split, streaming=True, source=str(release), on_error="null", masks=False
    )
    return [{k: v for k, v in row.items() if k not in ("image", "mask")} for row in rows]


def with_names(rows: list[dict], config: str) -> list[dict]:
    """The same with what is published beside label numbers: their names."""
    from reasonknee_hf.dataset.contract import described

    kinds = {
        n: k
        for n, k in described().features(config, None, False).items()
        if isinstance(k, datasets.ClassLabel)
    }
    assert kinds
    names = [
        {f"{n}_name": None if row[n] is None else k.int2str(row[n]) for n, k in kinds.items()} for row in rows
    ]
    return [row | more for row, more in zip(rows, names, strict=True)]


def tables(folder: Path, config: str, split: str | None = None) -> list[Path]:
    """Files of a config, or of one split of it, in order."""
    return sorted((folder / config).glob(f"{split or ''}*.parquet"))


def files_of(origin) -> dict[str, bytes]:
    """Content of every file of `REPO` of an origin."""
    return {path: bytes(blob.content) for path, blob in origin.store.repos[REPO].at("main").files.items()}


def configs_of(card: bytes) -> dict[str, dict]:
    """Name → entry of the configs of a card."""
    from reasonknee_hf.publish.rules import front_matter

    return {one["config_name"]: one for one in yaml.safe_load(front_matter(card.decode())[0])["configs"]}


def push_bench(origin, release, **options):
    """Pushes `bench` of a release to `REPO` of an origin."""
    from reasonknee_hf.publish.push import push

    given = {
        "source": str(release),
        "on_error": "null",
        "hub_endpoint": origin.url,
        "token": "hf_x",
        "verify": False,
        "public_volumes": True,
    }
    return push(REPO, options.pop("config", "bench"), **(given | options))
