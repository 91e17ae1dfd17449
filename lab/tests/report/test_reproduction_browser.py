"""The page of a reproduction in a real browser: with a mouse, with keys, on a phone, in the dark and on paper."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reproduction_example import CLAIMS, example, leave
from repulse_lab.report.reproduction import spans, write_report
from repulse_lab.study.claims import JudgedClaim

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

CHROMIUM = shutil.which("chromium")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage"]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(leave(tmp_path_factory.mktemp("out") / "cpu", CLAIMS))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not there: pip install playwright")
    if not CHROMIUM:
        pytest.skip("chromium is not there: this test needs a real browser")
    with playwright.sync_playwright() as tool:
        browser = tool.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def tab(browser: Browser) -> Page:
    page = browser.new_page(reduced_motion="reduce")
    page.set_default_timeout(20_000)  # a busy machine is slow
    return page


@pytest.fixture
def page(tab: Page, written: Path) -> Iterator[Page]:
    """The page on a desktop; whatever it complains about or asks the network for fails the test."""
    tab.set_viewport_size({"width": 1280, "height": 900})
    tab.emulate_media(media="screen", color_scheme="light")
    trouble: list[str] = []
    listeners = {
        "console": lambda message: trouble.append(message.text),
        "pageerror": lambda error: trouble.append(str(error)),
        "request": lambda request: trouble.append(request.url) if not request.url.startswith("data:") else None,
    }
    for event, listener in listeners.items():
        tab.on(event, listener)
    tab.goto(written.as_uri())
    tab.wait_for_selector(".plot svg")
    yield tab
    tab.evaluate("localStorage.clear()")
    for event, listener in listeners.items():
        tab.remove_listener(event, listener)
    assert trouble == [written.as_uri()]


def settle(page: Page) -> None:
    """Let what follows a scroll or a new size happen; waiting for a condition would need what the page forbids."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def names(page: Page, table: int = 0) -> list[str]:
    return page.locator(".results").nth(table).locator("tbody th").all_inner_texts()


def test_tables_sort_by_click_and_key_and_find_back(page):
    box, original = page.locator(".results").first, names(page)
    ece = box.locator("thead th").nth(3)
    ece.get_by_role("button").click()
    assert ece.get_attribute("aria-sort") == "ascending"  # the lower the better: best first
    assert names(page)[0] == "fs-RLL-E, training data"
    assert names(page)[-1] == "SNGP"  # has no number
    ece.get_by_role("button").press("Enter")
    assert ece.get_attribute("aria-sort") == "descending"
    assert names(page)[-1] == "SNGP"
    assert names(page)[0] in ("MAP", "DDU")
    ece.get_by_role("button").press("Space")
    assert ece.get_attribute("aria-sort") is None
    assert names(page) == original
    box.locator("thead th").nth(4).get_by_role("button").click()
    assert names(page)[0] == "deep ensemble"
    assert box.locator("[aria-sort]").count() == 1
    box.get_by_role("button", name="Original order").click()
    assert names(page) == original
    assert not box.locator(".restore").is_visible()
    last = page.locator(".results").nth(2)
    last.locator("thead button").first.click()
    assert names(page, 2)[1:] == ["item 9", "item 10"]  # numbers in names count as numbers


def readout(page: Page) -> str:
    return page.locator("#readout").inner_text() if page.locator("#readout").is_visible() else ""


def point(panel: Locator, across: float, down: float) -> None:
    panel.scroll_into_view_if_needed()
    settle(panel.page)
    box = panel.bounding_box()
    panel.page.mouse.move(box["x"] + across * box["width"], box["y"] + down * box["height"])


