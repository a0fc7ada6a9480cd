"""Bytes from Hub endpoints and archives, checked before they are used. Knows no dataset."""
