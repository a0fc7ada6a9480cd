"""NIfTI bytes to lazy volumes. Knows NIfTI, not rows."""
