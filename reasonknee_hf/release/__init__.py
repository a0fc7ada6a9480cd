"""The layout of one release: what lies where, and which scans belong to which split."""

from reasonknee_hf.release.release import Release as Release
