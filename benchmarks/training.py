"""Batches for training, side by side with what people write today: `python benchmarks/training.py [--small]`.

Both sides make the same batches with the same processor: `region` views of quintuples, collated by two
workers. The peer is a hand-written `torch.utils.data.Dataset` over nibabel with `shuffle=True`, the usual
`get_fdata()`, crop, clip to 0-400 and frames. Ours streams a release with its own shuffle. Volumes are made
up: 160x384x384 int16, gzip level 6, about 21 MB each, 62 rows a scan. The sides take turns; only the ratio
should be quoted.

Then one epoch is run again and again, and the memory of all processes is printed: flat once every worker has
met all volumes that its cache may hold.
Needs the extra `train`, and psutil.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import psutil
import torch
from torch.utils.data import DataLoader, Dataset
from volumes import write_volumes

from reasonknee_hf.dataset.loading import load_dataset
from reasonknee_hf.knee.moaks import QUESTIONS
from reasonknee_hf.knee.sample.prompts import prompt
from reasonknee_hf.train import Collator, plan_view, training_stream

WORKERS = 2
BATCH = 2
ROWS = 62


def processor() -> Any:
    """The real processor classes of Qwen2.5-VL, with a tokenizer trained here."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    from tiny_model import tiny_processor

    return tiny_processor()


def write_release(folder: Path, scans: int) -> Path:
    """A release of made-up volumes at the published paths, with boxes of usual size all over the knee."""
    volumes, _ = write_volumes(folder / "volumes", scans)
    random = np.random.default_rng(0)
    header = "patient_id,time,study_folder,series_folder,knee_side,path,image_filepath,label_filepath"
    table, records = [header], []
    for number, volume in enumerate(volumes):
        patient, study, series = str(9000001 + number), "20041222", str(10300001 + number)
        image = f"data/images/{patient}/00M/{study}_{series}_2.nii.gz"
        (folder / image).parent.mkdir(parents=True, exist_ok=True)
        if not (folder / image).exists():
            (folder / image).hardlink_to(volume)
        table.append(
            f"{patient},00M,{study},{series},2,../{image},../{image},../data/masks/knee_{number:03}.nii.gz"
        )
        for question in list(QUESTIONS.values())[:ROWS]:
            size = random.integers((8, 40, 40), (24, 90, 90))
            low = random.integers((20, 60, 60), (110, 240, 240))
            box = [int(end) for pair in zip(low, low + size, strict=True) for end in pair]
            grades = {attribute.name: 0 for attribute in question.attributes}
            diagnosis = {"bounding_box": box, "final_diagnosis": {question.release_key: grades}}
            answer = f"Looked at every slice. Final diagnosis: {json.dumps(diagnosis)}"
            records.append(
                {
                    "image": f"/{image}",
                    "prompt": prompt(question),
                    "answer": answer,
                    "final_diagnosis": diagnosis,
                }
            )
    for path, text in (
        ("data/split_files/train_split.csv", "\n".join(table) + "\n"),
        ("data/generate_data/train.json", json.dumps(records)),
    ):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


# --- what people write today --------------------------------------------------------------------------------


