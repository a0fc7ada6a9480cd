"""Chats and pictures as files, for training programs that read no streams: LLaMA-Factory, ms-swift, axolotl."""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from fractions import Fraction
from hashlib import blake2b
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from datasets.utils import tqdm

from reasonknee_hf.errors import ExtraMissingError, OptionError, RecordError
from reasonknee_hf.hub.disk import write_file
from reasonknee_hf.prompting.chats import Style, make_style, messages, row_view, row_volume
from reasonknee_hf.prompting.lessons import check_choice, name_of
from reasonknee_hf.prompting.view import View
from reasonknee_hf.version import __version__

logger = logging.getLogger(__name__)

Format = Literal["sharegpt", "messages"]
FrameFiles = Literal["png", "mp4"]

_SPEAKERS = {"system": "system", "user": "human", "assistant": "gpt"}
_PLACEHOLDERS = ("<image>", "<video>", "<audio>")
# What LLaMA-Factory is told of each format, in the words of its dataset_info.json.
_TAGS = {"role_tag": "role", "content_tag": "content"} | {f"{role}_tag": role for role in _SPEAKERS}
_COLUMNS = {"sharegpt": "conversations", "messages": "messages"}


def export(
    rows: Iterable[Mapping[str, Any]],
    out: str | os.PathLike[str],
    *,
    format: Format = "messages",
    frames: FrameFiles = "png",
    limit: int | None = None,
    **options: Any,
) -> int:
    """Writes a chat for every row, and what it shows.

        export(rk.load_dataset("full", split="train", streaming=True), "out", view="o1", target="grades")

    `OUT/data.jsonl` has a line for each row, in their order: `{"id", "conversations" | "messages", "images" |
    "videos"}` with `<image>` or `<video>` in the text for each file, whose paths are relative to OUT. Pictures lie in
    one folder a scan, and rows that see the same share them. `dataset_info.json` names the columns for LLaMA-Factory.
    A run that was stopped goes on behind the last whole line; lines that are there are not made again.

    Args:
        rows: Rows of `load_dataset`, loaded or as a stream.
        out: The folder.
        format: `sharegpt` (`conversations` of `from`, `value`) or `messages` (`role`, `content`).
        frames: `png`, one grey picture each; or `mp4`, for views that are a video: one H.264 file, which loses a
            little, and needs the extra `video`.
        limit: At most so many rows.
        options: Those of `conversation`: `setting`, `view`, `target`, …

    Returns:
        How many lines `data.jsonl` has.

    Raises:
        OptionError: An option has no such value, no target is given, or OUT was begun with other options.
        RecordError: A row lacks what its chat says, or its text holds a placeholder of files.
        VolumeMissingError: A row's volume is not there.
        ExtraMissingError: Pillow (`viz`) or PyAV (`video`) is not installed.

    Examples:
        >>> from tempfile import mkdtemp
        >>> from reasonknee_hf.train import export
        >>> export([row], mkdtemp(), view="o1", target="grades")
        1
    """
    check_choice("format", format, ("sharegpt", "messages"))
    check_choice("frames", frames, ("png", "mp4"))
    style, root = make_style(options), Path(out)
    if style.target is None:
        raise OptionError("target=None leaves nothing to train on: name what the model is to say.")
    if frames == "mp4" and style.recipe.kind != "video":
        raise OptionError(f"the view {style.recipe.name!r} is no video: take frames='png'.")
    _begin(root, style, format, frames)
    lines = root / "data.jsonl"
    done = _whole_lines(lines)
    total = sum(done.values())
    with lines.open("a", encoding="utf-8") as file:
        for row in tqdm(islice(rows, limit), desc=str(root), unit="row", leave=False):
            if done[row["id"]] > 0:
                done[row["id"]] -= 1
                continue
            file.write(json.dumps(_line(row, style, root, format, frames), ensure_ascii=False) + "\n")
            file.flush()
            total += 1
    return total