def test_pointing_at_a_point_shows_its_image(page):
    group = example()[1].figures[0].panels[1].groups[2]
    panel = page.locator("#histograms .plot").nth(1)
    point(panel, 0.22, 0.4)
    image = page.locator("#readout img")
    assert image.get_attribute("src").removeprefix("data:image/png;base64,") in group.images
    assert image.evaluate("image => image.decode().then(() => image.naturalWidth)") == 28
    assert image.evaluate("image => getComputedStyle(image).imageRendering") == "pixelated"
    assert image.bounding_box()["width"] >= 100
    index = group.images.index(image.get_attribute("src").partition(",")[2])
    assert "fashionMNIST" in readout(page)
    assert f"{group.x[index]:.2f}" in readout(page)
    assert f"{group.y[index]:.2f}" in readout(page)
    page.mouse.move(2, 2)
    assert readout(page) == ""
    panel.focus()
    panel.press("ArrowRight")
    first = page.locator("#spoken").inner_text()
    panel.press("ArrowUp")
    assert first
    assert page.locator("#spoken").inner_text() != first


def test_pointing_at_lines_reads_all_of_them(page):
    panel = page.locator("#corruption .plot").first
    point(panel, 0.52, 0.3)
    source = example()[2].figures[0].panels[0].lines
    assert "severity 3" in readout(page)
    for line in source:
        assert line.name in readout(page)
        assert f"{line.y[2]:.1f}" in readout(page)
        assert f"{line.low[2]:.1f} to {line.high[2]:.1f}" in readout(page)
    panel.focus()
    panel.press("ArrowRight")
    assert "severity 4" in readout(page)
    assert "severity 4" in page.locator("#spoken").inner_text()
    panel.press("End")
    assert "severity 5" in readout(page)
    panel.press("Escape")
    assert readout(page) == ""
    page.locator("#corruption .plot").nth(2).focus()
    page.keyboard.press("Home")
    assert "mean of 16" in readout(page)


def test_heat_maps_tell_their_values(page):
    panel = page.locator("#histograms .plot").nth(2)
    panel.focus()
    panel.press("ArrowRight")
    values = example()[1].figures[1].panels[0].values
    first = panel.evaluate("() => document.getElementById('readout').innerText")
    assert any(f"inputs: {value}" in first for value in values[0][:2])
    panel.press("ArrowUp")
    assert any(f"inputs: {value}" in readout(page) for value in values[1][:2])


def test_the_legend_hides_and_shows_in_all_panels(page):
    figure = page.locator("#corruption figure")
    key = figure.get_by_role("button", name="fs-RLL-E")
    assert figure.locator("[data-name='fs-RLL-E']").count() == 2
    key.click()
    assert key.get_attribute("aria-pressed") == "false"
    assert figure.locator("[data-name='fs-RLL-E']").count() == 0
    figure.locator(".plot").first.focus()
    page.keyboard.press("Home")
    assert "MAP" in readout(page)
    assert "fs-RLL-E" not in readout(page)
    key.press("Enter")
    assert key.get_attribute("aria-pressed") == "true"
    assert figure.locator("[data-name='fs-RLL-E']").count() == 2


def test_hiding_points_takes_their_ink_away(page):
    ink = """() => { const canvas = document.querySelectorAll("#histograms canvas")[1];
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        return data.filter((value, i) => i % 4 == 3 && value).length }"""
    before = page.evaluate(ink)
    page.locator("#histograms figure").first.get_by_role("button", name="fashionMNIST").click()
    assert 0 < page.evaluate(ink) < 0.8 * before


def test_claims_filter_by_verdict(page):
    shown = page.locator(".claim:visible")
    assert shown.count() == 6
    page.locator(".pill", has_text="confirmed").first.click()
    assert shown.count() == 3
    assert set(shown.locator(".badge").all_inner_texts()) == {"confirmed"}
    assert page.locator("#shown").inner_text() == "3 claims shown"
    page.locator(".strip a").last.click()  # leads to a claim that is hidden
    assert shown.count() == 6
    assert page.locator(".pill[aria-pressed=true]").inner_text().startswith("All")
    ruler = page.locator(".claim .ruler").first.bounding_box()
    dot = page.locator(".claim .dot").first.bounding_box()
    at = spans(JudgedClaim(**CLAIMS[0]), [JudgedClaim(**claim) for claim in CLAIMS])["effect"]
    assert dot["x"] + dot["width"] / 2 - ruler["x"] == pytest.approx(ruler["width"] * at / 100, abs=1.5)


