"""The page on which to draw a digit, in a real browser: what it shows is what the exported file computes."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent / "page"
CHROMIUM = shutil.which("chromium")

ZERO = [[(0.5 + 0.2 * math.cos(i / 6), 0.5 + 0.32 * math.sin(i / 6)) for i in range(38)]]
FOUR = [[(0.55, 0.15), (0.3, 0.6), (0.72, 0.6)], [(0.6, 0.4), (0.58, 0.88)]]
SCRIBBLE = [[(0.1 + 0.8 * (i % 2), 0.1 + 0.8 * i / 14) for i in range(15)]]


@pytest.fixture(scope="module")
def browser():
    if not (PAGE / "index.html").exists():
        pytest.skip("page/index.html is not there: run `make page` first")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not there: pip install playwright")
    if not CHROMIUM:
        pytest.skip("chromium is not there: this test needs a real browser")
    with playwright.sync_playwright() as tool:
        yield tool.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])


def drawn(page, strokes) -> dict:
    """Clear the pad, draw with the mouse, and return what the page computed."""
    page.click("#clear")
    page.evaluate("window.latest = null")
    box = page.locator("#pad").bounding_box()
    for stroke in strokes:
        places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in stroke]
        page.mouse.move(*places[0])
        page.mouse.down()
        for place in places[1:]:
            page.mouse.move(*place, steps=4)
        page.mouse.up()
    page.wait_for_function("window.latest && window.latest.strokes === window.drawn()")
    return page.evaluate("window.latest")


def test_what_is_drawn_gets_a_label_and_both_doubts(browser):
    numpy, onnxruntime = pytest.importorskip("numpy"), pytest.importorskip("onnxruntime")
    page = browser.new_page()
    page.set_default_timeout(120_000)  # a busy machine is slow
    trouble: list[str] = []
    asked: list[str] = []
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto((PAGE / "index.html").as_uri())
    page.wait_for_function("document.getElementById('verdict').textContent === 'Draw a digit.'")
    session = onnxruntime.InferenceSession(PAGE / "model.onnx")
    found = {name: drawn(page, strokes) for name, strokes in (("zero", ZERO), ("four", FOUR), ("none", SCRIBBLE))}
    for one in found.values():
        inputs = numpy.array(one["input"], dtype="float32").reshape(1, 1, 8, 8)
        wanted = session.run(["probs", "aleatoric", "epistemic"], {"input": inputs})
        assert one["probs"] == pytest.approx(wanted[0][0].tolist(), abs=1e-4)
        assert [one["aleatoric"], one["epistemic"]] == pytest.approx([float(w[0]) for w in wanted[1:]], abs=1e-4)
    assert numpy.argmax(found["zero"]["probs"]) == 0
    assert numpy.argmax(found["four"]["probs"]) == 4
    assert found["none"]["epistemic"] > 10 * max(found["zero"]["epistemic"], found["four"]["epistemic"])
    assert page.locator("#verdict").inner_text().startswith("Nothing like")
    assert page.locator("#epistemic output").inner_text() == f"{found['none']['epistemic']:.2f}"
    assert trouble == []
    assert all(url.startswith(("file:", "blob:", "data:")) for url in asked)  # nothing leaves the page
