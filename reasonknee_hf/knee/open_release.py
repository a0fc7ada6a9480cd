"""Opens a release by what the user wrote: a Hub id, a folder, a URL, or the word `sample`."""

from __future__ import annotations

from collections.abc import Sequence

from reasonknee_hf import environment
from reasonknee_hf.hub.disk import CacheLike
from reasonknee_hf.hub.fs.filesystem import ReasonKneeFileSystem
from reasonknee_hf.knee.layout import DEFAULT_REVISION, DEFAULT_SOURCE
from reasonknee_hf.knee.release import Release


def open_release(
    source: str | None = None,
    revision: str | None = None,
    endpoint: str | Sequence[str] | None = None,
    token: str | bool | None = None,
    *,
    images: str | None = None,
    high_fidelity: str | Sequence[str] | None = None,
    cache: CacheLike = None,
    cache_size: int | str | None = None,
) -> Release:
    """Opens one release of 3DReasonKnee.

    Args:
        source: Hub dataset id, local folder, any fsspec URL, or `"sample"` for the built-in synthetic release.
            Default: `$REASONKNEE_SOURCE`, else `rajpurkarlab/3DReasonKnee`.
        revision: Branch, tag or commit of a Hub source; resolved to a commit once. Default: the commit this version
            was written against for the default source, else `main`.
        endpoint: Base URL of a Hub or of a mirror of it, or several in order of preference.
        token: As in `huggingface_hub`. Sent to the first endpoint only.
        images: Another root for the volumes; see [`Release`].
        high_fidelity: The scans of the `high_fidelity` config; see [`Release`].
        cache, cache_size: What of a Hub source is used and kept on this disk: `"auto"`, `True`, `False` or a folder,
            and bytes; see [`chosen_cache`].

    Returns:
        [`Release`]: opened, with its listing read and nothing else.

    Raises:
        ReleaseError: What lies there is not a release.
        EndpointError: No endpoint gave the listing.
    """
    source = source or environment.source() or DEFAULT_SOURCE
    if source == "sample":
        from reasonknee_hf.knee.sample import sample_folder

        source = str(sample_folder())
    if revision is None and source == DEFAULT_SOURCE:
        revision = DEFAULT_REVISION
    # Not the cached instance: a folder may have changed and a branch moved since it was opened.
    fs = ReasonKneeFileSystem(
        source=source,
        revision=revision,
        endpoint=endpoint,
        token=token,
        cache=cache,
        cache_size=cache_size,
        skip_instance_cache=True,
    )
    return Release(fs, images=images, high_fidelity=high_fidelity)
