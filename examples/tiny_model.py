"""A Qwen2.5-VL of 0.2 million parameters, made from its config, and its processor with a tokenizer"
" trained here."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForImageTextToText,
    AutoProcessor,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
)

from reasonknee_hf.knee.moaks import QUESTIONS
from reasonknee_hf.knee.sample.prompts import prompt

SPECIAL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@lru_cache
def _tokenizer() -> Tokenizer:
    text = Tokenizer(models.BPE())
    text.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    text.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    corpus = [prompt(question) for question in QUESTIONS.values()]
    text.train_from_iterator(
        corpus,
        trainers.BpeTrainer(
            vocab_size=1200, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
        ),
    )
    return text


def tiny_processor() -> Qwen2_5_VLProcessor:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=_tokenizer(), eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    small = {"shortest_edge": 28 * 28, "longest_edge": 112 * 112}
    return Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(size=small),
        tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(size=small),
        chat_template=TEMPLATE,
    )


def load(name: str) -> tuple[Any, Any]:
    """Processor and model: a tiny one for `"tiny"`, else those of a folder or a Hub repository."""
    if name == "tiny":
        processor = tiny_processor()
        return processor, tiny_model(processor)
    return AutoProcessor.from_pretrained(name), AutoModelForImageTextToText.from_pretrained(name)


def tiny_model(processor: Qwen2_5_VLProcessor, seed: int = 0) -> Qwen2_5_VLForConditionalGeneration:
    tokenizer = processor.tokenizer
    ids = {name: tokenizer.convert_tokens_to_ids(name) for name in SPECIAL}
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": 48,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 4096,
            "rope_parameters": {"rope_type": "default", "mrope_section": [2, 2, 2], "rope_theta": 10000.0},
            "bos_token_id": None,
            "eos_token_id": ids["<|im_end|>"],
            "pad_token_id": ids["<|endoftext|>"],
        },
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": 48,
            "fullatt_block_indexes": [1],
            "window_size": 56,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
    )
    torch.manual_seed(seed)
    return Qwen2_5_VLForConditionalGeneration(config)
