"""3DReasonKnee for the Hugging Face ecosystem: quintuples as Arrow rows, lazy knee volumes, masks out of a cut archive.

    import reasonknee_hf as rk

    ds = rk.load_dataset("full", split="train", streaming=True)      # or datasets.load_dataset("reasonknee", ...)
    row = next(iter(ds))
    row["image"].crop(row["bbox"])

Importing the package registers the short name `reasonknee` with `datasets` (not if `REASONKNEE_REGISTER=0`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reasonknee_hf import environment, volumes
from reasonknee_hf.dataset.contract import make_known
from reasonknee_hf.hub.wire.endpoints import published
from reasonknee_hf.knee import layout
from reasonknee_hf.version import __version__ as __version__

if TYPE_CHECKING:
    from reasonknee_hf.dataset.loading import load_dataset as load_dataset
    from reasonknee_hf.dataset.register import register as register
    from reasonknee_hf.dataset.states import merge_states as merge_states
    from reasonknee_hf.dataset.stream import report as report
    from reasonknee_hf.errors import ReasonKneeError as ReasonKneeError
    from reasonknee_hf.knee.description import open_release as open_release
    from reasonknee_hf.knee.release import Release as Release
    from reasonknee_hf.publish.convert import convert as convert
    from reasonknee_hf.publish.push import push as push
    from reasonknee_hf.verify import verify_release as verify_release
    from reasonknee_hf.volumes.feature import VolumeFeature as VolumeFeature
    from reasonknee_hf.volumes.volume import KneeVolume as KneeVolume

# Public name -> module that defines it. Resolved at first use, so that the import stays as cheap as `datasets`.
_PUBLIC = {
    "KneeVolume": "reasonknee_hf.volumes.volume",
    "ReasonKneeError": "reasonknee_hf.errors",
    "Release": "reasonknee_hf.knee.release",
    "VolumeFeature": "reasonknee_hf.volumes.feature",
    "convert": "reasonknee_hf.publish.convert",
    "load_dataset": "reasonknee_hf.dataset.loading",
    "merge_states": "reasonknee_hf.dataset.states",
    "open_release": "reasonknee_hf.knee.description",
    "push": "reasonknee_hf.publish.push",
    "register": "reasonknee_hf.dataset.register",
    "report": "reasonknee_hf.dataset.stream",
    "verify_release": "reasonknee_hf.verify",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "bench":  # a room that is used by its own name: reasonknee_hf.bench.score(...)
        return import_module(f"{__name__}.bench")
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})


def _notebook_html(volume: Any) -> str:
    from reasonknee_hf.look.figures import volume_html

    return volume_html(volume)


volumes.notebook_html = _notebook_html

# Short name -> where its description lies; imported when the name is first asked for. The first one is the default.
_DATASETS = {
    "reasonknee": "reasonknee_hf.knee.description:KNEE",
    "deeptumorvqa": "reasonknee_hf.tumor.tumor_description:TUMOR",
}

for _name, _where in _DATASETS.items():
    make_known(_name, _where)
published.add(layout.DEFAULT_SOURCE)

if environment.register_on_import():
    from reasonknee_hf.dataset.register import register

    register()
