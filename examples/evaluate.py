"""Lets a model answer the benchmark, writes a prediction file and scores it.

    python examples/evaluate.py answers.jsonl                       # the sample, a tiny model, the CPU
    python examples/evaluate.py answers.jsonl --model Qwen/Qwen2.5-VL-3B-Instruct --source /data/3DReasonKnee

With several processes (`torchrun`), each answers scans of its own and writes its own file; score them with
`reasonknee bench score answers-*.jsonl`. No row is answered twice.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import torch
from datasets.distributed import split_dataset_by_node
from tiny_model import load
from torch.utils.data import DataLoader

import reasonknee_hf as rk
from reasonknee_hf.bench import score
from reasonknee_hf.train import Collator, get_recipe, loader_sizes
from reasonknee_hf.train.predictions import prediction_line


def main(argv: Sequence[str] | None = None) -> Path:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--source", default="sample")
    parser.add_argument("--setting", default="zero_shot")
    parser.add_argument("--view", default="upstream")
    parser.add_argument("--size", type=int, default=56)
    parser.add_argument("--coordinates", default="voxels", help="voxels, or view for what the model sees")
    parser.add_argument(
        "--scale", default="pixels", help="with --coordinates view: pixels, thousandths, fractions"
    )
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--limit", type=int, help="number of rows")
    parser.add_argument("--answer-tokens", type=int, default=24)
    options = parser.parse_args(argv)

    processor, model = load(options.model)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model.eval().to(device)
    rows = rk.load_dataset("bench", split="test", streaming=True, source=options.source, masks=False)
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if options.limit is not None:
        rows = rows.take(options.limit)
    if ranks > 1:
        rows = split_dataset_by_node(rows, rank, ranks)
        options.out = options.out.with_stem(f"{options.out.stem}-{rank}")
    collator = Collator(
        processor,
        setting=options.setting,
        view=get_recipe(options.view, size=options.size),
        target=None,
        coordinates=options.coordinates,
    )
    workers = loader_sizes(shards=rows.num_shards).for_loader() if device == "cuda" else {"num_workers": 0}
    loader = DataLoader(rows, batch_size=options.batch_size, collate_fn=collator, **workers)
    scale = options.scale if options.coordinates == "view" else None
    with options.out.open("w", encoding="utf-8") as file, torch.inference_mode():
        for batch in loader:
            batch = batch.to(device)
            said = model.generate(**batch, max_new_tokens=options.answer_tokens, do_sample=False)
            texts = processor.tokenizer.batch_decode(
                said[:, batch["input_ids"].shape[1] :], skip_special_tokens=True
            )
            for reference, text in zip(batch.references, texts, strict=True):
                file.write(json.dumps(prediction_line(reference, text, scale=scale)) + "\n")
            file.flush()
    if ranks == 1:
        references = rk.load_dataset(
            "bench", split="test", streaming=True, source=options.source, masks=False
        )
        if options.limit is not None:
            references = list(islice(references, options.limit))
        print(score(options.out, references).text())
    return options.out


if __name__ == "__main__":
    main()
