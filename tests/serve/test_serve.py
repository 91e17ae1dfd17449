"""The service: what it answers, what it refuses, how it batches; and its page in a real browser."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import shutil
import threading
import time
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from own_data import picture, write_images, write_rows
from repulse import ClassPrediction, DataError, cli
from repulse.files.opening import open_heads
from repulse.serve.batching import Batcher, FullError
from repulse.serve.requests import Limits, RefusedError, _in_json

pytest.importorskip("fastapi")
from fastapi.testclient import TestClient

from repulse.serve.app import create_app
from repulse.serve.server import listen

CHROMIUM = shutil.which("chromium")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage"]


def fitted(folder: Path, *arguments: object) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("repulse.particles.loop.MIN_STEPS", 20)
        done = CliRunner().invoke(cli.app, ["fit", *map(str, arguments), "--out", str(folder / "heads")])
    assert done.exit_code == 0, done.output
    return folder / "heads"


@pytest.fixture(scope="module")
def heads(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    return fitted(folder, "own_data:image_network", write_images(folder / "pets"))


@pytest.fixture(scope="module")
def client(heads):
    app = create_app(heads, limits=Limits(bytes=20_000, samples=3))
    with TestClient(app, base_url="http://localhost") as client:
        yield client


def encoded(*images: bytes) -> dict[str, list[str]]:
    return {"images": [base64.b64encode(image).decode() for image in images]}


def test_images_in_json_as_a_file_and_as_a_form_are_the_same(client, heads):
    answers = [
        client.post("/predict", json=encoded(picture(0), picture(7))),
        client.post("/predict", content=picture(0), headers={"content-type": "image/png"}),
        client.post("/predict", files=[("a", ("a.png", picture(0))), ("b", ("b.png", picture(7)))]),
    ]
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    both, one, form = (answer.json()["predictions"] for answer in answers)
    ensemble, prepare, _ = open_heads(heads)
    wanted = ensemble.predict(prepare([picture(0), picture(7)]))
    assert isinstance(wanted, ClassPrediction)
    assert [row["epistemic"] for row in both] == pytest.approx(wanted.epistemic.tolist(), abs=1e-5)
    assert [row["prediction"] for row in both] == [("cat", "dog")[i] for i in wanted.labels.tolist()]
    assert both[0]["total"] == pytest.approx(both[0]["aleatoric"] + both[0]["epistemic"], abs=1e-5)
    assert sum(both[0]["probs"].values()) == pytest.approx(1, abs=1e-5)
    assert one[0]["confidence"] == pytest.approx(both[0]["confidence"], abs=1e-5)
    assert [row["total"] for row in form] == pytest.approx([row["total"] for row in both], abs=1e-5)


def test_reasons_are_those_of_the_ensemble(client, heads):
    answer = client.post("/why", json=encoded(picture(0), picture(7)))
    assert answer.status_code == 200, answer.text
    ensemble, prepare, _ = open_heads(heads)
    wanted = ensemble.why(prepare([picture(0), picture(7)]))
    told = answer.json()["reasons"]
    assert [(one["label"], one["votes"]) for one in told] == [(one.label, one.votes) for one in wanted]
    assert [near["index"] for near in told[0]["nearest"]] == [near.index for near in wanted[0].nearest]
    assert told[0]["text"].startswith(f"{wanted[0].label} (")
    assert client.post("/why", json={"images": []}).status_code == 422


@pytest.mark.parametrize(
    ("sent", "status", "said"),
    [
        ({"json": {"texts": ["a"]}}, 422, 'Expected JSON such as {"images": [...]}'),
        ({"json": {"images": "a"}}, 422, 'Expected "images" to be a list'),
        ({"json": {"images": ["§"]}}, 422, "files in base64"),
        ({"json": {"images": []}}, 422, "at least one sample"),
        ({"content": b"[" * 9000}, 422, "something else"),
        ({"json": encoded(*[picture(0)] * 4)}, 413, "at most 3 samples in a request, but got 4."),
        ({"content": b"x" * 20_001, "headers": {"content-type": "image/png"}}, 413, "at most 20,000 bytes"),
        ({"content": b"no image", "headers": {"content-type": "image/png"}}, 422, "to be a whole image"),
        ({"content": b"a,b", "headers": {"content-type": "text/csv"}}, 415, "but got text/csv."),
        ({"files": [(f"{i}", ("a.png", picture(0))) for i in range(4)]}, 422, "a form with at most as many files"),
    ],
)
def test_what_is_refused(client, sent, status, said):
    answer = client.post("/predict", **sent)
    assert (answer.status_code, said in answer.json()["error"]) == (status, True), answer.text


def test_a_small_file_with_many_pixels_is_refused_before_it_is_opened(heads, monkeypatch):
    app = create_app(heads, limits=Limits(pixels=100))
    monkeypatch.setattr("repulse.files.networks.open_image", lambda value: pytest.fail("opened"))
    with TestClient(app, base_url="http://localhost") as client:
        answer = client.post("/predict", content=picture(0), headers={"content-type": "image/png"})
    assert (answer.status_code, "at most 100 pixels" in answer.json()["error"]) == (413, True), answer.text


def test_an_image_that_pillow_calls_a_bomb_is_refused(client, monkeypatch):
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 10)
    answer = client.post("/predict", content=picture(0), headers={"content-type": "image/png"})
    assert (answer.status_code, "pixels" in answer.json()["error"]) == (413, True), answer.text


def test_texts_of_a_request_are_strings():
    assert _in_json(b'{"texts": ["a", "b"]}', "texts") == ["a", "b"]
    with pytest.raises(RefusedError, match='Expected "texts" to be strings'):
        _in_json(b'{"texts": ["a", 3]}', "texts")


def test_the_command_listens_and_says_how_to_ask(heads, monkeypatch):
    asked = []

    def run(server, sockets):
        with TestClient(server.config.app, base_url=f"http://{sockets[0].getsockname()[0]}") as client:
            asked.append(client.get("/health").status_code)

    monkeypatch.setattr("uvicorn.Server.run", run)
    for host, said in (("127.0.0.1", 0), ("0.0.0.0", 1)):
        done = CliRunner().invoke(cli.app, ["serve", str(heads), "--host", host, "--port", "0"])
        assert done.exit_code == 0, done.output
        assert re.search(rf"http://{host}:\d+/ is the page; Ctrl-C ends it", done.output)
        assert re.search(rf"curl http://{host}:\d+/predict --data-binary @image.jpg", done.output)
        assert done.output.count("there is no password") == said
    assert asked == [200, 200]


def test_health_metrics_and_foreign_hosts(client):
    health = client.get("/health").json()
    assert (health["status"], health["takes"], health["heads"]) == ("ok", "images", 10)

    def counted(name: str) -> float:
        lines = client.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    before = counted("repulse_samples_total"), counted('repulse_requests_total{status="415"}')
    client.post("/predict", json=encoded(picture(0), picture(1)))
    client.post("/predict", content=b"a", headers={"content-type": "text/csv"})
    assert counted("repulse_samples_total") == before[0] + 2
    assert counted('repulse_requests_total{status="415"}') == before[1] + 1
    assert client.get("/health", headers={"host": "elsewhere.example"}).status_code == 400


def test_rows(tmp_path):
    heads = fitted(tmp_path, "own_data:rows_network", write_rows(tmp_path / "train.csv"))
    with TestClient(create_app(heads), base_url="http://localhost") as client:
        good = client.post("/predict", json={"rows": [[1, 2, 3, 4]]})
        assert good.json()["predictions"][0]["prediction"] in ("no", "so", "yes")
        for rows, said in (
            ([[1, 2]], "inputs the model can take"),
            ([[1], [1, 2]], "as many numbers"),
            ([1], "single"),
            ([[1, 2, 3, float("nan")]], "finite"),
            ([[1, 2, 3, float("inf")]], "finite"),
            ([[1, 2, 3, None]], "finite"),
        ):
            bad = client.post("/predict", content=json.dumps({"rows": rows}))
            assert (bad.status_code, said in bad.json()["error"]) == (422, True), bad.text
        columns = client.get("/health").json()["columns"]
        assert len(columns) == 4
        assert f'data-columns="{", ".join(columns)}"' in client.get("/").text


def prediction_of(values) -> ClassPrediction:
    if "bad" in values:
        raise DataError("bad")
    return ClassPrediction(torch.tensor([[[float(v), 0.0] for v in values]]).log_softmax(dim=-1))


def test_requests_that_arrive_together_are_one_batch():
    sizes = []

    def predict(values):
        sizes.append(len(values))
        return prediction_of(values)

    async def together():
        batcher = Batcher(predict, size=4)
        found = await asyncio.gather(*(batcher([i, i + 1]) for i in range(3)))
        assert batcher.waiting == 0
        return found

    found = asyncio.run(together())
    assert sizes == [4, 2]
    for i, one in enumerate(found):
        assert isinstance(one, ClassPrediction)
        assert torch.equal(one.probs, prediction_of([i, i + 1]).probs)


def test_one_bad_request_does_not_spoil_the_others():
    async def together():
        batcher = Batcher(prediction_of)
        return await asyncio.gather(batcher([1]), batcher(["bad"]), batcher([2]), return_exceptions=True)

    one, bad, two = asyncio.run(together())
    assert isinstance(bad, DataError)
    assert isinstance(one, ClassPrediction)
    assert isinstance(two, ClassPrediction)
    assert torch.equal(one.probs, prediction_of([1]).probs)
    assert torch.equal(two.probs, prediction_of([2]).probs)


def test_no_more_wait_than_may():
    async def too_many():
        batcher = Batcher(prediction_of, limit=3)
        first = asyncio.ensure_future(batcher([1, 2]))
        await asyncio.sleep(0)
        with pytest.raises(FullError):
            await batcher([3, 4])
        assert len(await first) == 2
        assert len(await batcher([3, 4])) == 2  # there is room again

    asyncio.run(too_many())


def test_a_port_that_is_taken_is_said(heads):
    import socket

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(DataError, match="where this machine can listen"):
            listen(create_app(heads), "127.0.0.1", other.getsockname()[1], print)


@pytest.fixture(scope="module")
def address(heads):
    """A real server, in a thread of its own."""
    uvicorn = pytest.importorskip("uvicorn")
    server = uvicorn.Server(uvicorn.Config(create_app(heads), port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.02)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


ANSWER = {
    "prediction": "cat",
    "confidence": 0.6,
    "probs": {"cat": 0.6},
    "aleatoric": 0.2,
    "epistemic": 0.4,
    "total": 0.6,
}


def test_drop_an_image_on_the_page_and_see_label_and_doubt(address, heads, tmp_path):
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not there: pip install playwright")
    if not CHROMIUM:
        pytest.skip("chromium is not there: this test needs a real browser")
    ensemble, prepare, _ = open_heads(heads)
    wanted = ensemble.predict(prepare([picture(3)]))
    assert isinstance(wanted, ClassPrediction)
    trouble: list[str] = []
    with playwright.sync_playwright() as tool:
        browser = tool.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page()
        page.set_default_timeout(60_000)  # a busy machine is slow
        page.on("console", lambda message: trouble.append(message.text))
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.goto(address)
        assert page.locator("#answer").is_hidden()
        dropped = page.evaluate_handle(
            """(data) => { const held = new DataTransfer();
            held.items.add(new File([Uint8Array.from(atob(data), (c) => c.charCodeAt(0))], "pet.png"));
            return held; }""",
            base64.b64encode(picture(3)).decode(),
        )
        page.dispatch_event("#drop", "drop", {"dataTransfer": dropped})
        page.wait_for_selector("#answer:not([hidden])")
        name, confidence = page.locator("#label").inner_text().split(", ")
        assert name == ("cat", "dog")[int(wanted.labels[0])]
        assert float(confidence.removesuffix(" %")) == pytest.approx(100 * float(wanted.confidence[0]), abs=0.06)
        assert float(page.locator("#epistemic").inner_text()) == pytest.approx(float(wanted.epistemic[0]), rel=0.01)
        assert page.locator("#probs li").count() == 2
        assert page.locator("#verdict").is_hidden()  # these heads have no gate
        page.locator("#why", has_text=f"Why: {name} (").wait_for()
        page.evaluate("(one) => show(one)", {**ANSWER, "action": "foreign", "p_value": 0.004, "set": ["cat", "dog"]})
        assert page.locator("#verdict").inner_text().startswith("foreign: unlike the data")
        assert page.locator("#inside").inner_text() == "among cat, dog"
        assert trouble == []
        (tmp_path / "no.png").write_bytes(b"no image")
        page.set_input_files("#drop input", tmp_path / "no.png")
        page.locator("#error", has_text="a whole image").wait_for()
        assert page.locator("#answer").is_hidden()
        browser.close()
