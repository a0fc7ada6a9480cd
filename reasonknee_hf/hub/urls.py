"""The `reasonknee://` address of a file: enough to open it in a process that knows nothing else."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from reasonknee_hf.errors import OptionError

SCHEME = "reasonknee://"
# Marks a folder behind http(s), which would otherwise look like a Hub.
_FOLDER = "folder:"
# Stands in the place of the last endpoint.
_OPENED = "options://"
_ENCODED = re.compile(r"(folder%3A)?[A-Za-z][A-Za-z0-9+.-]*%3A%2F%2F.*", re.IGNORECASE)
_GRAMMAR = (
    "Known forms: reasonknee://OWNER/NAME@REVISION/path, "
    "reasonknee://https%3A%2F%2Fhub.example/OWNER/NAME@REVISION/path, "
    "reasonknee://file%3A%2F%2F%2Ffolder/path"
)


@dataclass(frozen=True)
class Address:
    """One file of one source.

    Args:
        source: Hub dataset id `OWNER/NAME`, or the root URL of a folder.
        path: Of the file, below the root.
        revision: Of a Hub source.
        endpoints: Base URLs of a Hub and its mirrors; empty for those of the environment, and for folders.
        opened: Name of the token options that the source was opened with; see `reasonknee_hf.hub.wire.opened`.
    """

    source: str
    path: str = ""
    revision: str | None = None
    endpoints: tuple[str, ...] = ()
    opened: str = ""


def build_url(address: Address) -> str:
    """The URL of an address. Its ending is the ending of the path; it never holds a token."""
    if "://" in address.source:
        marked = _FOLDER * address.source.startswith(("http://", "https://")) + address.source
        root = quote(marked, safe="")
    else:
        root = address.source
        if address.revision is not None:
            root += "@" + quote(address.revision, safe="")
        places = [*address.endpoints, *([_OPENED + address.opened] if address.opened else [])]
        if places:
            root = quote(",".join(places), safe="") + "/" + root
    return f"{SCHEME}{root}/{address.path}" if address.path else SCHEME + root


def parse_url(url: str) -> Address:
    """The address that a URL stands for.

    Raises:
        OptionError: It has none of the known forms.
    """
    rest = url[len(SCHEME) :].lstrip("/") if url.startswith(SCHEME) else url
    first, _, below = rest.partition("/")
    endpoints, opened = [], ""
    if _ENCODED.fullmatch(first):
        origin = unquote(first)
        if not origin.startswith(("http://", "https://", _OPENED)):
            return Address(origin.removeprefix(_FOLDER), below.strip("/"))
        endpoints, rest = origin.split(","), below
        if endpoints[-1].startswith(_OPENED):
            opened = endpoints.pop().removeprefix(_OPENED)
    steps = rest.split("/", 2)
    if len(steps) < 2 or not steps[0] or not steps[1]:
        raise OptionError(f"{url!r} does not say which repository it means. {_GRAMMAR}")
    name, marked, revision = steps[1].partition("@")
    return Address(
        source=f"{steps[0]}/{name}",
        path=steps[2].strip("/") if len(steps) > 2 else "",
        revision=unquote(revision) if marked else None,
        endpoints=tuple(endpoints),
        opened=opened,
    )
