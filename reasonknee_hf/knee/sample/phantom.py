"""A synthetic knee: a sagittal MRI-like volume and the label mask that belongs to it.

Everything is drawn in anatomical millimetres on three axes: `m` grows towards the body's midline (medial),
`a` towards the front (anterior), `z` upwards; the joint line is at z = 0. Arrays are slice-first: axis 0 runs
from the patient's left to right, axis 1 (x) from front to back, axis 2 (y) from top to bottom.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reasonknee_hf.knee.sample.sample_labels import (
    FEMUR_REGIONS,
    LABELS,
    OSTEOPHYTE_SITES,
    PATELLA_REGIONS,
    TIBIA_REGIONS,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Field = NDArray[Any]
    Where = NDArray[np.bool_]

Grades = Mapping[int, Mapping[str, int]]
"""Question id to short attribute name to grade."""

# Brightness of tissues as a water-excited steady-state sequence shows them: fat and marrow are dim.
MARROW, CORTEX, CARTILAGE, FLUID, MENISCUS, TENDON, MUSCLE, FAT, SKIN = 66, 18, 205, 330, 38, 30, 128, 78, 150
CARTILAGE_MM = 3.0

_OSTEOPHYTE_PLACES: dict[str, tuple[float, float, float]] = {
    # (m, a, z) of the bone margin; m is given for the medial side and mirrored for lateral sites
    "patella superior": (0, 40, 50),
    "patella inferior": (0, 40, 14),
    "patella medial": (19, 41, 32),
    "patella lateral": (19, 41, 32),
    "femur anterior": (22, 18, 34),
    "femur central": (35, -10, 19),
    "femur posterior": (23, -35, 31),
    "tibia": (34, -8, -7),
}


@dataclass(frozen=True)
class Grid:
    """A stored voxel grid.

    Args:
        slices, width, height: Number of voxels along the left-right, front-back and up-down axis.
        slice_last: Whether the file stores the slice axis last (axis codes P-I-R) instead of first (R-P-I).
    """

    slices: int
    width: int
    height: int
    slice_last: bool = False

    @property
    def spacing(self) -> tuple[float, float, float]:
        """Millimetres along the slice axis, x and y: the field of view is the same for every grid."""
        return 102.4 / self.slices, 140.8 / self.width, 140.8 / self.height


class _Canvas:
    """Brightness and labels while a knee is drawn; later strokes cover earlier ones."""

    def __init__(self, grid: Grid, right: bool, body: random.Random) -> None:
        import numpy as np

        step_m, step_a, step_z = grid.spacing
        self.step_z = step_z
        # The patient's right is where slices end. Medial is towards the other knee: left for a right knee.
        m = (np.arange(grid.slices, dtype="f4") - (grid.slices - 1) / 2) * np.float32(
            -step_m if right else step_m
        )
        a = ((grid.width - 1) / 2 - np.arange(grid.width, dtype="f4")) * np.float32(step_a) - np.float32(2)
        z = ((grid.height - 1) / 2 - np.arange(grid.height, dtype="f4")) * np.float32(step_z) + np.float32(6)
        # One body's size, place and flexion: the same at every visit.
        size, flexion = body.uniform(0.93, 1.04), body.uniform(-0.07, 0.07)
        self.m: Field = ((m + np.float32(body.uniform(-2, 2))) / np.float32(size))[:, None, None]
        a = (a + np.float32(body.uniform(-2, 2)))[None, :, None] / np.float32(size)
        z = (z + np.float32(body.uniform(-3, 3)))[None, None, :] / np.float32(size)
        self.a: Field = a + np.float32(flexion) * z
        self.z: Field = z - np.float32(flexion) * a
        self.image: Field = np.zeros((grid.slices, grid.width, grid.height), dtype="f4")
        self.labels: NDArray[np.uint8] = np.zeros(self.image.shape, dtype="u1")
        self.bones: Where = self.femur(0) | self.tibia(0) | self.patella(0)

    def paint(self, where: Where, brightness: float, label: str | None = None) -> None:
        self.image[where] = brightness
        self.labels[where] = LABELS[label] if label else 0

    def named(self, *names: str) -> Where:
        """Where any of the labels `names` lies."""
        import numpy as np

        return np.isin(self.labels, [LABELS[name] for name in names])

    def ellipsoid(
        self, center: tuple[float, float, float], radii: tuple[float, float, float], power: int = 2
    ) -> Where:
        """The inside of a (super-)ellipsoid; `power` above 2 squares its shoulders."""
        import numpy as np

        terms = (
            abs((axis - c) / r) ** power
            for axis, c, r in zip((self.m, self.a, self.z), center, radii, strict=True)
        )
        inside: Where = np.less(sum(terms), 1)
        return inside

    def tube(self, points: tuple[tuple[float, float, float], ...], radius: float) -> Where:
        """All voxels within `radius` mm of a polyline."""
        import numpy as np

        inside: Where = np.zeros(self.image.shape, dtype=bool)
        for start, stop in itertools.pairwise(points):
            axis = [e - s for s, e in zip(start, stop, strict=True)]
            away = [c - s for c, s in zip((self.m, self.a, self.z), start, strict=True)]
            share: Any = sum(d * v for d, v in zip(axis, away, strict=True)) / sum(d * d for d in axis)
            share = np.clip(share, 0, 1)
            inside |= sum((v - share * d) ** 2 for d, v in zip(axis, away, strict=True)) < radius * radius
        return inside

    def femur(self, margin: float) -> Where:
        """The femur, its surface moved outwards by `margin` mm."""
        t = margin
        bone = self.ellipsoid((22, -10, 25.5), (15 + t, 27 + t, 22 + t))
        bone |= self.ellipsoid((-22, -9, 25.5), (15 + t, 26 + t, 22 + t))
        bone |= self.ellipsoid((0, 6, 31), (27 + t, 19 + t, 19 + t))
        bone |= self.shaft((70, 26), (15, 35), (13, 21), center=-5, margin=t) & (self.z > 26)
        bone &= ~self.ellipsoid((0, -20, 8), (8 - t / 2, 24 - t, 20 - t))
        return bone

    def tibia(self, margin: float) -> Where:
        """The tibia, its surface moved outwards by `margin` mm."""
        t = margin
        bone = self.shaft((-56, -12), (16, 37), (15, 25), center=-7, margin=t, power=3) & (self.z < t - 3)
        bone |= self.ellipsoid((0, 11, -32), (11 + t, 8 + t, 13 + t))
        for side in (-6, 6):
            bone |= self.ellipsoid((side, -8, -4), (4 + t, 9 + t, 8 + t))
        return bone

    def shaft(
        self,
        heights: tuple[float, float],
        half_widths: tuple[float, float],
        half_depths: tuple[float, float],
        *,
        center: float,
        margin: float,
        power: int = 2,
    ) -> Where:
        """A bone's shaft that flares from the first of two heights to the second, along its whole length."""
        import numpy as np

        share = np.clip((self.z - heights[0]) / (heights[1] - heights[0]), 0, 1) ** 1.4
        width = half_widths[0] + (half_widths[1] - half_widths[0]) * share + margin
        depth = half_depths[0] + (half_depths[1] - half_depths[0]) * share + margin
        inside: Where = abs(self.m / width) ** power + abs((self.a - center) / depth) ** power < 1
        return inside

    def patella(self, margin: float) -> Where:
        """The patella, its surface moved outwards by `margin` mm."""
        t = margin
        back: Where = self.a + abs(self.m) * 0.12 > 33 - t
        return self.ellipsoid((0, 41, 32), (20 + t, 9 + t, 18 + t)) & back


