"""NIfTI bytes to lazy volumes. Knows NIfTI, not rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

notebook_html: Callable[[Any], str] = repr
"""What a notebook shows of a volume; whoever draws volumes lies above this room and puts itself here."""
