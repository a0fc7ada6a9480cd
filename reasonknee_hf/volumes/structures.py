"""Names of structures in masks."""

from __future__ import annotations

from collections.abc import Mapping

from reasonknee_hf.errors import OptionError


def structure_id(name: str | int, names: Mapping[str, int] | None) -> int:
    """The id of a structure in a mask.

    Args:
        name: its name, in any case, with blanks or underscores; or the id itself.
        names: names and ids from the release's label table.

    Raises:
        OptionError: no such name; the message lists the names there are.
    """
    if isinstance(name, int):
        return name
    wanted = _plain(name)
    for known, number in (names or {}).items():
        if _plain(known) == wanted:
            return number
    listed = ", ".join(sorted(names)) if names else "none, so give the id"
    raise OptionError(f"unknown structure {name!r}; the label table names: {listed}")


def _plain(name: str) -> str:
    return name.replace("_", " ").casefold()
