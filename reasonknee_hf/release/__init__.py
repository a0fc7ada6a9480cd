"""The layout of one release: what lies where, and which scans belong to which split."""
