"""Fine-tunes a vision-language model with LoRA on quintuples, with `transformers.Trainer`.

    python examples/sft_lora.py out                       # the sample, a tiny model, the CPU
    python examples/sft_lora.py out --model Qwen/Qwen2.5-VL-3B-Instruct --source /data/3DReasonKnee \
        --view jitter --target box_grades --steps 2000 --batch-size 4
    torchrun --nproc-per-node 4 examples/sft_lora.py out …                      # the same on four GPUs

Stop it and start it again with `--resume out/checkpoint-N`: it goes on with the next row.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from peft import LoraConfig, get_peft_model
from tiny_model import load
from transformers import Trainer

import reasonknee_hf as rk
from reasonknee_hf.train import Collator, ResumeCallback, get_recipe, training_arguments, training_stream


def main(argv: Sequence[str] | None = None) -> Trainer:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--source", default="sample")
    parser.add_argument("--view", default="jitter")
    parser.add_argument("--size", type=int, help="height and width of frames; by default a pixel is a voxel")
    parser.add_argument("--target", default="box_grades")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--resume")
    options = parser.parse_args(argv)

    processor, model = load(options.model)
    model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"]))
    rows = rk.load_dataset(
        "full", split="train", streaming=True, source=options.source, masks=False, shuffle=0
    )
    stream = training_stream(rows)
    trainer = Trainer(
        model,
        training_arguments(
            options.out,
            max_steps=options.steps,
            per_device_train_batch_size=options.batch_size,
            learning_rate=options.learning_rate,
            save_steps=max(options.steps // 2, 1),
            logging_steps=max(options.steps // 10, 1),
            bf16=torch.cuda.is_available(),
            report_to="none",
        ),
        train_dataset=stream,
        data_collator=Collator(
            processor, view=get_recipe(options.view, size=options.size), target=options.target
        ),
        callbacks=[ResumeCallback(stream)],
    )
    trainer.train(resume_from_checkpoint=options.resume)
    trainer.save_model()
    return trainer


if __name__ == "__main__":
    main()
