"""Trains a model by reward (GRPO, with TRL): half for the right place, half for the right grades.

    python examples/grpo_rewards.py out                       # the sample, a tiny model, the CPU
    python examples/grpo_rewards.py out --model out-of-sft_lora --source /data/3DReasonKnee --steps 500

The rewards read answers as the benchmark does, so what is trained for is what will be scored.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from tiny_model import load
from trl import GRPOConfig, GRPOTrainer

import reasonknee_hf as rk
from reasonknee_hf.train import get_recipe, grade_reward, iou_reward, prompt_stream, training_arguments


def main(argv: Sequence[str] | None = None) -> GRPOTrainer:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--source", default="sample")
    parser.add_argument("--view", default="planes")
    parser.add_argument("--size", type=int, default=56)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--generations", type=int, default=2)
    parser.add_argument("--answer-tokens", type=int, default=24)
    options = parser.parse_args(argv)

    processor, model = load(options.model)
    rows = rk.load_dataset(
        "full", split="train", streaming=True, source=options.source, masks=False, shuffle=0
    )
    prompts = prompt_stream(
        rows, view=get_recipe(options.view, size=options.size), setting="instruction", target="think_box"
    )
    trainer = GRPOTrainer(
        model=model,
        args=training_arguments(
            options.out,
            GRPOConfig,
            max_steps=options.steps,
            per_device_train_batch_size=options.generations,
            num_generations=options.generations,
            max_completion_length=options.answer_tokens,
            reward_weights=[0.5, 0.5],
            save_strategy="no",
            logging_steps=1,
            bf16=torch.cuda.is_available(),
            report_to="none",
        ),
        train_dataset=prompts,
        processing_class=processor,
        reward_funcs=[grade_reward, iou_reward],
    )
    trainer.train()
    trainer.save_model()
    return trainer


if __name__ == "__main__":
    main()