def draw_knee(
    grid: Grid, *, right: bool, grades: Grades, body_seed: str, scan_seed: str
) -> tuple[NDArray[np.int16], NDArray[np.uint8]]:
    """Draws one knee.

    Args:
        grid: Size of the volume.
        right: Whether it is a right knee; left and right mirror the medial side.
        grades: The knee's grades; lesions show in the volume.
        body_seed: Seed of shape and size: the same for all visits of one knee.
        scan_seed: Seed of texture and noise.

    Returns:
        The volume (int16, not negative) and its label mask (uint8, ids of `LABELS`), both slice-first with
        shape `(grid.slices, grid.width, grid.height)`.
    """
    canvas = _Canvas(grid, right, random.Random(body_seed))
    _soft_tissue(canvas)
    _bones_and_cartilage(canvas)
    _menisci(canvas, grades)
    _ligaments_and_fat(canvas, grades)
    _osteophytes(canvas, grades)
    _cartilage_lesions(canvas, grades)
    _marrow_lesions(canvas, grades)
    return _acquire(canvas, scan_seed), canvas.labels


def _soft_tissue(c: _Canvas) -> None:
    import numpy as np

    # Front and back of the leg: the patella and the calf stand out, the hollow of the knee lies between.
    front = 45 + 9 * np.exp(-(((c.z - 30) / 28) ** 2)) - 0.05 * np.clip(-c.z, 0, None)
    back = -53 - 7 * np.exp(-(((c.z + 52) / 30) ** 2)) - 6 * np.exp(-(((c.z - 60) / 30) ** 2))
    center, half = (front + back) / 2, (front - back) / 2
    for inset, brightness in ((0.0, SKIN), (1.8, FAT)):
        c.paint((c.m / (49 - inset)) ** 2 + ((c.a - center) / (half - inset)) ** 2 < 1, brightness)
    for side in (-1, 1):
        c.paint(c.ellipsoid((17 * side, -41, -40), (14, 12, 48)), MUSCLE)
        c.paint(c.ellipsoid((24 * side, -36, 66), (13, 15, 44)), MUSCLE)
        c.paint(c.ellipsoid((28 * side, 8, 84), (15, 24, 44)), MUSCLE)
    c.paint(c.ellipsoid((0, 22, 96), (28, 17, 44)), MUSCLE)
    c.paint(c.ellipsoid((-6, -24, -70), (22, 12, 50)) & (c.z < -20), MUSCLE)
    c.paint(c.tube(((2, -40, 90), (3, -42, 10), (0, -36, -80)), 3.2), FLUID * 0.8)
    c.paint(c.tube(((-4, -43, 90), (-3, -45, 10), (-5, -40, -80)), 2.2), FLUID * 0.6)


