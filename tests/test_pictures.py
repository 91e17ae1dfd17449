"""Tables, pictures and progress bars, as pandas and notebooks see them."""

from __future__ import annotations

import nbformat
import pytest
import torch
from nbclient import NotebookClient
from PIL import Image

from models import QUICK, normal, perceptron
from repulse import ClassPrediction, DataError, Epoch, Evaluation, RegressionPrediction, retrofit
from repulse._pictures import fit_panels
from repulse._progress import progress_bar
from repulse.particles.history import History
from repulse.prediction import MultilabelPrediction, MultiregressionPrediction, as_columns

CLASSES = ClassPrediction(normal(3, 12, 4).log_softmax(dim=-1))
NUMBERS = RegressionPrediction(normal(3, 12), torch.ones(3, 12))


@pytest.fixture(scope="module")
def ensemble():
    data = [(normal(30, 4), torch.arange(30) % 5)]
    return retrofit(perceptron(), data, recipe=QUICK.replace(epochs=4), progress=False)


def test_classes_as_a_table():
    frame = CLASSES.to_frame()
    assert list(frame) == ["label", "confidence", "aleatoric", "epistemic", "total"]
    assert frame["label"].tolist() == CLASSES.labels.tolist()
    assert torch.equal(torch.tensor(frame["epistemic"].to_numpy()), CLASSES.epistemic)
    named = CLASSES.to_frame(["ant", "bee", "cat", "dog"])["label"]
    assert named.tolist() == [("ant", "bee", "cat", "dog")[i] for i in CLASSES.labels.tolist()]


def test_names_that_are_not_those_of_the_classes_are_refused():
    with pytest.raises(DataError, match="`class_names` to be 4 strings"):
        CLASSES.to_frame(["ant"])


def test_numbers_as_a_table():
    frame = NUMBERS.to_frame()
    assert list(frame) == ["mean", "std", "aleatoric", "epistemic", "total"]
    assert torch.equal(torch.tensor(frame["mean"].to_numpy()), NUMBERS.mean)


def test_several_outputs_as_a_table():
    labels = MultilabelPrediction(normal(3, 5, 3))
    names = ("red", "round", "ripe")
    frame = labels.to_frame(names)
    assert list(frame) == ["labels", "aleatoric", "epistemic", "total"]
    assert frame["labels"][0] == ", ".join(names[i] for i in range(3) if labels.labels[0, i])
    with pytest.raises(DataError, match="3 strings, one per label"):
        labels.to_frame(["red"])
    targets = MultiregressionPrediction(normal(3, 5, 2), torch.ones(3, 5, 2))
    assert list(targets.to_frame())[:4] == ["mean 0", "mean 1", "std 0", "std 1"]
    assert torch.equal(torch.tensor(targets.to_frame()["epistemic 1"].to_numpy()), targets.epistemic[:, 1])
    assert [axis.get_title() for axis in targets.plot().axes] == ["Target 0", "Target 1"]
    with pytest.raises(DataError, match="one, or a few, for each sample"):
        as_columns("aleatoric", torch.zeros(2, 3, 4))


def test_a_notebook_shows_the_first_predictions():
    shown = CLASSES._repr_html_()
    assert shown.count("<tr>") == 9
    assert f"<td>{CLASSES.epistemic[7]:.4g}</td>" in shown
    assert f"<td>{CLASSES.epistemic[8]:.4g}</td>" not in shown
    assert shown.endswith("the first 8</p>")
    assert NUMBERS[:2]._repr_html_().count("<tr>") == 3


def test_a_notebook_shows_an_evaluation_and_escapes_names():
    found = Evaluation("a < b", "classification", {"id": 5}, {"accuracy": 0.5}, {"far": {"auroc": 0.75}}, {"far": 0.1})
    shown = found._repr_html_()
    assert "a &lt; b: 5 samples" in shown
    assert "<td>far †</td><td>0.75</td>" in shown
    assert "10 % of far are repulsion samples" in shown


def test_the_history_is_a_tuple_and_a_table(ensemble):
    history = ensemble.history
    assert history == ensemble.heads.history
    frame = history.to_frame()
    assert frame.index.tolist() == [1, 2, 3, 4]
    assert frame["nll"].tolist() == [epoch.nll for epoch in history]
    assert history._repr_html_().count("<tr>") == 5
    without = History([Epoch(1.0, None, None, None, None, 0.1, None)] * 50)
    assert without.to_frame()["repulsion"].isna().all()
    assert "<td>50</td>" in without._repr_html_()
    assert without._repr_html_().count("<tr>") < 10


def test_pictures_are_drawn_shown_and_written(ensemble, tmp_path):
    labels = CLASSES.labels.clone()
    labels[:3] += 1
    for name, draw in {
        "fit": ensemble.plot,
        "classes": lambda path: CLASSES.plot(labels, path),
        "numbers": lambda path: NUMBERS.plot(path=path),
    }.items():
        figure = draw(path=tmp_path / f"{name}.png")
        with Image.open(tmp_path / f"{name}.png") as picture:
            assert picture.convert("RGBA").getpixel((1, 1)) == (255, 255, 255, 255)
        assert figure._repr_png_().startswith(b"\x89PNG")
    assert len(fit_panels(ensemble.history * 9).axes[0].lines[0].get_ydata()) == 36
    map_ = CLASSES.plot(labels).axes[0]
    assert [text.get_text() for text in map_.get_legend().get_texts()] == ["right (9)", "wrong (3)"]
    drawn = NUMBERS.plot(torch.arange(12.0)).axes[0].lines
    assert drawn[0].get_ydata().tolist() == NUMBERS.mean.sort().values.tolist()
    assert sorted(drawn[1].get_ydata().tolist()) == list(range(12))


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(DataError, match="`targets` to be 12, one for each sample, but got shape"):
        CLASSES.plot(torch.zeros(3))
    with pytest.raises(DataError, match="at least one"):
        CLASSES[:0].plot()
    with pytest.raises(DataError, match="at least one epoch"):
        fit_panels([])


def test_a_bar_in_a_terminal_is_an_ordinary_one(monkeypatch, capsys):
    monkeypatch.setattr("repulse._progress.DELAY", 0)
    assert list(progress_bar(range(3), "reading", unit="batch", show=True)) == [0, 1, 2]
    assert "reading" in capsys.readouterr().err
    list(progress_bar(range(3), "reading", unit="batch", show=False))
    assert capsys.readouterr().err == ""


def test_a_saved_notebook_keeps_no_bar_and_a_running_one_shows_it():
    code = """
import repulse._progress as p
shown, show = [], p._NotebookBar.display
def display(self, msg=None, pos=None):
    shown.append(str(self) if msg is None else msg)
    show(self, msg, pos)
p._NotebookBar.display, p.DELAY = display, 0
for _ in p.progress_bar(range(4), "fitting", unit="step", show=True):
    pass
print(shown[0].startswith("fitting:   0%"), repr(shown[-1]))
"""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    outputs = NotebookClient(notebook, timeout=600, startup_timeout=600, iopub_timeout=600).execute().cells[0].outputs
    assert [output.output_type for output in outputs] == ["display_data", "stream"]
    assert outputs[0]["data"]["text/html"] == ""
    assert "fitting" not in str(outputs[0])
    assert outputs[1].text == "True ''\n"
