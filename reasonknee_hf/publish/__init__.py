"""Derived versions that plain `datasets` users can load."""
