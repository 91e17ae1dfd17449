"""fit, score and report on somebody's own files, as the command line runs them."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import shutil
import sys
import warnings

import numpy as np
import pytest
import torch
from pyarrow import csv, parquet
from typer.testing import CliRunner

import own_data
import repulse
from own_data import rows_network, write_images, write_rows, write_texts
from repulse import cli
from repulse.backbone.split import Backbone
from repulse.commands.language import in_words_of_commands, warnings_as_lines
from repulse.commands.pictures import training_samples
from repulse.commands.suggest import _next
from repulse.commands.training import _whole_name
from repulse.files import Opening, read_samples
from repulse.files.opening import open_heads
from repulse.suggest import Suggestion, Trial


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    monkeypatch.setattr("repulse.particles.loop.MIN_STEPS", 20)
    monkeypatch.chdir(tmp_path)


def run(*arguments):
    done = CliRunner().invoke(cli.app, [str(a) for a in arguments], env={"COLUMNS": "200", "TERM": "dumb"})
    assert done.exit_code in (0, 1), (done.output, done.exception)
    return done


def main(monkeypatch, capsys, *arguments) -> tuple[int, str]:
    """The exit code and standard error of the command."""
    monkeypatch.setattr(sys, "argv", ["repulse", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code, capsys.readouterr().err


def test_a_table_from_fit_to_report(tmp_path):
    train, validation = write_rows(tmp_path / "train.parquet"), write_rows(tmp_path / "validation.csv", seed=1)
    done = run("fit", "own_data:rows_network", train, "--validation", validation, "--out", "heads")
    assert "on validation data" in done.output
    assert "next: repulse report heads --test DATA" in done.output
    opening = Opening.read("heads")
    assert opening.classes == ("no", "so", "yes")
    assert opening.columns.features == ("a", "b", "c", "d")

    done = run("score", "heads", validation, "--out", "scores.parquet", "--probs")
    assert "scores.parquet: 1 file done; 60 samples" in done.output
    assert "next: " in done.output
    scores = parquet.read_table("scores.parquet")
    wanted = ["id", "prediction", "confidence", "aleatoric", "epistemic", "total", "probs"]
    assert scores.column_names == wanted
    model = rows_network()
    prediction = repulse.load("heads", model).predict(torch.from_numpy(table_values(validation)))
    assert np.allclose(scores["epistemic"].to_numpy(), prediction.epistemic.numpy(), atol=1e-6)
    assert np.allclose(scores["probs"].to_pylist(), prediction.probs.numpy(), atol=1e-6)
    names = [opening.classes[i] for i in prediction.labels.tolist()]
    assert scores["prediction"].to_pylist() == names
    assert scores["id"].to_pylist() == [f"k{i}" for i in range(60)]

    done = run("report", "heads", "--test", validation, "--ood", f"other={train}", "--out", "report")
    assert "network alone" in done.output
    found = json.loads((tmp_path / "report" / "report.json").read_text())
    assert found["counts"] == {"id": 60, "other": 60}
    page = (tmp_path / "report" / "index.html").read_text()
    assert page.count("<table") == 4
    assert "<svg" in page


def table_values(path):
    table = csv.read_csv(path) if path.suffix == ".csv" else parquet.read_table(path)
    return np.stack([table[name].to_numpy() for name in "abcd"], axis=1).astype(np.float32)


def test_numbers_to_predict(tmp_path):
    table = "a,b,c,d,label\n" + "".join(f"{i},{i % 3},1,{-i},{i / 2}\n" for i in range(30))
    (tmp_path / "train.csv").write_text(table)
    run("fit", "own_data:number_network", "train.csv", "--task", "regression", "--validation", "train.csv")
    run("score", "heads", "train.csv", "--out", "scores.csv")
    scores = csv.read_csv("scores.csv")
    assert scores.column_names == ["row", "mean", "std", "aleatoric", "epistemic", "total"]
    assert np.allclose(scores["std"].to_numpy() ** 2, scores["total"].to_numpy(), rtol=1e-4)
    assert "RMSE" in run("report", "heads", "--test", "train.csv").output


def test_texts_with_repulsion_data(tmp_path):
    train, other = write_texts(tmp_path / "train.csv"), write_texts(tmp_path / "other.csv", seed=1)
    run("fit", "own_data:text_network", train, "--repulsion", other, "--out", "heads")
    ensemble, _, opening = open_heads("heads")
    assert "given data" in ensemble.repulsion
    assert (opening.kind, opening.columns.text) == ("texts", "text")
    done = run("report", "heads", "--test", train, "--ood", f"other={other}")
    assert "! other is the data that the heads were repelled on" in done.output


def test_images_and_what_was_computed_before_is_not_computed_again(tmp_path, monkeypatch):
    folder = write_images(tmp_path / "pets")
    run("fit", "own_data:image_network", folder)
    _, _, opening = open_heads("heads")
    assert (opening.kind, opening.classes) == ("images", ("cat", "dog"))
    passed = []
    whole = Backbone.run
    monkeypatch.setattr(Backbone, "run", lambda self, x, *a, **k: passed.append(1) or whole(self, x, *a, **k))
    run("fit", "own_data:image_network", folder)
    again = len(passed)
    run("fit", "own_data:image_network", folder, "--cache", "elsewhere")
    assert again < len(passed) - again
    run("score", "heads", folder, "--out", "scores")
    assert sorted(path.name for path in (tmp_path / "scores").iterdir()) == ["cat.parquet", "dog.parquet"]
    assert parquet.read_table("scores/dog.parquet")["path"].to_pylist()[0] == "dog/0.png"


def test_classes_from_a_file_and_strict(tmp_path):
    train = write_rows(tmp_path / "train.csv")
    (tmp_path / "names.txt").write_text("yes\nno\nso\n")
    done = run("fit", "own_data:rows_network", train, "--classes", "names.txt", "--validation", train, "--strict")
    assert Opening.read("heads").classes == ("yes", "no", "so")
    assert done.exit_code == int("\n! " in done.output)


def test_suggest_ends_with_the_command_to_fit(tmp_path):
    train, other = write_rows(tmp_path / "train.csv", 120), write_rows(tmp_path / "other.csv", seed=1)
    done = run("suggest", "own_data:rows_network", train, "--repulsion", f"other={other}", "--label", "label")
    assert re.search(r"^nowhere .*\n(.*\n)*other ", done.output, re.MULTILINE)
    assert "judged on" in done.output
    assert re.search(r"next: repulse(\.retrofit|( fit own_data:rows_network .*train.csv --label label ))", done.output)
    assert not (tmp_path / "heads").exists()


def trial(source):
    values = {"strength": 0.3, "layers": "auto", "others": 90.0, "gain": 2.0, "error": 0.1, "mistakes": 70.0}
    return Trial(source=source, **values, nll=1.0, costly=False, score=2.0)


@pytest.mark.parametrize(
    ("source", "repulsion", "command"),
    [
        ("auto", "auto", "repulse fit M D --repulsion auto --strength 0.3 --layers auto"),
        ("photos", [], "repulse fit M D --repulsion 'my photos' --strength 0.3 --layers auto"),
        ("nowhere", None, "repulse fit M D --repulsion none"),
        ("Shell()", "shell", "repulse.retrofit(..., repulsion=repulse.suggest(...).repulsion)"),
    ],
)
def test_a_suggestion_in_options_of_fit(source, repulsion, command):
    found = Suggestion(repulsion, repulse.Recipe(), trial(source))
    assert _next(found, {"photos": "my photos"}, "M D")[0] == command


def test_heads_can_be_opened_with_the_network_elsewhere(tmp_path, fitted):
    train = tmp_path / "train.csv"
    first = run("score", "heads", train, "--out", "a.parquet")
    copy = tmp_path / "copied.py"
    copy.write_text("from own_data import rows_network as network\n")
    run("score", "heads", train, "--out", "b.parquet", "--model", "copied.py:network")
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    assert first.exit_code == 0


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A table, and heads that were fitted on it: once, for the tests that copy them."""
    folder = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("repulse.particles.loop.MIN_STEPS", 20)
        run("fit", "own_data:rows_network", write_rows(folder / "train.csv"), "--out", folder / "heads")
    return folder


