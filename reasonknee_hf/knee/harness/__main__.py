"""Prints the folder for `lm_eval --include_path`."""

import sys

from reasonknee_hf.knee.harness import FOLDER

sys.stdout.write(f"{FOLDER}\n")
