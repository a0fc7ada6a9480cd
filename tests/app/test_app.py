"""A case opens, slices move, the box is where the voxels are, keys work, and no request leaves the machine."""

from __future__ import annotations

from urllib.parse import urlsplit

import numpy as np
import pytest

INNER = "inner"


@pytest.fixture
def page(opened):
    """The app with its first case open."""
    browser = opened.browser
    browser.until("!!window.shown || typeof shown !== 'undefined' && !!shown", INNER)
    browser.until("document.querySelector('#case')?.innerText.includes('Question')")
    return browser


def number_of(browser) -> int:
    return browser.evaluate("facts.cases.indexOf(shown)", INNER)


def go_to(browser, number: int) -> None:
    while number_of(browser) != number:
        step = "next" if number_of(browser) < number else "previous"
        before = number_of(browser)
        browser.click(f"#{step}-question")
        browser.until(f"facts.cases.indexOf(shown) !== {before}", INNER)


def test_a_case_opens_with_its_words(opened, page):
    text = page.evaluate("document.querySelector('#case').innerText")
    row = opened.rows[number_of(page)]
    assert row["prompt"].split("\n")[0][:60] in text
    assert row["cot"].split("\n")[0][:60] in text
    assert "base" in text
    assert "tuned" in text


def test_the_slider_moves_the_slice(page):
    before = page.evaluate("[...at]", INNER)
    page.evaluate(
        "(() => { const s = document.querySelector('input[type=range]'); s.value = +s.value + 3;"
        " s.dispatchEvent(new Event('input', {bubbles: true})); })()",
        INNER,
    )
    after = page.evaluate("[...at]", INNER)
    assert sum(one != other for one, other in zip(before, after, strict=True)) == 1


def test_the_box_is_that_of_the_row_on_the_voxels(opened, page):
    go_to(page, 3)
    row = opened.rows[3]
    box = page.evaluate("shown.box", INNER)
    inside = page.evaluate(
        "(() => { const [a, b, c] = facts.shape; const i = (x, y, z) => grey[(x * b + y) * c + z];"
        " const box = shown.box; let sum = 0, n = 0;"
        " for (let x = box[0]; x <= box[1]; x++) for (let y = box[2]; y <= box[3]; y++)"
        " for (let z = box[4]; z <= box[5]; z++) { sum += i(x, y, z); n++; } return [sum / n, n]; })()",
        INNER,
    )
    crop = row["image"].crop(row["bbox"])
    assert inside[1] == crop.size
    assert sorted(box[i + 1] - box[i] for i in (0, 2, 4)) == sorted(length - 1 for length in crop.shape)
    low, high = page.evaluate("facts.window", INNER)
    shades = np.clip((crop.astype(float) - low) / (high - low), 0, 1) * 255
    assert inside[0] == pytest.approx(shades.mean(), abs=3)  # the page holds a JPEG


def test_keys_go_to_the_next_question_and_through_slices(page):
    go_to(page, 0)
    page.evaluate("document.activeElement.blur()")
    page.press("n")
    page.until("facts.cases.indexOf(shown) === 1", INNER)
    page.until("document.querySelector('#question input')?.value.startsWith('2.')")
    page.press("p")
    page.until("facts.cases.indexOf(shown) === 0", INNER)


def test_two_runs_stand_item_by_item(opened, page):
    go_to(page, 2)
    page.until("state.others.length > 0 || shown.box === null", INNER)
    names = page.evaluate("state.others.map(o => o.name)", INNER)
    if opened.rows[2]["bbox"]:
        assert names == ["box of base", "box of tuned"]
        own = page.evaluate("shown.box", INNER)
        boxes = page.evaluate("state.others.map(o => o.box)", INNER)
        assert boxes[1] == own
        assert boxes[0] != own
    page.until("document.querySelector('#case').innerText.includes('outcome')")


def test_no_request_leaves_the_machine(opened, page):
    page.picture(opened.folder / "app.png")
    hosts = {
        urlsplit(url).hostname for url in page.requests if not url.startswith(("data:", "blob:", "about:"))
    }
    assert hosts == {"127.0.0.1"}
    assert page.faults == []


def test_another_dataset_opens_too():
    from reasonknee_app import Cases
    from reasonknee_app.texts import case_text

    cases = Cases("deeptumorvqa", source="sample")
    for split in ("test", "train"):
        case = cases.case(split, cases.scan_ids(split)[0])
        assert case.page is not None
        text = case_text(case.rows[0], {})
        assert "Options" in text
        assert case.rows[0]["answer"] in text


def test_questions_of_another_dataset_are_told_by_its_own_columns():
    from reasonknee_app import Cases
    from reasonknee_app.screen import _Screen

    cases = Cases("deeptumorvqa", source="sample")
    screen = _Screen(cases, [])
    scan = cases.scan_ids("test")[0]
    _, table = screen.questions("test", scan, "any", "any", 0, False, None, None)
    rows = table.value["data"]
    assert all(all(str(cell) for cell in line[:3]) for line in rows)
    _, some = screen.questions("test", scan, "recognition", "any", 0, False, None, None)
    assert 0 < len(some.value["data"]) < len(rows)
    assert not screen.graded