def _begin(root: Path, style: Style, format: str, frames: str) -> None:
    """Makes the folder, or checks that it was begun with the same options."""
    told = {"format": format, "frames": frames, **asdict(style), "view": asdict(style.recipe)}
    ours = json.loads(json.dumps({"version": __version__, **told}, default=str))
    path = root / "export.json"
    if path.exists():
        theirs = json.loads(path.read_text(encoding="utf-8"))
        differing = [key for key in ours if theirs.get(key) != ours[key]]
        if differing:
            what = "; ".join(f"{key}: {theirs.get(key)!r}, now {ours[key]!r}" for key in differing)
            raise OptionError(f"{root} was begun with other options ({what}). Take another folder.")
        return
    if root.exists() and any(root.iterdir()):
        raise OptionError(f"{root} holds other files, and no export.json. Take an empty folder.")
    media = "videos" if frames == "mp4" else "images"
    info = {
        "file_name": "data.jsonl",
        "formatting": "sharegpt",
        "columns": {"messages": _COLUMNS[format], media: media},
    } | ({"tags": _TAGS} if format == "messages" else {})
    write_file(root / "dataset_info.json", json.dumps({root.resolve().name: info}, indent=2).encode())
    write_file(path, json.dumps(ours, indent=2).encode())


def _whole_lines(path: Path) -> Counter[str]:
    """How many lines each id has; a line that was cut when a run was killed is taken off the file."""
    done: Counter[str] = Counter()
    if not path.exists():
        return done
    with path.open("r+b") as file:
        end = 0
        for line in file:
            if not line.endswith(b"\n"):
                break
            done[json.loads(line)["id"]] += 1
            end += len(line)
        file.truncate(end)
    return done


def _line(row: Mapping[str, Any], style: Style, root: Path, format: str, frames: str) -> dict[str, Any]:
    view = row_view(row, style)
    kind = "video" if frames == "mp4" else "image"
    names = list(_names(row, view, frames))
    chat = messages(row, style, view, [{"type": kind}] * len(names))
    told = [(message["role"], _text(message["content"], name_of(row))) for message in chat]
    missing = [name for name in names if not (root / name).exists()]
    if missing:
        _draw(root, names, view.draw(row_volume(row)), view.fps)
    if format == "sharegpt":
        said: list[dict[str, str]] = [{"from": _SPEAKERS[role], "value": text} for role, text in told]
    else:
        said = [{"role": role, "content": text} for role, text in told]
    return {"id": row["id"], _COLUMNS[format]: said, f"{kind}s": names}


def _names(row: Mapping[str, Any], view: View, frames: str) -> Iterator[str]:
    """Files of a view, named by what it shows."""
    shown = blake2b(repr(view).encode(), digest_size=6).hexdigest()
    stem = f"{row['scan_id']}/{view.recipe}-{shown}"
    if frames == "mp4":
        yield f"{stem}.mp4"
    else:
        yield from (f"{stem}-{number:03}.png" for number in range(view.pictures))


def _text(content: list[dict[str, str]], name: str) -> str:
    """A message with its placeholders in front."""
    text = "".join(block["text"] for block in content if block["type"] == "text")
    if held := [word for word in _PLACEHOLDERS if word in text]:
        raise RecordError(f"{name}: its text holds {held[0]}, which readers would take for a file")
    return "".join(f"<{block['type']}>" for block in content if block["type"] != "text") + text


def _draw(root: Path, names: list[str], pictures: npt.NDArray[Any], fps: float) -> None:
    if names[0].endswith(".mp4"):
        write_file(root / names[0], _mp4(pictures, fps))
        return
    try:
        from PIL import Image
    except ImportError as error:
        raise ExtraMissingError("pictures need Pillow: pip install 'reasonknee_hf[viz]'") from error
    for name, picture in zip(names, pictures, strict=True):
        held = BytesIO()
        Image.fromarray(picture).save(held, "png")
        write_file(root / name, held.getvalue())


def _mp4(pictures: npt.NDArray[Any], fps: float) -> bytes:
    try:
        import av
    except ImportError as error:
        raise ExtraMissingError("frames='mp4' needs PyAV: pip install 'reasonknee_hf[video]'") from error
    held = BytesIO()
    # The format wants even sides; a row or column of the edge stands twice.
    height, width = pictures.shape[1:]
    even = np.pad(pictures, ((0, 0), (0, height % 2), (0, width % 2)), mode="edge")
    with av.open(held, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=Fraction(fps).limit_denominator(1000))
        stream.height, stream.width, stream.pix_fmt = even.shape[1], even.shape[2], "yuv420p"
        stream.options = {"crf": "12", "threads": "1"}
        for picture in even:
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="gray")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return held.getvalue()
