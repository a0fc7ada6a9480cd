"""`reasonknee env`: what a report of a fault should say about the machine. No token, no path of data."""

from __future__ import annotations

import argparse
import json
import platform
from importlib.metadata import PackageNotFoundError, version

from reasonknee_hf import environment

# What changes how rows are read, or what they go to.
PACKAGES = ("reasonknee_hf", "datasets", "huggingface_hub", "fsspec", "pyarrow", "numpy", "nibabel")
EXTRAS = ("orjson", "isal", "pydicom", "torch", "transformers", "trl")


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(args: argparse.Namespace) -> int:
    """Prints versions and the settings that change what the package does."""
    facts = {"python": platform.python_version(), "platform": platform.platform()}
    facts |= {package: _installed(package) for package in (*PACKAGES, *EXTRAS)} | environment.settings()
    if args.json:
        print(json.dumps(facts, indent=2))
    else:
        width = max(map(len, facts))
        print("\n".join(f"{name:<{width}}  {value}" for name, value in facts.items()))
    return 0


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
