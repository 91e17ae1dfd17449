"""The Hugging Face Hub by way of a folder, the model card, and a call like a pipeline's."""

from __future__ import annotations

import os

import pytest
import torch

import repulse
from models import normal, perceptron
from repulse import CheckpointError, DataError, Recipe
from torchvision_operators import define_missing

os.environ["HF_HUB_OFFLINE"] = "1"
pytestmark = pytest.mark.filterwarnings("ignore")  # those libraries' own
QUICK = Recipe(epochs=1, heads=3)
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "green", "blue", "sweet", "sour"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    define_missing()
    from transformers import BertTokenizer

    folder = tmp_path_factory.mktemp("words")
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    return BertTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def ensemble(tokenizer):
    from transformers import BertConfig, BertForSequenceClassification

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
        names = {0: "colour", 1: "taste"}
        model = BertForSequenceClassification(BertConfig(vocab_size=10, id2label=names, **shape)).eval()
    texts = [WORDS[5 + i % 5] + " " + WORDS[5 + i % 4] for i in range(40)]
    labels = torch.tensor([int("s" in text) for text in texts])
    batch = {**tokenizer(texts, padding=True, return_tensors="pt"), "labels": labels}
    return repulse.retrofit(model, [batch], validation=[batch], recipe=QUICK, progress=False)


def test_a_pipeline_with_doubt(ensemble, tokenizer):
    from repulse.integrations.huggingface import UncertainPipeline

    ask = UncertainPipeline(ensemble, tokenizer, batch_size=2)
    texts = ["red green", "sweet", "sour sour sour"]
    found = ask(texts)
    wanted = ensemble.predict(dict(tokenizer(texts, padding=True, return_tensors="pt")))
    assert [row["label"] for row in found] == [("colour", "taste")[label] for label in wanted.labels]
    for name, values in {"score": wanted.confidence, "epistemic": wanted.epistemic}.items():
        torch.testing.assert_close(torch.tensor([row[name] for row in found]), values, rtol=1e-3, atol=1e-5)
    assert ask("sweet") == pytest.approx(ask(["sweet"])[0])
    assert ask([]) == []


def test_a_pipeline_is_for_classes(tokenizer):
    from repulse.integrations.huggingface import UncertainPipeline

    rows = normal(20, 4)
    numbers = repulse.retrofit(
        perceptron(1), [(rows, rows[:, 0])], recipe=QUICK.replace(task="regression"), progress=False
    )
    with pytest.raises(DataError, match="`ensemble` to be a classifier"):
        UncertainPipeline(numbers, lambda inputs, return_tensors: {"input": torch.stack(inputs)})(rows[0])


def test_to_and_from_a_folder_network_and_card_included(ensemble, tokenizer, tmp_path):
    from repulse.integrations.huggingface import HubEnsemble

    HubEnsemble(ensemble, data="forty pairs of words").save_pretrained(tmp_path / "model")
    files = {path.name for path in (tmp_path / "model").iterdir()}
    assert {"README.md", "config.json", "ensemble.json", "model.safetensors"} <= files
    state = torch.get_rng_state()
    again = HubEnsemble.from_pretrained(tmp_path / "model").ensemble
    assert torch.equal(torch.get_rng_state(), state)
    inputs = dict(tokenizer(["red sour"], return_tensors="pt"))
    torch.testing.assert_close(again.predict(inputs).probs, ensemble.predict(inputs).probs)
    assert again.class_names == ("colour", "taste")
    card = (tmp_path / "model" / "README.md").read_text()
    for part in (
        "library_name: repulse",
        "- Data: forty pairs of words",
        f"heads were made to disagree {ensemble.repulsion}",
        "- Classes: colour, taste",
        f"| NLL | {ensemble.summary().network['nll']:.4g} | {ensemble.summary().ensemble['nll']:.4g} |",
        "with `heads=3`",
        ensemble.network["weights"],
    ):
        assert part in card, part
    assert "{" not in card.split("```")[0]


def test_what_is_pushed_is_what_is_saved(ensemble, tmp_path, monkeypatch):
    """The mixin's own `push_to_hub`, up to the two calls that need the network."""
    from types import SimpleNamespace

    from huggingface_hub import HfApi

    from repulse.integrations.huggingface import HubEnsemble

    sent = {}
    monkeypatch.setattr(HfApi, "create_repo", lambda self, repo_id, **_: SimpleNamespace(repo_id=repo_id))

    def upload(self, *, repo_id, folder_path, **_):
        sent[repo_id] = {path.name for path in folder_path.iterdir()}
        return "https://hub.example/commit"

    monkeypatch.setattr(HfApi, "upload_folder", upload)
    assert HubEnsemble(ensemble).push_to_hub("me/colours") == "https://hub.example/commit"
    assert {"README.md", "config.json", "ensemble.json", "model.safetensors"} <= sent["me/colours"]


def test_a_network_of_ones_own_is_given_when_loading(tmp_path):
    from repulse.integrations.huggingface import HubEnsemble

    network, rows = perceptron(), normal(30, 4)
    ensemble = repulse.retrofit(network, [(rows, torch.arange(30) % 5)], recipe=QUICK, progress=False)
    HubEnsemble(ensemble).save_pretrained(tmp_path)
    assert torch.equal(
        HubEnsemble.from_pretrained(tmp_path, model=network).ensemble.predict(rows).probs, ensemble.predict(rows).probs
    )
    assert "not said by those who made it" in (tmp_path / "README.md").read_text()
    (tmp_path / "config.json").unlink(missing_ok=True)
    with pytest.raises(CheckpointError, match="pass `model=`"):
        HubEnsemble.from_pretrained(tmp_path)