def _bones_and_cartilage(c: _Canvas) -> None:
    """Bones and cartilage. The label of a region covers its bone and the deep half of its cartilage."""
    import numpy as np

    # Joint fluid first: what bones, cartilage and menisci leave of it are thin bright lines.
    c.paint(c.ellipsoid((0, -8, 3), (35, 24, 5), power=4) & (abs(c.m) > 9), FLUID * 0.75)
    femur, tibia, patella = c.femur(0), c.tibia(0), c.patella(0)
    articular = (c.z < 44) & ~((c.a < -10) & (c.z > 34)) & ~((abs(c.m) < 9) & (c.a < 6)) & (abs(c.m) < 35)
    femur_cartilage = c.femur(CARTILAGE_MM) & articular & ~c.bones
    plateau = (abs(c.m) > 9) & ((abs(c.m) / 35) ** 4 + (abs(c.a + 8) / 23) ** 4 < 1) & (c.z > -8)
    # A flat layer falls between two rows of voxels where it is thinner than these.
    thick = max(CARTILAGE_MM, 2 * c.step_z)
    tibia_cartilage = c.tibia(thick) & plateau & ~c.bones & ~femur_cartilage
    back = (c.a < 36) & (abs(c.m) < 19)
    patella_cartilage = c.patella(CARTILAGE_MM) & back & ~c.bones & ~femur_cartilage
    for cartilage, name in (
        (femur_cartilage, "femoral cartilage"),
        (tibia_cartilage, "tibial cartilage"),
        (patella_cartilage, "patellar cartilage"),
    ):
        c.paint(cartilage, CARTILAGE, name)
    for bone, core in ((femur, c.femur(-1.4)), (tibia, c.tibia(-1.4)), (patella, c.patella(-1.4))):
        c.paint(bone, CORTEX)
        c.paint(core, MARROW)
    half = CARTILAGE_MM / 2
    femur_zone = (femur & (c.z < 48)) | (femur_cartilage & c.femur(half))
    tibia_zone = (tibia & (c.z > -34)) | (tibia_cartilage & c.tibia(thick / 2))
    patella_zone = patella | (patella_cartilage & c.patella(half))
    medial = np.broadcast_to(c.m > 0, c.image.shape)
    front, back_, spine = c.a > 7, c.a < -14, abs(c.m) < 9
    for side, on_side in (("medial", medial), ("lateral", ~medial)):
        for part, third in (("trochlea", front), ("central", ~front & ~back_), ("posterior", back_)):
            _label(c, femur_zone & on_side & third, f"femur {side} {part}")
        for part, third in (
            ("anterior", c.a > 0),
            ("central", (c.a <= 0) & (c.a > -16)),
            ("posterior", c.a <= -16),
        ):
            _label(c, tibia_zone & on_side & third & ~spine, f"tibia {side} {part}")
        _label(c, patella_zone & on_side, f"patella {side}")
    _label(c, tibia_zone & spine, "tibia subspinous")


