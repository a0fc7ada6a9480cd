"""3DReasonKnee for the Hugging Face ecosystem."""

from reasonknee_hf.version import __version__ as __version__
