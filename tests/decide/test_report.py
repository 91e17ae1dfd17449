"""The page of a gate: its numbers are those of the decisions, and it holds everything it shows."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from repulse import DataError, Recipe, retrofit
from repulse.decide.report import EXAMPLES, _one
from repulse.evaluation.plots import png_of
from repulse.repulsion import UniformBox

pytestmark = pytest.mark.filterwarnings("ignore::repulse.FitWarning")


def images(count, seed):
    return torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def ensemble():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3))
    data = [(images(64, 0), torch.arange(64) % 3)]
    return retrofit(model, data, repulsion=UniformBox(-1, 2), recipe=Recipe(epochs=2, heads=3), progress=False)


def labelled(ensemble, seed):
    x = images(300, seed)
    return x, ensemble.predict(x).labels


def test_the_page_tells_what_was_promised_and_what_was_done(ensemble, tmp_path):
    gate = ensemble.gate(labelled(ensemble, 1), risk=0.1)
    (x, y), outside = labelled(ensemble, 2), 5 * images(40, 3)
    y = torch.where(torch.arange(300) < 6, (y + 1) % 3, y)
    found = gate.report((x, y), {"bright <things>": outside}, path=tmp_path / "gate.html")
    d, o = gate(x), gate(outside)
    assert found.realised["false_alarms"] == pytest.approx(float(d.foreign.double().mean()))
    assert found.realised["coverage"] == pytest.approx(float(d.accepted.double().mean()))
    assert found.realised["error"] == pytest.approx(float((d.labels != y)[d.accepted].double().mean()))
    assert found.realised["missed"] == pytest.approx(float((~d.sets[torch.arange(300), y]).double().mean()))
    assert found.flagged["bright <things>"]["foreign"] == pytest.approx(float(o.foreign.double().mean()))
    low, high = found.intervals["error"]
    assert low <= found.realised["error"] <= high
    text = (tmp_path / "gate.html").read_text()
    assert "bright &lt;things&gt;" in text
    assert "<things>" not in text
    assert text.count("<img") >= 10
    assert "default-src 'none'" in text  # nothing is loaded from elsewhere
    assert f"{found.realised['false_alarms']:.2%}" in text


def test_examples_are_from_all_over_the_data(ensemble):
    """Of a sorted set, all first examples would be of one kind."""
    gate = ensemble.gate(labelled(ensemble, 1))
    sections = gate.report(labelled(ensemble, 4)).page.sections
    (gallery,) = (one for one in sections[-1].galleries if one.title == "accept")
    x = images(300, 4)
    first = [i for i, action in enumerate(gate(x).action) if action == "accept"]
    shown = {picture.png for picture in gallery.pictures}
    assert len(shown) == EXAMPLES
    known = [png_of(image) for image in (_one(x, i) for i in first) if image is not None]
    assert shown <= set(known)
    assert not shown <= set(known[: 2 * EXAMPLES])


def test_numbers_and_rows_have_a_page_too():
    made = torch.Generator().manual_seed(0)
    x = torch.randn(300, 3, generator=made)
    y = x[:, 0] + 0.1 * torch.randn(300, generator=made)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    recipe = Recipe(task="regression", epochs=2, heads=3)
    ensemble = retrofit(model, [(x[:50], y[:50])], repulsion=UniformBox(-3, 3), recipe=recipe, progress=False)
    found = ensemble.gate((x[50:200], y[50:200])).report((x[200:], y[200:]))
    assert found.realised["coverage"] == pytest.approx(1 - found.realised["false_alarms"])
    page = found.page.html()
    assert "width of intervals" in page
    named = ensemble.gate().report((x[200:], y[200:]), names={"test data": [f"row <{i}>" for i in range(100)]})
    (table,) = (section.table for section in named.page.sections if section.title == "Examples: test data")
    decided = ensemble.gate()(x[200:])
    shown = re.findall(r"<tr><td>row &lt;(\d+)&gt;</td><td>(.*?)</td></tr>", table)
    assert 8 <= len(shown) <= 16
    for i, cells in shown:
        (wanted,) = decided[int(i)].cells()
        assert cells.split("</td><td>") == list(wanted[:-1])
    with pytest.raises(DataError, match="Expected `names` to be one for each input"):
        ensemble.gate().report((x[200:], y[200:]), names={"test data": ["a"]})
    assert "<td>accept</td>" in page
