"""Pictures and pages: what is drawn where; and that a browser shows the page without a network."""

from __future__ import annotations

import base64
import html
import json
import re
import shutil
import subprocess
from io import BytesIO

import numpy as np
import pytest
from volume_files import PIR, gzip_bytes

from reasonknee_hf.cli import main
from reasonknee_hf.cli.show_command import draw_row, find_row
from reasonknee_hf.errors import ExtraMissingError, OptionError, RecordError, VolumeMissingError
from reasonknee_hf.look.figures import BOX_COLOUR, COLOURS, draw_case
from reasonknee_hf.look.page import case_page
from reasonknee_hf.look.planes import BOX_RGB, PLANES, scene, side_by_side
from reasonknee_hf.volumes.volume import KneeVolume

pytest.importorskip("matplotlib")
Image = pytest.importorskip("PIL.Image")

SHAPE = (40, 44, 12)  # file order P, I, R; slice-first (12, 40, 44)
BOX = [3, 6, 10, 20, 22, 30]


@pytest.fixture
def picture():
    """Grey noise with one bright block that fills the box."""
    array = np.random.default_rng(0).integers(0, 80, SHAPE).astype(np.int16)
    array[10:21, 22:31, 3:7] = 400
    return KneeVolume(None, gzip_bytes(array, PIR))


@pytest.fixture
def labels():
    array = np.zeros(SHAPE, np.uint8)
    array[10:21, 22:31, 3:7] = 5
    array[2:6, 2:6, :] = 9
    array[30:34, 2:6, :] = 200
    return KneeVolume(None, gzip_bytes(array, PIR), mask=True, labels={"patella lateral": 5, "tibia": 9})


def pixels(data):
    return np.asarray(Image.open(BytesIO(data)).convert("RGB")).astype(int)


def has_colour(data, colour, least):
    wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return (np.abs(pixels(data) - wanted).max(axis=-1) < 30).sum() >= least


# --- what is shown where ------------------------------------------------------------------------------------


def test_planes_stand_head_up_with_the_front_on_the_left(picture):
    shown = scene(picture, box=BOX)
    # The file grows to P, I, R: in the order L, P, I the first axis is turned round.
    assert shown.box == [5, 8, 10, 20, 22, 30]
    assert shown.center == (6, 15, 26)
    upright = picture.array()[::-1]
    np.testing.assert_array_equal(shown.array, upright)
    for plane, cut in enumerate([upright[6].T, upright[:, 15].T, upright[:, :, 26].T]):
        grey = shown.picture(plane, shown.center[PLANES[plane][1]])
        assert grey.shape == cut.shape
        np.testing.assert_array_equal(grey == grey.max(), cut == 400)


def test_box_edges_and_extents_are_in_millimetres(picture):
    shown = scene(picture, box=BOX)
    assert shown.extent(0) == pytest.approx((44 * 0.5, 40 * 0.5))
    assert shown.extent(1) == pytest.approx((44 * 0.5, 12 * 0.7))
    assert shown.box_edges(0) == pytest.approx((22 * 0.5, 31 * 0.5, 10 * 0.5, 21 * 0.5))
    assert shown.box_edges(2) == pytest.approx((10 * 0.5, 21 * 0.5, 5 * 0.7, 9 * 0.7))


def test_structures_are_ranked_around_the_box(picture, labels):
    assert scene(picture, labels, BOX).ranked_ids() == [5]
    assert set(scene(picture, labels).ranked_ids()) == {5, 9, 200}
    assert scene(picture, labels).names == {5: "patella lateral", 9: "tibia", 200: "200"}


def test_one_huge_stray_label_costs_no_more_than_others(picture, labels):
    array = labels.nifti.get_fdata().astype("u4")
    array[0, 0, 0] = 2**32 - 1
    stray = KneeVolume(None, gzip_bytes(array), mask=True)
    shown = scene(picture, stray)
    assert shown.ranked_ids() == [*scene(picture, labels).ranked_ids(), 2**32 - 1]
    assert set(shown.names) == {5, 9, 200, 2**32 - 1}


def test_a_mask_on_another_grid_is_brought_onto_the_image(picture, labels):
    flipped = KneeVolume(
        None, gzip_bytes(labels.nifti.get_fdata().astype("u1")[:, ::-1], _flipped()), mask=True
    )
    np.testing.assert_array_equal(scene(picture, flipped).labels, scene(picture, labels).labels)


