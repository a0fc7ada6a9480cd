"""3DReasonKnee as a loading script, and as a command.

On `datasets` 3.x, which still runs scripts:

    load_dataset("loading_script.py", "bench", split="test", streaming=True, trust_remote_code=True)

On any version, as a command that streams rows as JSON lines:

    python loading_script.py bench --split test --limit 3 --source sample

`reasonknee_hf` must be installed, or this file be run from its checkout.
"""

import sys

import datasets

from reasonknee_hf.knee.knee_builder import ReasonKnee
from reasonknee_hf.version import __version__


class LoadingScript(ReasonKnee):
    """The builder under the script's own name: `datasets` names caches after the class's module and version."""

    VERSION = datasets.Version(__version__)


if __name__ == "__main__":
    from reasonknee_hf.cli import main

    sys.exit(main(["rows", *sys.argv[1:]]))
