"""An app to look at the cases of a dataset, and at what two runs answered. `launch` starts it; needs `gradio`.

`cases` reads rows, `answers` reads runs, `screen` is what a person sees. Nothing here knows one dataset: all come
through their description.
"""

from __future__ import annotations

import os

# Before gradio is imported: it asks for both then. Nothing is to leave the machine.
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

from reasonknee_app.cases import Cases
from reasonknee_app.screen import launch

__all__ = ["Cases", "launch"]
