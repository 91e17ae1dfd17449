"""Lightning, skorch and the Trainer of Hugging Face: heads are fitted when training ends, on the data it used."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import repulse
from models import normal
from repulse import Recipe
from torchvision_operators import define_missing

os.environ["HF_HUB_OFFLINE"] = "1"
pytestmark = pytest.mark.filterwarnings("ignore")  # those libraries' own
QUICK = Recipe(epochs=1, heads=3)
X, Y = normal(96, 4), torch.arange(96) % 3


def network(outputs=3):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, outputs))


@pytest.fixture(scope="module")
def lightning():
    define_missing()
    from lightning import pytorch

    return pytorch


@pytest.fixture(scope="module")
def module(lightning):
    class Classifier(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = network()

        def forward(self, x):
            return self.network(x)

        def training_step(self, batch, _):
            return nn.functional.cross_entropy(self(batch[0]), batch[1])

        def validation_step(self, batch, _):
            self.log("loss", self.current_epoch * 1.0)  # so that the first epoch is the best

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.5)

    return Classifier


@pytest.fixture
def trainer(lightning, tmp_path):
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.loggers import CSVLogger

    def make(callback, checkpoints=True):
        saving = [ModelCheckpoint(tmp_path / "checkpoints", "{epoch}", monitor="loss")] if checkpoints else []
        return lightning.Trainer(
            max_epochs=2,
            accelerator="cpu",
            logger=CSVLogger(tmp_path, name="log", version=0),
            callbacks=[callback, *saving],
            enable_checkpointing=checkpoints,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
        )

    return make


def loaders():
    data = TensorDataset(X, Y)
    return DataLoader(data, batch_size=32, shuffle=True), DataLoader(data, batch_size=48)


def test_lightning_saves_the_heads_of_the_best_checkpoint_beside_it(trainer, module, tmp_path):
    from repulse.integrations.lightning import Retrofit

    callback, trained = Retrofit("network", recipe=QUICK, progress=False), module()
    trainer(callback).fit(trained, *loaders())
    assert callback.folder == tmp_path / "checkpoints" / "epoch=0.heads"
    kept = module.load_from_checkpoint(tmp_path / "checkpoints" / "epoch=0.ckpt")
    ensemble = repulse.load(callback.folder, kept.network)
    assert torch.equal(ensemble.predict(X).probs, callback.ensemble.predict(X).probs)
    with pytest.raises(repulse.CheckpointError, match="other weights"):  # of the last epoch
        repulse.load(callback.folder, trained.network)
    assert trained.trainer is not None
    logged = (tmp_path / "log" / "version_0" / "metrics.csv").read_text()
    assert "repulse/validation/ensemble/nll" in logged
    assert "repulse/validation/network/accuracy" in logged


def test_lightning_without_checkpoints_takes_the_module_as_it_is(trainer, module, tmp_path):
    from repulse.integrations.lightning import Retrofit

    callback, trained = Retrofit(recipe=QUICK, folder=tmp_path / "heads", progress=False), module()
    trainer(callback, checkpoints=False).fit(trained, loaders()[0])
    assert callback.ensemble.model is trained
    assert callback.ensemble.summary().data == "training"
    assert repulse.load(tmp_path / "heads", trained).heads.count == 3


def test_lightning_has_one_loader_to_retrofit_on(lightning):
    from repulse.integrations.lightning import _loader

    one = loaders()[0]
    assert _loader("val_dataloaders", [one]) is _loader("train_dataloader", one) is one
    with pytest.raises(repulse.DataError, match="one loader, but got a list"):
        _loader("train_dataloader", [one, one])


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_lightning_tests_and_predicts_with_an_ensemble(lightning, task, tmp_path):
    from repulse.integrations.lightning import EnsembleModule

    targets = Y if task == "classification" else X[:, 0]
    ensemble = repulse.retrofit(
        network(3 if task == "classification" else 1), [(X, targets)], recipe=QUICK.replace(task=task), progress=False
    )
    plain = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    runner, loader = lightning.Trainer(**plain), DataLoader(TensorDataset(X, targets), batch_size=40)
    parts = runner.predict(EnsembleModule(ensemble), loader)
    p = ensemble.predict(X)
    answer = "probs" if task == "classification" else "mean"
    assert [set(part) for part in parts] == [{answer, "aleatoric", "epistemic"}] * 3
    for name in parts[0]:
        torch.testing.assert_close(torch.cat([part[name] for part in parts]), getattr(p, name))
    (found,) = runner.test(EnsembleModule(ensemble), loader, verbose=False)
    assert found["test/nll"] == pytest.approx(repulse.metrics.nll(p, targets), rel=1e-4)
    assert ("test/accuracy" in found) == (task == "classification")
    assert found["test/epistemic"] == pytest.approx(float(p.epistemic.mean()), rel=1e-4)


def test_skorch_retrofits_on_the_rows_it_trained_on(tmp_path):
    from skorch import NeuralNetClassifier, NeuralNetRegressor

    from repulse.integrations import skorch

    seen = {}

    class Watched(skorch.Retrofit):
        def on_train_end(self, net, X=None, y=None, **rest):
            seen["rows"] = [len(part) for part in self.datasets_]
            super().on_train_end(net, X, y, **rest)

    inputs, labels = X.numpy(), Y.numpy()
    net = NeuralNetClassifier(
        network(),
        criterion=nn.CrossEntropyLoss,
        max_epochs=2,
        verbose=0,
        callbacks=[("repulse", Watched(recipe=QUICK, folder=str(tmp_path)))],
    ).fit(inputs, labels)
    assert seen["rows"] == [76, 20]
    ensemble = skorch.ensemble_of(net)
    assert ensemble.summary().data == "validation"
    p = skorch.predict(net, inputs)
    np.testing.assert_allclose(p.epistemic, ensemble.predict(X).epistemic, rtol=1e-4, atol=1e-7)
    assert repulse.load(tmp_path, net.module_).heads.count == 3
    numbers = NeuralNetRegressor(
        network(1), max_epochs=1, verbose=0, train_split=None, callbacks=[skorch.Retrofit(recipe=None)]
    )
    numbers.fit(inputs, inputs[:, :1])
    assert skorch.predict(numbers, inputs).mean.shape == (96,)
    assert skorch.ensemble_of(numbers).summary().data == "training"
    with pytest.raises(repulse.DataError, match="trained with the callback"):
        skorch.predict(NeuralNetClassifier(network()).initialize(), inputs)


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, i):
        return {"pixel_values": normal(3, 16, 16, seed=i), "labels": i % 3}


def vision_model():
    from transformers import ViTConfig, ViTForImageClassification

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = ViTConfig(
            image_size=16,
            patch_size=8,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=16,
        )
        config.num_labels = 3
        return ViTForImageClassification(config).eval()


def test_the_callback_of_hugging_face_answers_to_the_events_of_its_trainer(tmp_path):
    define_missing()
    from types import SimpleNamespace

    from transformers.trainer_callback import CallbackHandler, DefaultFlowCallback, TrainerControl, TrainerState

    from repulse.integrations.huggingface import RetrofitCallback

    callback, model = RetrofitCallback(recipe=QUICK, progress=False), vision_model()
    handler = CallbackHandler([DefaultFlowCallback(), callback], model, None, None, None)
    handler.train_dataloader, handler.eval_dataloader = DataLoader(Rows(), 8), DataLoader(Rows(), 16)
    state = TrainerState(global_step=4, epoch=1.0)
    handler.on_train_end(SimpleNamespace(output_dir=str(tmp_path)), state, TrainerControl())
    assert callback.ensemble.model is model
    assert callback.ensemble.summary().data == "validation"
    assert state.log_history[-1]["repulse_validation_nll"] == callback.ensemble.summary().ensemble["nll"]
    assert repulse.load(tmp_path / "heads", model).heads.count == 3


def test_the_trainer_of_hugging_face_runs_with_the_callback(tmp_path):
    define_missing()
    pytest.importorskip("accelerate")
    from transformers import Trainer, TrainingArguments

    from repulse.integrations.huggingface import RetrofitCallback

    callback = RetrofitCallback(recipe=QUICK, progress=False)
    options = TrainingArguments(
        str(tmp_path), max_steps=2, per_device_train_batch_size=8, use_cpu=True, report_to=[], disable_tqdm=True
    )
    trainer = Trainer(vision_model(), options, train_dataset=Rows(), callbacks=[callback])
    trainer.train()
    assert repulse.load(tmp_path / "heads", trainer.model).heads.count == 3
    assert any("repulse_training_nll" in entry for entry in trainer.state.log_history)
