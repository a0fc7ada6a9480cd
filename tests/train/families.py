"""Tiny processors of the families that people fine-tune, made from their classes alone: no weights, no network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers
from tiny_model import _tokenizer
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

BOS, EOS, PAD = "<bos>", "<eos>", "<pad>"


def tokenizer(bos: bool = True, **special: str) -> PreTrainedTokenizerFast:
    """A tokenizer that writes its first token by itself, as those of Gemma and Llama do, unless `bos` is off."""
    from tokenizers import Tokenizer

    own = Tokenizer.from_str(_tokenizer().to_str())
    own.add_special_tokens([BOS, EOS, PAD, *special.values()])
    if bos:
        own.post_processor = processors.TemplateProcessing(
            single=f"{BOS} $A", special_tokens=[(BOS, own.token_to_id(BOS))]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=own,
        bos_token=BOS if bos else None,
        eos_token=EOS,
        pad_token=PAD,
        extra_special_tokens=special,
    )


def template(image: str, video: str | None = None, bos: bool = True) -> str:
    """A chat template that marks pictures as this family's does."""
    first = "{{ bos_token }}" if bos else ""
    marks = f"{{% if part['type'] == 'image' %}}{image}"
    if video is not None:
        marks += f"{{% elif part['type'] == 'video' %}}{video}"
    return (
        f"{first}{{% for message in messages %}}[{{{{ message['role'] }}}}]{{% for part in message['content'] %}}"
        f"{marks}{{% else %}}{{{{ part['text'] }}}}{{% endif %}}{{% endfor %}}{EOS}{{% endfor %}}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )


SMALL = {"shortest_edge": 28 * 28, "longest_edge": 112 * 112}


def qwen2_5_vl() -> Any:
    from tiny_model import tiny_processor

    return tiny_processor()


def qwen3_vl() -> Any:
    special = {
        "image_token": "<|image_pad|>",
        "video_token": "<|video_pad|>",
        "vision_start_token": "<|vision_start|>",
        "vision_end_token": "<|vision_end|>",
    }
    small = {"shortest_edge": 32 * 32, "longest_edge": 128 * 128}
    return transformers.Qwen3VLProcessor(
        image_processor=transformers.Qwen2VLImageProcessor(size=small, patch_size=16),
        tokenizer=tokenizer(False, **special),
        video_processor=transformers.Qwen3VLVideoProcessor(size={**small, "longest_edge": 128 * 128 * 64}),
        chat_template=template(
            "<|vision_start|><|image_pad|><|vision_end|>",
            "<|vision_start|><|video_pad|><|vision_end|>",
            False,
        ),
    )


def gemma3() -> Any:
    special = {
        "boi_token": "<start_of_image>",
        "eoi_token": "<end_of_image>",
        "image_token": "<image_soft_token>",
    }
    return transformers.Gemma3Processor(
        image_processor=transformers.Gemma3ImageProcessor(size={"height": 56, "width": 56}),
        tokenizer=tokenizer(**special),
        chat_template=template("<start_of_image>"),
        image_seq_length=4,
    )


# Of Idefics3, and of SmolVLM, which was made of it.
TILED = {
    "image_token": "<image>",
    "fake_image_token": "<fake_token_around_image>",
    "global_image_token": "<global-img>",
    "end_of_utterance_token": "<end_of_utterance>",
}
TILES = {"size": {"longest_edge": 112}, "max_image_size": {"longest_edge": 56}}


def idefics3() -> Any:
    return transformers.Idefics3Processor(
        image_processor=transformers.Idefics3ImageProcessor(**TILES),
        tokenizer=tokenizer(**TILED),
        chat_template=template("<image>"),
        image_seq_len=4,
    )


def smolvlm() -> Any:
    return transformers.SmolVLMProcessor(
        image_processor=transformers.SmolVLMImageProcessor(**TILES),
        tokenizer=tokenizer(**TILED),
        video_processor=transformers.SmolVLMVideoProcessor(**TILES),
        chat_template=template("<image>", "<video>"),
        image_seq_len=4,
    )


def llava_onevision() -> Any:
    return transformers.LlavaOnevisionProcessor(
        image_processor=transformers.LlavaOnevisionImageProcessor(
            size={"height": 28, "width": 28}, image_grid_pinpoints=[[28, 28], [28, 56]]
        ),
        tokenizer=tokenizer(False, image_token="<image>", video_token="<video>"),
        video_processor=transformers.LlavaOnevisionVideoProcessor(size={"height": 28, "width": 28}),
        num_image_tokens=4,
        vision_feature_select_strategy="full",
        chat_template=template("<image>", "<video>", False),
    )


def llava_next_video() -> Any:
    return transformers.LlavaNextVideoProcessor(
        video_processor=transformers.LlavaNextVideoVideoProcessor(
            size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}
        ),
        image_processor=transformers.LlavaNextImageProcessor(
            size={"shortest_edge": 28},
            crop_size={"height": 28, "width": 28},
            image_grid_pinpoints=[[28, 28], [28, 56]],
        ),
        tokenizer=tokenizer(image_token="<image>", video_token="<video>"),
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=template("<image>", "<video>"),
    )


def internvl() -> Any:
    special = {
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>",
        "video_token": "<video>",
    }
    return transformers.InternVLProcessor(
        image_processor=transformers.GotOcr2ImageProcessor(
            size={"height": 28, "width": 28}, crop_to_patches=False
        ),
        tokenizer=tokenizer(False, **special),
        video_processor=transformers.InternVLVideoProcessor(size={"height": 28, "width": 28}),
        image_seq_length=4,
        chat_template=template("<IMG_CONTEXT>\n", "<video>\n", False),
    )


FAMILIES: dict[str, Callable[[], Any]] = {
    f.__name__: f
    for f in (
        qwen2_5_vl, qwen3_vl, gemma3, idefics3, smolvlm, llava_onevision, llava_next_video, internvl
    )
}  # fmt: skip
VIDEO = ("qwen2_5_vl", "qwen3_vl", "smolvlm", "llava_onevision", "llava_next_video", "internvl")