def _flipped():
    flip = np.diag([1.0, -1, 1, 1])
    flip[1, 3] = SHAPE[1] - 1
    return PIR @ flip


# --- pictures -----------------------------------------------------------------------------------------------


def test_picture_has_box_outlines_and_text(picture, labels, tmp_path):
    out = tmp_path / "case.png"
    words = {
        "title": "row 1",
        "question": "Where? $x_1$ & <b>",
        "answer": "size: 2",
        "text": "Because. " * 200,
    }
    data = draw_case(picture, mask=labels, box=BOX, out=out, **words)
    assert out.read_bytes() == data
    assert has_colour(data, BOX_COLOUR, 500)
    assert has_colour(data, COLOURS[0], 500)
    assert not has_colour(draw_case(picture), BOX_COLOUR, 1)
    long, short = pixels(data).shape, pixels(draw_case(picture, mask=labels, box=BOX, title="row 1")).shape
    assert long[1] == short[1]
    assert long[0] > short[0] + 200  # text makes the picture longer, it is not cut


def test_picture_formats_follow_the_name(picture, tmp_path):
    draw_case(picture, out=tmp_path / "case.pdf")
    assert (tmp_path / "case.pdf").read_bytes().startswith(b"%PDF")


def test_box_that_leaves_the_volume_is_an_error(picture):
    with pytest.raises(RecordError, match="leaves the volume"):
        draw_case(picture, box=[0, 12, 0, 1, 0, 1])


def test_notebooks_show_volumes_masks_and_errors(picture, labels):
    for volume in (picture, labels):
        text = volume._repr_html_()
        assert "12 x 40 x 44 voxels of 0.7 x 0.5 x 0.5 mm" in text
        encoded = re.search(r"base64,([^\"]+)", text)[1]
        assert pixels(base64.b64decode(encoded)).shape[1] == 720
    assert "VolumeMissingError" in KneeVolume("/nowhere/<a>.nii")._repr_html_()
    assert "<a>" not in KneeVolume("/nowhere/<a>.nii")._repr_html_()


def test_without_matplotlib_the_extra_is_named(picture, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(ExtraMissingError, match=r"reasonknee_hf\[viz\]"):
        draw_case(picture)
    assert "reasonknee_hf[viz]" in picture._repr_html_()


# --- pages --------------------------------------------------------------------------------------------------

EVIL = "</script><script>alert(1)</script> @DATA@ & <b>"


def facts_of(page):
    return json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.S)[1])


def test_page_holds_the_exact_labels_and_nearly_the_grey_values(picture, labels):
    page = case_page(picture, mask=labels, box=BOX, title=EVIL, question=EVIL)
    facts = facts_of(page)
    shown = scene(picture, labels, BOX)
    assert facts["shape"] == [12, 40, 44]
    [case] = facts["cases"]
    assert (case["box"], case["rowBox"], case["start"]) == (shown.box, BOX, list(shown.center))
    assert facts["affine"] == shown.volume.oriented("LPI").affine.tolist()
    for name, expected, tolerance in (("labels", shown.labels, 0), ("grey", None, 40)):
        sheet = np.asarray(Image.open(BytesIO(base64.b64decode(facts[name].split(",")[1]))))
        columns = facts["columns"]
        for index in range(12):
            row, column = divmod(index, columns)
            tile = sheet[row * 44 : row * 44 + 44, column * 40 : column * 40 + 40].astype(int)
            want = shown.picture(0, index) if expected is None else expected[index].T
            tile = tile if tile.ndim == 2 else tile[..., 0] + 256 * tile[..., 1]
            assert np.abs(tile - want).max() <= tolerance
    assert {s["code"]: s["name"] for s in facts["structures"]} == {
        5: "patella lateral",
        9: "tibia",
        200: "200",
    }
    assert case["ranked"] == [5]


@pytest.mark.parametrize(("ids", "codes"), [((300, 60000), (300, 60000)), ((300, 2**32 - 1), (1, 2))])
def test_labels_above_one_byte_are_in_the_page(picture, ids, codes):
    array = np.zeros(SHAPE, np.uint32)
    array[:5], array[10:20] = ids
    facts = facts_of(case_page(picture, mask=KneeVolume(None, gzip_bytes(array), mask=True)))
    sheet = np.asarray(Image.open(BytesIO(base64.b64decode(facts["labels"].split(",")[1])))).astype(int)
    assert set(np.unique(sheet[..., 0] + 256 * sheet[..., 1])) == {0, *codes}
    assert [(s["code"], s["name"]) for s in facts["structures"]] == [
        (c, str(i)) for c, i in zip(codes, ids, strict=True)
    ]


