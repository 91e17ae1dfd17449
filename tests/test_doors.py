"""Files, folders, requests and logs that lie: refused in one sentence, and what was there before stays."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import jaxtyping
import numpy as np
import pytest
import torch

import repulse
from children import network
from own_data import rows_network, write_rows
from repulse import CheckpointError, DataError, _figures
from repulse._files import open_regular, read_regular, sealed, unsealed
from repulse.active.audit import audit
from repulse.commands.training import _classes
from repulse.commands.watch import _alone
from repulse.evaluation import Evaluation
from repulse.files import samples
from repulse.files.columns import Columns
from repulse.files.networks import open_network
from repulse.files.opening import Opening
from repulse.kept import KeptIn
from repulse.scale import run as scale_run
from repulse.scale.tasks import Settings, fingerprint, tasks_of
from repulse.scale.worker import write_table
from saved_ensembles import fitted

pytestmark = pytest.mark.filterwarnings("ignore::repulse.FitWarning")


@pytest.fixture(autouse=True)
def as_users_run_it():
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="module")
def ensemble():
    return fitted(network())


# What is no regular file.


def test_pipes_devices_and_folders_are_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, why in ((tmp_path / "pipe", "no regular file"), ("/dev/zero", "no regular file"), (tmp_path, "a folder")):
        with pytest.raises(OSError, match=why):
            read_regular(path)
    (tmp_path / "file").write_bytes(b"abc")
    with pytest.raises(OSError, match="3 bytes where 2"), open_regular(tmp_path / "file", 2):
        pass
    assert read_regular(tmp_path / "file", 3) == b"abc"


@pytest.mark.parametrize("reads", [Opening.read, fingerprint, open_network], ids=["opening", "fingerprint", "config"])
def test_readers_refuse_a_pipe_and_deep_json(tmp_path, reads):
    for name in ("opening.json", "ensemble.json", "config.json"):
        os.mkfifo(tmp_path / name)
    with pytest.raises(repulse.RepulseError, match="Expected"):
        reads(str(tmp_path))
    for name in ("opening.json", "ensemble.json", "config.json"):
        (tmp_path / name).unlink()
        (tmp_path / name).write_text("[" * 100_000)
    with pytest.raises(repulse.RepulseError, match="Expected"):
        reads(str(tmp_path))


@pytest.mark.parametrize("config", ["[]", "3", '{"architectures": 3}', '{"architectures": [[]]}', "{}"])
def test_a_folder_whose_config_is_none(tmp_path, config):
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(repulse.RepulseError, match="Expected `model`"):
        open_network(str(tmp_path))


def test_classes_come_from_a_regular_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(DataError, match="the name of a class in each line"):
            _classes(path, None, None, None)  # pyright: ignore[reportArgumentType]


# Digests.


def test_json_in_its_own_order_has_a_digest_too():
    content = {"b": 1, "a": {"d": 2, "c": 3}}
    text = sealed(content, sort=False)
    assert list(json.loads(text)) == ["b", "a", "digest"]
    assert list(unsealed(text)["a"]) == ["d", "c"]
    with pytest.raises(ValueError, match="changed"):
        unsealed(text.replace("3", "4"))


def test_an_evaluation_that_was_changed_is_refused(tmp_path):
    made = Evaluation("m", "classification", {"id": 5}, {"accuracy": 0.25}, {"far": {"z": 0.5, "a": 1.0}})
    made.to_json(tmp_path / "e.json")
    back = Evaluation.from_json(tmp_path / "e.json")
    assert (back.id, list(back.ood["far"])) == (made.id, ["z", "a"])
    (tmp_path / "e.json").write_text((tmp_path / "e.json").read_text().replace("0.25", "0.75"))
    os.mkfifo(tmp_path / "pipe")
    for source in (tmp_path / "e.json", tmp_path / "pipe", tmp_path / "none", "[" * 100_000, "{}", "[]"):
        with pytest.raises(CheckpointError, match="the JSON of an evaluation"):
            Evaluation.from_json(source)


def test_an_opening_with_a_right_digest_and_wrong_entries_is_refused(tmp_path):
    good = Opening("own_data:rows_network", None, "rows", Columns(features=("a", "b")), classes=("x", "y"))
    good.save(tmp_path)
    assert Opening.read(tmp_path) == good
    about = unsealed((tmp_path / "opening.json").read_text())
    for change in (
        {"batch_size": "x"},
        {"columns": 3},
        {"kind": "smells"},
        {"classes": [1]},
        {"format": 9},
        {"new": 1},
    ):
        (tmp_path / "opening.json").write_text(sealed({**about, **change}))
        with pytest.raises(CheckpointError, match="as `repulse fit` wrote it"):
            Opening.read(tmp_path)
    with pytest.raises(CheckpointError, match="Expected `--out`"):
        good.save(tmp_path / "opening.json" / "below")


# Features that are kept belong to heads.


def test_a_save_that_is_cut_short_leaves_each_heads_their_own_features(ensemble, tmp_path, monkeypatch):
    other = replace(ensemble.kept, train=ensemble.kept.train + 1)
    ensemble.save(tmp_path, features=True)
    new = KeptIn(tmp_path, "f" * 32)
    new.write(other)  # and no further
    assert torch.equal(repulse.load(tmp_path, ensemble.model).required_features("a test").train, ensemble.kept.train)
    found = new.read(ensemble.heads.features)
    assert found is not None
    assert torch.equal(found.train, other.train)
    repulse.load(tmp_path, ensemble.model).save(tmp_path)
    assert len(list(tmp_path.glob("features-*"))) == 1
    path = next(tmp_path.glob("features-*"))
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(CheckpointError, match="no regular file"):
        _ = repulse.load(tmp_path, ensemble.model).kept
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(CheckpointError, match="Expected `folder`"):
        ensemble.save(file, features=True)


@pytest.mark.parametrize("indices", ["x", None, [[1], [2, 3]], {"a": 1}])
def test_indices_to_forget_that_are_none(ensemble, indices):
    with pytest.raises(DataError, match="Expected `indices`"):
        ensemble.forget(indices, progress=False)


def test_updates_and_audits_refuse_labels_that_are_no_classes(ensemble):
    x = torch.zeros(2, *ensemble.backbone.forms[0].shape)
    with pytest.raises(DataError, match="none of class 3, and some of class 9000000000000"):  # and no such list is made
        ensemble.update([(x, torch.tensor([0, 9 * 10**12]))], progress=False)
    for names in (3, "abcd", [1, 2, 3, 4]):
        with pytest.raises(DataError, match="Expected `class_names` to be a list of strings"):
            ensemble.update([(x, torch.tensor([0, 3]))], class_names=names, progress=False)
    for targets in (torch.tensor([0.0, 1.5]), torch.tensor([0.0, torch.nan])):
        with pytest.raises(DataError, match="Expected"):
            audit(ensemble, [(x, targets)], progress=False)


# Data files.


def test_broken_data_files_are_one_sentence(tmp_path):
    whole = tmp_path / "whole.npz"
    np.savez_compressed(whole, features=np.ones((50, 4)))
    content = whole.read_bytes()
    for number, bad in enumerate((b"PK\x03\x04abc", content[:-30], content[:90] + b"\0" * 20 + content[110:], b"abc")):
        path = tmp_path / f"{number}.npz"
        path.write_bytes(bad)
        with pytest.raises(DataError, match=r"Expected .*to be an \.npz of arrays"):
            samples.read_samples(path)
    (tmp_path / "twice.csv").write_text("a,a\n1,2\n")
    with pytest.raises(DataError, match="two called 'a'"):
        samples.read_samples(tmp_path / "twice.csv")
    (tmp_path / "gap.csv").write_text("a,b\n1,2\n,3\n")
    with pytest.raises(DataError, match=r"^Expected the column 'a' of [^,]*without empty cells, but got 1 empty cells"):
        samples.read_samples(tmp_path / "gap.csv")


PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize("content", [b"", PNG, PNG + b"xxxx", PNG + b"\0" * 40, b"GIF89a", b"BM", b"II*\0"])
def test_broken_images_are_one_sentence(content):
    with pytest.raises(DataError, match="Expected an image of DATA to be a whole image"):
        samples.open_image(content)


def test_a_key_that_was_only_found_may_be_missing_elsewhere(tmp_path):
    from repulse.commands.options import Task
    from repulse.commands.training import Training
    from repulse.files.networks import Network

    source = write_rows(tmp_path / "train.csv")
    model = Network(rows_network()), "own_data:rows_network", None
    found, told = (
        Training.of(*model, source, columns, None, Task.classification, 8) for columns in (Columns(), Columns(key="id"))
    )
    assert (found.opening.columns.key, told.opening.columns.key) == (None, "id")
    assert (found.samples.key_name, told.samples.key_name) == ("id", "id")


# Outputs.


def test_no_output_replaces_an_input_or_another_output(tmp_path, ensemble):
    heads = ensemble.save(tmp_path / "heads")
    (tmp_path / "in").mkdir()
    for name in ("a.csv", "a.csv.parquet"):
        (tmp_path / "in" / name).touch()
    settings = Settings(str(heads))
    with pytest.raises(DataError, match=r"Expected `--out`.*a\.csv\.parquet for two of them"):
        tasks_of(tmp_path / "in", tmp_path / "out", settings)
    data = tmp_path / "data.parquet"
    data.touch()
    with pytest.raises(DataError, match="which is an input"):
        tasks_of(data, data, settings)


def test_outputs_that_cannot_be_written_are_one_sentence(tmp_path):
    import pyarrow as pa

    (tmp_path / "file").touch()
    for suffix in ("parquet", "csv"):
        with pytest.raises(CheckpointError, match="Expected `--out`"):
            write_table(pa.table({"a": [1]}), tmp_path / "file" / f"x.{suffix}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]
    with pytest.raises(DataError, match="Expected `--out`"), scale_run._alone(tmp_path / "file" / "x.parquet"):
        pass
    with scale_run._alone(tmp_path / "out"):
        assert [path.name for path in (tmp_path / "out").iterdir()] == [".out.lock"]
        with pytest.raises(DataError, match="where another runs"), scale_run._alone(tmp_path / "out"):
            pass
    assert list((tmp_path / "out").iterdir()) == []


def test_no_output_replaces_a_device_or_a_pipe(tmp_path):
    """Whoever may write to the folder would otherwise lose `/dev/null`."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match=r"Expected `path` to be a file .* no regular file"):
        Evaluation("m", "classification", {"id": 5}, {}, {}).to_json(tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()


def test_pictures_of_an_unknown_kind_are_refused(tmp_path):
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    with pytest.raises(DataError, match=r"Expected `path` to be a picture that ends in .*\.png.*, but got .*p\.xyz"):
        _figures.save_picture(Figure(), tmp_path / "p.xyz")
    _figures.save_picture(Figure(), tmp_path / "p.PNG")
    assert (tmp_path / "p.PNG").read_bytes()[:4] == b"\x89PNG"


# A watch.


def test_one_call_at_a_time_goes_on_from_a_state(tmp_path, capsys):
    state, order = tmp_path / "new" / "watch.state", []

    def second():
        with _alone(state):
            order.append("second")

    with _alone(state):
        other = threading.Thread(target=second)
        other.start()
        while "waiting for" not in capsys.readouterr().err:
            assert other.is_alive()
        order.append("first")
    other.join()
    assert order == ["first", "second"]
    assert list(state.parent.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="Expected `--state`"), _alone(tmp_path / "file" / "watch.state"):
        pass


# Targets and batches without values, found by random calls.


@pytest.mark.parametrize("kind", ["sparse", "meta"])
def test_targets_that_are_sparse_or_without_values(kind):
    x, y = torch.randn(12, 4, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3
    wrong = y.to_sparse() if kind == "sparse" else y.to("meta")
    quick, model = repulse.Recipe(epochs=1, heads=2), rows_network()
    for call in (
        lambda: repulse.fit_heads(x, wrong, None, quick, progress=False),
        lambda: repulse.fit_heads(x, y, None, quick, validation=(x, wrong), progress=False),
        lambda: repulse.fit_networks([model], x, wrong, None, quick, progress=False),
        lambda: repulse.retrofit(model, [(x, wrong)], repulsion=None, recipe=quick, progress=False),
        lambda: repulse.retrofit(
            model, [(wrong, x)], inputs=1, targets=0, repulsion=None, recipe=quick, progress=False
        ),
    ):
        with pytest.raises(DataError, match=r"Expected .*targets.* to be a (dense tensor|tensor with values)"):
            call()


def test_sources_refuse_an_empty_batch_and_a_single_number():
    for batch in (torch.zeros(0, 3, 8, 8), torch.zeros(())):
        for source in (repulse.repulsion.UniformBox(), repulse.repulsion.Mixup()):
            with pytest.raises(repulse.RepulsionError, match="Expected `inputs` to be a batch of at least one"):
                source.sample(batch, torch.Generator())


def test_an_ensemble_of_no_inputs_returns_none(ensemble):
    assert ensemble(torch.zeros(0, *ensemble.backbone.forms[0].shape)).shape == (0, 3)


def test_inputs_without_values_are_refused(ensemble):
    with pytest.raises(DataError, match="Expected `x` to be a tensor with values, but got one on the meta device"):
        ensemble.predict(torch.zeros(2, *ensemble.backbone.forms[0].shape, device="meta"))


def test_a_single_number_is_no_data():
    with pytest.raises(DataError, match=r"Expected `data` to be batches of .*, but got a single number"):
        repulse.retrofit(rows_network(), torch.tensor(1.0), progress=False)