@pytest.fixture
def fitted(kept, tmp_path):
    shutil.copytree(kept, tmp_path, dirs_exist_ok=True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fit", "own_data:rows_network", "no.csv"], "Expected DATA to be a folder of images"),
        (["fit", "two words", "train.csv"], "Expected MODEL to be a name of timm"),
        (["fit", "own_data:rows_network", "train.csv", "--classes", "no.txt"], "Expected --classes to be a text file"),
        (["fit", "own_data:number_network", "train.csv"], "Expected --classes to be 2 strings, one per class"),
        (["fit", "own_data:rows_network", "train.csv", "--layers", "none"], "--layers"),
        (["fit", "own_data:rows_network", "train.csv", "--last-layer", "9"], "--last-layer"),
        (["fit", "own_data:rows_network", "train.csv", "--validation", "few.csv"], "among the 3 classes of the fit"),
        (["score", "train.csv", "train.csv"], "Expected HEADS to be a folder that `repulse fit` wrote"),
        (["score", "heads", "no.csv"], "which does not exist"),
        (["score", "heads", "train.csv", "--model", "own_data:number_network"], "Expected MODEL to be the Sequential"),
        (["score", "heads", "train.csv", "--key", "z"], "Expected --key to be a column of train.csv"),
        (["score", "heads", "several", "--out", "one.parquet"], "Expected --out to be a folder, for the 2 files"),
        (["report", "heads", "--test", "few.csv"], "among the 3 classes of the fit"),
        (["report", "heads", "--test", "train.csv", "--ood", "train.csv"], "Expected --ood to be NAME=DATA"),
        (["gate", "heads", "train.csv", "--ood", "few=few.csv"], "Expected --ood to be given with --test"),
        (["serve", "heads", "--watch", "state"], "Expected `watch` to be None for heads without a gate"),
    ],
)
def test_errors_are_one_sentence_in_words_of_the_command_line(arguments, said, tmp_path, monkeypatch, capsys, fitted):
    write_rows(tmp_path / "few.csv", names=("no", "so", "perhaps"))
    for name in ("a.csv", "b.csv"):
        write_rows(tmp_path / "several" / name, 3)
    capsys.readouterr()
    code, error = main(monkeypatch, capsys, *arguments)
    assert code == 2
    assert error.startswith("repulse: ")
    assert error.count("\n") == 1
    assert said in error


