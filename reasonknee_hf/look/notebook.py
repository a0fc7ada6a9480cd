"""How a volume shows itself in a notebook."""

from __future__ import annotations

import base64
import html

from reasonknee_hf.errors import ExtraMissingError, ReasonKneeError
from reasonknee_hf.volumes.volume import KneeVolume


def volume_html(volume: KneeVolume) -> str:
    """Facts of the header and a picture of three planes, as HTML without outside references.

    A notebook must show something also for a volume that cannot be read: the message of the error then.
    """
    from reasonknee_hf.look.figures import draw_volume

    lines = [repr(volume)]
    picture = ""
    try:
        spacing = " x ".join(f"{edge:.3g}" for edge in volume.spacing)
        shape = " x ".join(str(length) for length in volume.shape)
        lines.append(f"{shape} voxels of {spacing} mm, axes {volume.axcodes}, {volume.header.dtype}")
        lines += volume.header.notes
        encoded = base64.b64encode(draw_volume(volume)).decode()
        picture = f'<img alt="three planes" src="data:image/png;base64,{encoded}">'
    except ExtraMissingError as error:
        lines.append(str(error))
    except (ReasonKneeError, OSError) as error:
        lines.append(f"{type(error).__name__}: {error}")
    return "<div>" + "".join(f"<div>{html.escape(line)}</div>" for line in lines) + picture + "</div>"