def test_numbers_are_those_of_the_row(picture):
    shown = scene(picture, box=BOX)
    assert shown.center == (6, 15, 26)
    captions = [shown.caption(plane, shown.center[PLANES[plane][1]]) for plane in range(3)]
    # the file grows to the right, the picture to the left: its index 6 is slice 5
    assert captions == ["sagittal, slice 5 of 0..11", "coronal, x 15 of 0..39", "axial, y 26 of 0..43"]
    facts = facts_of(case_page(picture, box=BOX))
    assert facts["axes"] == [["slice", 11, -1], ["x", 0, 1], ["y", 0, 1]]
    low, high = np.percentile(picture.array(), [1, 99], method="lower")
    assert facts["window"] == [low, high]


def test_other_rows_of_the_volume_are_in_the_page(picture, labels):
    others = {
        "before": [{"box": [0, 1, 0, 1, 0, 1], "title": "first"}],
        "after": [{"box": [0, 99, 0, 1, 0, 1]}],
    }
    facts = facts_of(case_page(picture, mask=labels, box=BOX, title="second", **others))
    first, second, third = facts["cases"]
    assert (facts["first"], first["title"], second["title"]) == (1, "first", "second")
    assert first["box"] == [10, 11, 0, 1, 0, 1]
    assert third["box"] is None
    assert "leaves the volume" in third["texts"][0][1]


@pytest.mark.parametrize("plane", [0, 1, 2])
def test_previews_show_the_box_at_its_place(picture, plane):
    drawn = side_by_side(scene(picture, box=BOX), 192)[:, 192 * plane : 192 * (plane + 1)]
    shown = scene(picture, box=BOX)
    red = (drawn == BOX_RGB).all(axis=-1)
    rows, columns = np.nonzero(red)
    scale = 192 / max(shown.extent(plane))
    height, width = (length * scale for length in shown.extent(plane))
    edges = np.array(shown.box_edges(plane)) * scale
    found = [rows.min() - (192 - height) / 2, rows.max() + 1 - (192 - height) / 2]
    found += [columns.min() - (192 - width) / 2, columns.max() + 1 - (192 - width) / 2]
    assert np.abs(edges - found).max() <= 1.5
    inside = drawn[rows.min() + 2 : rows.max() - 1, columns.min() + 2 : columns.max() - 1]
    assert inside.min() == 255  # the bright block fills the box


def test_masks_are_shown_in_colours_and_letters_have_edges(picture, labels):
    from reasonknee_hf.look.figures import draw_volume

    drawn = draw_volume(labels)
    assert has_colour(drawn, COLOURS[0], 500)
    letters = draw_volume(KneeVolume(None, gzip_bytes(np.full(SHAPE, 400, np.int16) + voxels_of_noise())))
    assert has_colour(letters, "#ffe9a8", 20)
    assert has_colour(letters, "#000000", 60)  # the edges of the letters; the volume itself is bright


def voxels_of_noise():
    noise = np.zeros(SHAPE, np.int16)
    noise[:2] = -400
    return noise


def test_page_asks_for_nothing_from_outside_and_escapes_text(picture, labels):
    page = case_page(picture, mask=labels, box=BOX, title=EVIL, question=EVIL, text=EVIL)
    assert not re.search(r"https?:|//[a-z]|@import|src=(?!\"data:)", re.sub(r"base64,[^\"]+", "", page))
    assert "alert(1)</script>" not in page
    assert page.count("<script") == 2


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def browse(page, tmp_path, script=""):
    """The document as a browser leaves it, with no way to any network."""
    file = tmp_path / "page.html"
    file.write_text(page.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
        f"--user-data-dir={tmp_path / 'profile'}", "--host-resolver-rules=MAP * ~NOTFOUND",
        "--virtual-time-budget=10000", "--dump-dom", file.as_uri(),
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=120).stdout


