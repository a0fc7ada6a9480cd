"""The one place that reads environment variables. Everything is read when it is asked for, never at import."""

from __future__ import annotations

import math
import os
import re
from importlib.util import find_spec

from reasonknee_hf.errors import OptionError

_ON, _OFF = ("1", "ON", "YES", "TRUE"), ("0", "OFF", "NO", "FALSE")


def _text(name: str) -> str | None:
    value = os.environ.get(name, "").strip()
    return value or None


def source() -> str | None:
    """`REASONKNEE_SOURCE`: where the release lies when a call does not say so."""
    return _text("REASONKNEE_SOURCE")


def hf_endpoint() -> str | None:
    """`HF_ENDPOINT`: when set, the only endpoint that is asked."""
    return _text("HF_ENDPOINT")


def login_endpoint() -> str | None:
    """`REASONKNEE_LOGIN_ENDPOINT`: the Hub that the stored token is for, where that is not the public one."""
    return _text("REASONKNEE_LOGIN_ENDPOINT")


def mirrors() -> list[str]:
    """`REASONKNEE_MIRRORS`: comma-separated endpoints in order of preference."""
    return [part.strip() for part in os.environ.get("REASONKNEE_MIRRORS", "").split(",") if part.strip()]


def timeout() -> float:
    """Seconds that any single network wait may take: `REASONKNEE_TIMEOUT`, else `HF_HUB_DOWNLOAD_TIMEOUT`, else 10."""
    for name in ("REASONKNEE_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT"):
        value = _text(name)
        if value is not None:
            return _seconds(name, value)
    return 10.0


def retry_time() -> float:
    """Seconds for which a call that cannot reach a Hub goes on trying: `REASONKNEE_RETRY_TIME`, else 120.

    That is for endpoints that have answered before. One that never did is given up after a single [`timeout`].
    """
    value = _text("REASONKNEE_RETRY_TIME")
    return 120.0 if value is None else _seconds("REASONKNEE_RETRY_TIME", value)


def handed_down(name: str) -> str | None:
    """What [`hand_down`] left for this process."""
    return os.environ.get(f"_REASONKNEE_OPENED_{name}")


def hand_down(name: str, sealed: str) -> None:
    """Leaves something for the processes that this one will spawn. Other programs can see it: seal it before."""
    os.environ[f"_REASONKNEE_OPENED_{name}"] = sealed


def _seconds(name: str, value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise OptionError(f"{name} must be a positive number of seconds, not {value!r}")
    return seconds


def offline() -> bool:
    """Whether `HF_HUB_OFFLINE` or `HF_DATASETS_OFFLINE` is on."""
    names = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
    return any((_text(name) or "").upper() in _ON for name in names)


def ca_bundle() -> str | None:
    """File or folder of trusted certificates: `REQUESTS_CA_BUNDLE`, `CURL_CA_BUNDLE` or `SSL_CERT_FILE`."""
    names = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")
    return next((value for name in names if (value := _text(name))), None)


def register_on_import() -> bool:
    """`REASONKNEE_REGISTER=0` keeps `import reasonknee_hf` from registering the short name."""
    return (_text("REASONKNEE_REGISTER") or "1").upper() not in _OFF


def cache(value: str | None = None) -> str | bool:
    """What text says as `cache=`: `auto`, `0`, `1` or a folder. Default: `REASONKNEE_CACHE`, else `auto`."""
    value = (value or "").strip() or _text("REASONKNEE_CACHE") or "auto"
    if value.upper() in (*_ON, *_OFF):
        return value.upper() in _ON
    return "auto" if value.upper() == "AUTO" else value


def choose_cache(cache: str | None, size: str | None) -> None:
    """Sets `REASONKNEE_CACHE` and `REASONKNEE_CACHE_SIZE` for a command and the processes that it starts."""
    for name, value in (("REASONKNEE_CACHE", cache), ("REASONKNEE_CACHE_SIZE", size)):
        if value is not None:
            os.environ[name] = value


def cache_bytes() -> int | None:
    """`REASONKNEE_CACHE_SIZE`: bytes that whole files of a repository may take on disk."""
    return _bytes("REASONKNEE_CACHE_SIZE")


def _bytes(name: str) -> int | None:
    value = _text(name)
    return None if value is None else as_bytes(name, value)


def as_bytes(name: str, value: int | str) -> int:
    """A number of bytes: a number, or text such as `384MB` or `1GiB`.

    Raises:
        OptionError: It is something else.
    """
    from datasets.utils.py_utils import convert_file_size_to_int

    text = str(value).strip()
    try:
        size = int(text) if text.lstrip("-").isdigit() else convert_file_size_to_int(text)
    except ValueError:
        size = -1
    if size < 0:
        raise OptionError(
            f"{name} must be a number of bytes, 0 or more, such as 402653184, 384MB or 1GiB, not {value!r}"
        )
    return size


def volume_cache_bytes() -> int | None:
    """`REASONKNEE_VOLUME_CACHE`: size of the per-process cache of decoded volumes, in bytes or as `384MB`, `1GiB`."""
    return _bytes("REASONKNEE_VOLUME_CACHE")


def settings() -> dict[str, str]:
    """The variables that are set and change what this package does, for reports; without anything secret."""
    names = {"HF_ENDPOINT", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_HUB_DOWNLOAD_TIMEOUT"}
    return {
        name: re.sub(r"//[^/@,]*@", "//…@", value)
        for name, value in sorted(os.environ.items())
        if (name in names or name.startswith("REASONKNEE_")) and not re.search("TOKEN|SECRET|KEY$", name)
    }


def is_completing() -> bool:
    """Whether a shell asks the command how its line could go on, by way of `argcomplete`."""
    return "_ARGCOMPLETE" in os.environ and find_spec("argcomplete") is not None


def openai_key() -> str | None:
    """`OPENAI_API_KEY`: what a server of models is shown where a call does not say so."""
    return _text("OPENAI_API_KEY")