class HandWritten(Dataset):
    """A dataset as it is found in public training code: everything in `__getitem__`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records = json.loads((folder / "data/generate_data/train.json").read_text())

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> dict[str, Any]:
        record = self.records[index]
        volume = nibabel.load(self.folder / record["image"].lstrip("/")).get_fdata()
        if volume.shape[0] != 160:
            volume = volume.transpose(2, 0, 1)
        box = record["final_diagnosis"]["bounding_box"]
        view = plan_view("region", volume.shape, region=box)  # the same region on both sides
        spans = {axis: run.shown for axis, run in (view.across, view.down)}
        (a, b), (c, d) = spans[1], spans[2]
        frames = []
        for number in view.slices:
            frame = np.clip(volume[number, a : b + 1, c : d + 1], 0, 400)
            frame = (frame - frame.min()) / max(frame.max() - frame.min(), 1e-8) * 255
            frames.append(frame.astype(np.uint8).T if view.down[0] == 2 else frame.astype(np.uint8))
        return {"record": record, "view": view, "frames": np.stack([np.stack(frames)] * 3, axis=1)}


class HandWrittenCollator:
    """Chat template, processor, labels: prompt tokens masked by the length of the prompt."""

    def __init__(self, processor: Any) -> None:
        self.processor = processor

    def __call__(self, items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        texts, lengths = [], []
        for item in items:
            chat = [
                {
                    "role": "user",
                    "content": [{"type": "video"}, {"type": "text", "text": item["record"]["prompt"]}],
                },
                {"role": "assistant", "content": [{"type": "text", "text": item["record"]["answer"]}]},
            ]
            texts.append(self.processor.apply_chat_template(chat, tokenize=False))
            answer = item["record"]["answer"] + "<|im_end|>\n"
            lengths.append(len(self.processor.tokenizer(answer)["input_ids"]))
        batch = self.processor(
            text=texts,
            videos=[torch.from_numpy(item["frames"]) for item in items],
            do_sample_frames=False,
            cap_pixels_per_frame=False,
            padding=True,
            padding_side="left",
            return_tensors="pt",
        )
        labels = batch["input_ids"].clone()
        for row, length in zip(labels, lengths, strict=True):
            row[:-length] = -100
        return {**batch, "labels": labels}


# --- measuring ----------------------------------------------------------------------------------------------


def single_thread(_: int) -> None:
    torch.set_num_threads(1)


def ours(folder: Path, seed: int) -> DataLoader:
    rows = load_dataset(
        "full",
        split="train",
        streaming=True,
        source=str(folder),
        masks=False,
        shuffle=seed,
        num_shards=WORKERS,
    )
    collator = Collator(processor(), view="region", target="reasoning_grades")
    return DataLoader(
        training_stream(rows), BATCH, num_workers=WORKERS, collate_fn=collator, worker_init_fn=single_thread
    )


def theirs(folder: Path) -> DataLoader:
    return DataLoader(
        HandWritten(folder),
        BATCH,
        shuffle=True,
        num_workers=WORKERS,
        collate_fn=HandWrittenCollator(processor()),
        worker_init_fn=single_thread,
    )


def rate(loader: DataLoader, batches: int, skip: int = WORKERS) -> tuple[float, float]:
    """Batches per second after the first ones, in which workers start; and voxels per row, for comparison."""
    stream: Iterator[Any] = iter(loader)
    for _ in islice(stream, skip):
        pass
    start, voxels, found = time.perf_counter(), 0, 0
    for batch in islice(stream, batches):
        voxels += batch["pixel_values_videos"].numel() // 3
        found += 1
    return found / (time.perf_counter() - start), voxels / (found * BATCH)


def tree_memory() -> int:
    """Bytes that this process and its workers have to themselves."""
    process = psutil.Process()
    return sum(each.memory_full_info().uss for each in [process, *process.children(recursive=True)])


def epoch_memory(folder: Path, epochs: int) -> list[float]:
    """MiB at the end of each epoch, with persistent workers."""
    loader = ours(folder, 0)
    loader = DataLoader(
        loader.dataset, BATCH, num_workers=WORKERS, collate_fn=loader.collate_fn, persistent_workers=True
    )
    used = []
    for epoch in range(epochs):
        loader.dataset.set_epoch(epoch)
        for batch in loader:
            del batch
        used.append(tree_memory() / 2**20)
    return used


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="2 scans and 1 round, in about a minute")
    parser.add_argument("--folder", type=Path, help="where volumes are kept; a temporary folder by default")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="reasonknee-bench-"))
    scans, rounds = (2, 1) if options.small else (4, options.rounds)
    torch.set_num_threads(1)
    try:
        write_release(folder, scans)
        results: dict[str, list[float]] = {"hand-written Dataset over nibabel": [], "reasonknee_hf": []}
        sizes: dict[str, float] = {}
        for number in range(rounds):
            for name, loader, batches in (
                ("hand-written Dataset over nibabel", theirs(folder), 4 if options.small else 10),
                ("reasonknee_hf", ours(folder, number), scans * ROWS // BATCH - WORKERS),
            ):
                found, sizes[name] = rate(loader, batches)
                results[name].append(found)
        base = statistics.median(results["hand-written Dataset over nibabel"])
        print(f"{scans} scans, {ROWS} rows a scan, batches of {BATCH}, {WORKERS} workers, {rounds} rounds\n")
        print("| batches of `region` views | batches/s | pixels a row | x |\n|---|---|---|---|")
        for name, found in results.items():
            middle = statistics.median(found)
            print(
                f"| {name} | {middle:.2f} [{min(found):.2f}-{max(found):.2f}] | {sizes[name]:,.0f} |"
                f" {middle / base:.1f} |"
            )
        used = epoch_memory(folder, 3 if options.small else 7)
        print(f"\nMiB of all processes after each epoch: {', '.join(f'{mib:.0f}' for mib in used)}")
    finally:
        if options.folder is None:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