def _label(c: _Canvas, where: Where, name: str) -> None:
    c.labels[where] = LABELS[name]


def _menisci(c: _Canvas, grades: Grades) -> None:
    free = ~c.named("femoral cartilage", "tibial cartilage", *FEMUR_REGIONS, *TIBIA_REGIONS)
    for name, side, center_a, radii, first in (
        ("medial meniscus", 1, -9.0, (17.0, 25.0), 44),
        ("lateral meniscus", -1, -8.0, (16.5, 21.0), 46),
    ):
        forward, outward = grades[first]["grade"], grades[first + 1]["grade"]
        m = c.m * side - 22 - 1.3 * outward
        a = c.a - center_a - 1.3 * forward * (c.a > center_a)
        radius = (m / radii[0]) ** 2 + (a / radii[1]) ** 2
        ring = (radius > 0.28) & (radius < 1) & (c.z > -2) & (c.z < 8.5) & free
        ring &= ~((m < -8) & (abs(a) < 8))
        c.paint(ring, MENISCUS, name)
        front, back = ring & (a > 9), ring & (a < -9)
        _label(c, front, f"{name} anterior horn")
        _label(c, back, f"{name} posterior horn")
        root = back & (m < -7)
        _label(c, root, f"{name} root")
        morphology = 48 if side > 0 else 51
        for question, part in zip(
            range(morphology, morphology + 3), (front, ring & ~front & ~back, back), strict=True
        ):
            code = grades[question]["morphology"]
            if code:  # signal: a bright streak; tears: brighter and wider
                streak = part & (abs(c.z - 3 - 0.15 * a) < (1.0 if code == 1 else 1.6))
                c.image[streak] = 120 if code == 1 else 230
        if grades[58 if side > 0 else 59]["presence"]:
            c.image[root] = 200


def _ligaments_and_fat(c: _Canvas, grades: Grades) -> None:
    soft = (c.labels == 0) & ~c.bones
    front = 45 - (15 - c.z) * 0.42  # the line of the patellar tendon, from the patella down to the tibia
    pad = (c.a < front - 1) & (c.a > 2) & (c.z < 17) & (c.z > -8 - 0.9 * (c.a - 2)) & soft
    pad &= (c.m / 28) ** 2 + ((c.z + 2) / 27) ** 2 < 1
    pad &= ~c.ellipsoid((0, -8, 3), (36, 20, 6), power=4)
    c.paint(pad, FAT + 6 + 45 * grades[42]["grade"], "Hoffa fat pad")
    tendon = (abs(c.a - front) < 2.6) & (abs(c.m) < 13) & (c.z < 17) & (c.z > -38) & soft
    c.paint(tendon, 120 if grades[62]["signal_abnormality"] else TENDON, "patellar tendon")
    quadriceps = (abs(c.a - 43 + (c.z - 48) * 0.22) < 3) & (abs(c.m) < 14) & (c.z > 46) & soft
    c.paint(quadriceps, TENDON)
    effusion = grades[43]["grade"]
    recess = c.ellipsoid((0, 30, 59), (17 + 2 * effusion, 3 + 2.2 * effusion, 15)) & soft & ~quadriceps
    c.paint(recess, FLUID if effusion else 140, "suprapatellar recess")
    notch = soft & ~c.named("patellar tendon", "Hoffa fat pad")
    acl = c.tube(((-6, -22, 24), (1, -6, 9), (4, 7, -1)), 4.0) & notch
    c.paint(acl, 170 if grades[60]["complete_tear"] else TENDON + 25, "anterior cruciate ligament")
    pcl = c.tube(((5, 2, 20), (4, -18, 17), (1, -29, 3), (0, -31, -14)), 4.0) & notch & ~acl
    c.paint(pcl, 170 if grades[61]["complete_tear"] else TENDON, "posterior cruciate ligament")


