"""The Space: the built-in synthetic sample, or what `REASONKNEE_SOURCE` and `REASONKNEE_IMAGES` name."""

import os

from reasonknee_app import Cases, launch

if __name__ == "__main__":
    source = os.environ.get("REASONKNEE_SOURCE", "sample")
    launch(Cases(source=source, images=os.environ.get("REASONKNEE_IMAGES")), host="0.0.0.0", port=7860)
