"""Makes `datasets.load_dataset` find datasets of this package by their short names.

`datasets` has no entry point for builders since loading scripts are gone, so `register()` wraps
`dataset_module_factory` in the two modules that look datasets up by name, and answers for exactly the names that
are known. Every other name goes to the original function untouched. A folder of that name in the current
directory changes nothing. The seam is the same on `datasets` 3.6 to 5.2.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets.inspect
import datasets.load

from reasonknee_hf.dataset.contract import described, known_names, place_of
from reasonknee_hf.errors import OptionError
from reasonknee_hf.version import __version__

_MARK = "_answers_for_reasonknee"


def register() -> None:
    """Registers the short names that are known with `datasets`. Calling it again changes nothing.

    Raises:
        ImportError: The installed `datasets` no longer has the seam; the message says what to do instead.

    Examples:
        >>> rk.register()  # again: nothing changes
    """
    for module in (datasets.load, datasets.inspect):
        original = getattr(module, "dataset_module_factory", None)
        if original is None or "path" not in inspect.signature(original).parameters:
            raise ImportError(
                f"datasets {datasets.__version__} cannot be taught the names {known_names()}: {module.__name__} has no "
                "dataset_module_factory(path, ...). Set REASONKNEE_REGISTER=0 and call "
                "reasonknee_hf.load_dataset(...), which needs no registration, or install another version of datasets."
            )
        if not getattr(original, _MARK, False):
            module.dataset_module_factory = _answering_for_us(original)


def _answering_for_us(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def dataset_module_factory(path: str, *args: Any, **kwargs: Any) -> Any:
        if path not in known_names():
            return original(path, *args, **kwargs)
        call = inspect.signature(original).bind(path, *args, **kwargs).arguments
        for name in ("data_dir", "data_files"):
            if call.get(name) is not None:
                raise OptionError(
                    f"{path} takes no {name}=. Name a folder or URL that holds a release with source=."
                )
        revision = call.get("revision")
        builder_kwargs = {"dataset_name": path} | (
            {"revision": str(revision)} if revision is not None else {}
        )
        return datasets.load.DatasetModule(
            described(path).builder.partition(":")[0], code_hash(path), builder_kwargs
        )

    setattr(dataset_module_factory, _MARK, True)
    return dataset_module_factory


@functools.cache
def code_hash(name: str) -> str:
    """Hash of the version and of the code that makes rows of a dataset. It names the folder of prepared ones.

    That code is the room of the general rows and the one that the dataset's description lies in.
    """
    from hashlib import sha256

    place = importlib.util.find_spec(place_of(name).partition(":")[0])
    assert place is not None
    assert place.origin is not None
    own = Path(place.origin)
    rooms = [Path(__file__).parent, own.parent] if place.parent else [Path(__file__).parent]
    files = {own} | {file for room in rooms for file in room.iterdir() if file.suffix in (".py", ".csv")}
    digest = sha256(__version__.encode())
    for file in sorted(files):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:32]