@pytest.mark.parametrize("width", [360, 800])
def test_nothing_sticks_out_on_a_narrow_screen(page, width):
    page.set_viewport_size({"width": width, "height": 780})
    page.locator(".live details summary").first.click()
    settle(page)
    assert page.evaluate("document.querySelector('.plot svg').viewBox.baseVal.width < innerWidth")
    assert page.evaluate("document.scrollingElement.scrollWidth") <= width
    table = page.locator(".results .scroll").first
    table.evaluate("box => box.scrollLeft = 200")
    if width == 360:
        assert table.evaluate("box => box.scrollLeft") == 200
        left = table.bounding_box()["x"]
        assert table.locator("tbody th").first.bounding_box()["x"] == pytest.approx(left, abs=1)


CONTRAST = """() => {
  const context = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const over = (colours) => { context.clearRect(0, 0, 1, 1);
    for (const colour of colours) { context.fillStyle = colour; context.fillRect(0, 0, 1, 1); }
    return [...context.getImageData(0, 0, 1, 1).data]; };
  const linear = (v) => (v <= 10.31 ? v / 3294.6 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const says = (element) => [...element.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
  const seen = new Map();
  for (const element of document.querySelectorAll("body *:not(script, style, .unseen, svg *)")) {
    if (!says(element) || !element.checkVisibility()) continue;
    const backs = [];
    for (let up = element; up; up = up.parentElement) backs.unshift(getComputedStyle(up).backgroundColor);
    const ink = getComputedStyle(element).color;
    const id = backs.join() + ink;
    if (seen.has(id)) continue;
    const [a, b] = [light(over(backs)), light(over([...backs, ink]))];
    const name = element.className + " " + element.textContent.slice(0, 20);
    seen.set(id, [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), name]);
  }
  return [...seen.values()];
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_light_and_dark(page, scheme):
    back = "() => getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(back)
    page.emulate_media(color_scheme=scheme)
    assert (page.evaluate(back) == light) == (scheme == "light")
    found = page.evaluate(CONTRAST)
    assert len(found) > 15
    assert [name for contrast, name in found if contrast < 4.5] == []
    button = page.locator("#theme")
    before = page.evaluate(back)
    button.click()
    assert page.evaluate(back) != before
    assert button.inner_text() == scheme.capitalize()


def test_paper_has_all_and_nothing_to_press(page):
    page.locator(".pill", has_text="undecided").click()
    page.get_by_role("button", name="Paper’s numbers").click()
    assert not page.locator("td .paper").first.is_visible()
    assert not page.locator("figure.live details td").first.is_visible()
    page.emulate_media(media="print", color_scheme="dark")
    settle(page)
    assert page.locator("details:not([open])").count() == 0
    assert page.locator(".claim:visible").count() == 6
    assert page.locator("td .paper").first.is_visible()
    assert page.locator("figure.live details td").first.is_visible()
    assert page.locator("button.quiet:visible, .pill:visible").count() == 0
    assert page.evaluate("() => getComputedStyle(document.querySelector('nav')).position") == "static"
    assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_a_keyboard_reaches_all(page):
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    for role in ("banner", "navigation", "main", "contentinfo"):
        assert page.get_by_role(role).count() == 1
    unnamed = """() => [...document.querySelectorAll("button, a, [tabindex], figure, nav, section, table")]
        .filter((element) => !(element.textContent || element.ariaLabel || "").trim())
        .map((element) => element.outerHTML.slice(0, 80))"""
    assert page.evaluate(unnamed) == []
    assert page.evaluate("document.documentElement.lang") == "en"