@pytest.mark.skipif(CHROMIUM is None, reason="needs the browser Chromium")
def test_a_browser_shows_the_page_and_sliders_move_it(picture, labels, tmp_path):
    wait = """
      const timer = setInterval(() => {
        if (!document.body.dataset.state) return;
        clearInterval(timer);
        const numbers = () => [...document.querySelectorAll("figcaption")].map(c => c.textContent);
        const means = () => [...document.querySelectorAll("canvas")].map(c => Number(c.dataset.mean));
        const seen = [means()];
        document.querySelectorAll("input[type=range]").forEach(slider => {
          slider.value = 2;
          slider.dispatchEvent(new Event("input"));
        });
        seen.push(means());
        const told = [document.getElementById("place").textContent, ...numbers()];
        const press = new PointerEvent("pointerdown", { clientX: 0, clientY: 0, buttons: 1 });
        document.querySelector("canvas").dispatchEvent(press);
        document.getElementById("next").click();
        told.push(document.title, ...["box", "texts"].map(name => document.getElementById(name).textContent));
        told.push(...numbers());
        document.getElementById("larger").click();
        document.querySelector("canvas").dispatchEvent(new WheelEvent("wheel", { deltaY: 1 }));
        told.push(numbers()[0]);
        document.body.dataset.seen = JSON.stringify(seen);
        document.body.dataset.told = JSON.stringify(told);
      }, 50);"""
    after = [{"box": [0, 1, 2, 3, 4, 5], "title": "another", "question": EVIL}]
    page = case_page(picture, mask=labels, box=BOX, title=EVIL, after=after, quality=95)
    document = browse(page, tmp_path, wait)
    assert 'data-state="ready"' in document, document[-2000:]
    shown = scene(picture, labels, BOX)
    seen = json.loads(re.search(r'data-seen="([^"]+)"', document)[1])
    for means, indices in zip(seen, (shown.center, (2, 2, 2)), strict=True):
        expected = [shown.picture(plane, indices[plane]).mean() for plane in range(3)]
        assert means == pytest.approx(expected, abs=1.5)
    told = json.loads(html.unescape(re.search(r'data-told="([^"]+)"', document)[1]))
    assert told[0].startswith("slice 9, x 2, y 2 | ")
    assert told[1:4] == ["sagittal, slice 9 of 0..11", "coronal, x 2 of 0..39", "axial, y 2 of 0..43"]
    assert told[4] == "another"
    assert told[5].startswith("box [0, 1, 2, 3, 4, 5]")
    assert EVIL in told[6]
    assert told[7:10] == ["sagittal, slice 1 of 0..11", "coronal, x 2 of 0..39", "axial, y 4 of 0..43"]
    assert told[10] == "sagittal, slice 0 of 0..11"
    world = picture.affine @ [9, 2, 2, 1]
    assert ", ".join(f"{place:.1f}" for place in world[:3]) in told[0]
    assert "patella lateral" in document


# --- the command --------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def sample_row():
    from reasonknee_hf.dataset.loading import load_dataset

    return next(iter(load_dataset("full", split="train", streaming=True, source="sample")))


def test_show_draws_rows_and_scans_of_the_sample(sample_row, tmp_path, capsys):
    for wanted, extra in (
        (sample_row["id"], []),
        (sample_row["scan_id"], []),
        (sample_row["id"], ["--html"]),
    ):
        out = tmp_path / "sub" / f"x{len(extra)}.{'html' if extra else 'png'}"
        assert main(["show", wanted, "--source", "sample", "--out", str(out), *extra]) == 0
        assert capsys.readouterr().out.strip() == str(out)
        if extra:
            assert sample_row["prompt"][:40] in out.read_text(encoding="utf-8")
        else:
            assert has_colour(out.read_bytes(), BOX_COLOUR, 200) == (wanted == sample_row["id"])


@pytest.mark.parametrize("wanted", ["nobody", "9000001_00M_1_1_1_1", "_", ""])
def test_show_of_an_unknown_id_is_one_line(wanted, capsys):
    assert main(["show", wanted, "--source", "sample"]) == 1
    assert "no row and no scan has the id" in capsys.readouterr().err


def test_show_without_masks(sample_row, tmp_path):
    row = find_row(sample_row["id"], source="sample", masks=False)
    draw_row(row, tmp_path / "x.png")
    assert not has_colour((tmp_path / "x.png").read_bytes(), COLOURS[2], 100)


def test_a_row_without_volume_says_where_volumes_come_from(tmp_path):
    with pytest.raises(VolumeMissingError, match=r"row 9.*--images"):
        draw_row({"id": "row 9", "image": None}, tmp_path / "x.png")


def test_a_scan_without_that_question_is_an_error(sample_row):
    with pytest.raises(OptionError, match="has no such row"):
        find_row(f"{sample_row['scan_id']}_999", source="sample")