def test_what_was_opened_is_checked(tmp_path, monkeypatch, capsys, fitted):
    path = tmp_path / "heads" / "opening.json"
    path.write_text(path.read_text().replace("rows_network", "number_network"))
    code, error = main(monkeypatch, capsys, "score", "heads", "train.csv")
    assert (code, "as `repulse fit` wrote it" in error) == (2, True)


def test_an_interruption_has_a_code_of_its_own(monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "app", interrupted)
    code, error = main(monkeypatch, capsys, "demo")
    assert code == 130
    assert "goes on where it was" in error


def test_words():
    assert in_words_of_commands("`x` and `unknown` of `data`") == "DATA and `unknown` of DATA"


def test_a_network_of_one_logit_is_measured_as_two_classes_and_labels_must_be_of_these(tmp_path, monkeypatch):
    table = "a,b,c,d,label\n" + "".join(f"{i % 7},{i % 3},1,{-i % 5},{i % 2}\n" for i in range(40))
    (tmp_path / "train.csv").write_text(table)
    run("fit", "own_data:number_network", "train.csv", "--out", "heads")
    there = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "matplotlib" else there(name))
    done = run("report", "heads", "--test", "train.csv", "--out", "report")
    assert "no figures without matplotlib: pip install 'repulse[plots]'" in done.output
    assert "<svg" not in (tmp_path / "report" / "index.html").read_text()
    network, rows = own_data.number_network(), torch.from_numpy(table_values(tmp_path / "train.csv"))
    right = ((network(rows)[:, 0] > 0).long() == torch.arange(40) % 2).float().mean()
    alone = next(line for line in done.output.splitlines() if line.strip().startswith("network alone"))
    assert f"{100 * float(right):.2f}" in alone
    (tmp_path / "wrong.csv").write_text(table.replace(",0\n", ",2\n"))
    done = run("report", "heads", "--test", "wrong.csv")
    assert (done.exit_code, type(done.exception)) == (1, repulse.DataError)
    assert str(done.exception) == "Expected the labels of --test to be between 0 and 1, but got values from 1 to 2."


def test_warnings_of_others_are_left_as_they_are(capsys):
    def warn():
        with warnings_as_lines(repulse.PromiseWarning):
            warnings.warn("of another library", UserWarning, stacklevel=1)
            warnings.warn("`validation` is small", repulse.FitWarning, stacklevel=1)
            warnings.warn("said elsewhere", repulse.PromiseWarning, stacklevel=1)

    with pytest.warns(UserWarning, match="of another library"):
        warn()
    assert capsys.readouterr().err == "repulse: --validation is small\n"


def test_training_samples_are_found_again_or_not(tmp_path):
    path = write_rows(tmp_path / "rows.csv", 5)
    columns = read_samples(path).columns
    opening = Opening("own_data:rows_network", None, "rows", columns, sources={"data": str(path)})
    found = training_samples(opening, 5)
    assert found is not None
    assert len(found) == 5
    assert training_samples(opening, 6) is None  # rows were added since
    path.unlink()
    assert training_samples(opening, 5) is None
    assert training_samples(dataclasses.replace(opening, sources={}), 5) is None


def test_the_name_of_a_network_means_the_same_in_any_folder(tmp_path, monkeypatch):
    (tmp_path / "net.py").touch()
    (tmp_path / "folder").mkdir()
    assert _whole_name("net.py:make") == f"{tmp_path / 'net.py'}:make"
    assert _whole_name("folder") == str(tmp_path / "folder")
    assert _whole_name("own_data:rows_network") == "own_data:rows_network"