def _osteophytes(c: _Canvas, grades: Grades) -> None:
    bones = c.bones
    for question, site in enumerate(OSTEOPHYTE_SITES, start=30):
        grade = grades[question]["grade"]
        place = _OSTEOPHYTE_PLACES.get(site.replace(" medial", "").replace(" lateral", ""))
        m, a, z = place or _OSTEOPHYTE_PLACES[site]
        center = (-m if "lateral" in site else m, a, z)
        ball = c.ellipsoid(center, (6 + grade,) * 3)
        if grade:
            spur = c.ellipsoid(center, (3.5 + 1.6 * grade,) * 3) & ~bones & (c.labels == 0)
            c.image[spur] = CORTEX
            c.image[spur & c.ellipsoid(center, (2.2 + 1.6 * grade,) * 3)] = MARROW
            bones = bones | spur
        _label(c, ball & bones, f"{site} margin")


def _cartilage_lesions(c: _Canvas, grades: Grades) -> None:
    import numpy as np

    cartilage = c.image == CARTILAGE
    for question, region in enumerate((*PATELLA_REGIONS, *FEMUR_REGIONS, *TIBIA_REGIONS[:-1]), start=16):
        size, depth = grades[question]["size"], grades[question]["depth"]
        deep = cartilage & (c.labels == LABELS[region])
        if not size or not deep.any():
            continue
        index = np.argwhere(deep)
        s, x, y = index[len(index) // 2]
        near = c.ellipsoid(
            (float(c.m[s, 0, 0]), float(c.a[0, x, y]), float(c.z[0, x, y])),
            (3.0 + 2.5 * size, 2.0 + 2.2 * size, 6),
        )
        hole = near & cartilage & (c.labels != LABELS[region])
        if depth:
            hole |= near & deep
        c.paint(hole, FLUID * (0.55 + 0.15 * depth))


def _marrow_lesions(c: _Canvas, grades: Grades) -> None:
    import numpy as np

    marrow = c.image == MARROW
    for question, region in enumerate((*PATELLA_REGIONS, *FEMUR_REGIONS, *TIBIA_REGIONS), start=1):
        size = grades[question]["size"]
        inside = marrow & (c.labels == LABELS[region])
        if not size or not inside.any():
            continue
        index = np.argwhere(inside)
        index = index[np.argsort(index[:, 2], kind="stable")]  # from top to bottom
        nearer_to_joint = len(index) // 4 if region.startswith("tibia") else -(len(index) // 4) - 1
        s, x, y = index[nearer_to_joint]
        radius = (0, 7, 12, 20)[size]
        distance = (
            (c.m - c.m[s, 0, 0]) ** 2 + (c.a - c.a[0, x, y]) ** 2 + (c.z - c.z[0, x, y]) ** 2
        ) / np.float32(radius * radius)
        c.image += inside * np.float32(70 + 35 * size) * np.exp(-1.5 * distance)


def _acquire(c: _Canvas, scan_seed: str) -> NDArray[np.int16]:
    """What a scanner makes of the drawing: texture, soft focus, a field that falls off, and noise."""
    import numpy as np

    # RandomState, not Generator: numpy promises that its stream never changes.
    lots = np.random.RandomState(random.Random(scan_seed).getrandbits(32))
    slices, width, height = c.image.shape

    def noise(*shape: int) -> Field:
        return lots.standard_normal(shape).astype("f4")

    grain = noise(slices, (width + 1) // 2, (height + 1) // 2).repeat(2, axis=1).repeat(2, axis=2)
    image: Field = c.image * (1 + np.float32(0.13) * grain[:, :width, :height])
    for axis in (1, 2):
        image = (np.roll(image, 1, axis) + 2 * image + np.roll(image, -1, axis)) / 4
    image = image * (1.12 - 0.0022 * abs(c.z - 8) - 0.0016 * abs(c.a) - 0.0012 * abs(c.m))
    # The magnitude of a complex signal: noise does not average to zero in air.
    image = np.hypot(image + 5 * noise(*image.shape), 5 * noise(*image.shape))
    volume: NDArray[np.int16] = np.rint(image).astype("i2")
    return volume
