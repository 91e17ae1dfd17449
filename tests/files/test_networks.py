"""Networks by name, each with its own preprocessing: real ones of timm and Hugging Face, with random weights."""

from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from families import SMALL, timm_model
from models import CLASSES
from own_data import picture
from repulse import BackboneError
from repulse.files import open_network
from repulse.files.samples import open_image
from torchvision_operators import define_missing

os.environ["HF_HUB_OFFLINE"] = "1"


@pytest.fixture
def image_file(tmp_path) -> Path:
    path = tmp_path / "image.png"
    Image.open(io.BytesIO(picture(0))).resize((200, 180)).save(path)
    return path


def test_a_function_of_a_module_and_of_a_file():
    by_name = open_network("own_data:rows_network")
    by_file = open_network(f"{Path(__file__).parents[1] / 'own_data.py'}:rows_network")
    rows = by_name.prepare("rows")(np.ones((2, 4), dtype=np.float64))
    assert rows.dtype == torch.float32
    assert torch.equal(by_name.model(rows), by_file.model(rows))
    assert not by_name.model.training


def test_a_last_layer_for_ready_features(tmp_path):
    weight, bias = np.ones((3, 2), np.float32), np.zeros(3, np.float32)
    np.savez(tmp_path / "last.npz", weight=weight, bias=bias)
    network = open_network("linear", tmp_path / "last.npz")
    assert network.kind == "rows"
    assert network.model(torch.ones(1, 2)).tolist() == [[2, 2, 2]]


@pytest.mark.parametrize("name", ["test_efficientnet", "timm:test_efficientnet"])
def test_timm_with_a_checkpoint(name, tmp_path, image_file):
    model = timm_model("test_efficientnet").eval()
    torch.save({"state_dict": model.state_dict()}, tmp_path / "weights.pth")
    network = open_network(name, tmp_path / "weights.pth")
    x = network.prepare("images")([image_file, image_file])
    assert x.shape == (2, 3, 160, 160)  # its own size, and below its own normalisation
    assert torch.allclose(network.model(x), model(x))
    from timm.data import create_transform, resolve_data_config

    wanted = create_transform(**resolve_data_config({}, model=model))(open_image(image_file))
    assert torch.equal(x[0], wanted)


def test_a_folder_of_timm(tmp_path, image_file):
    model = timm_model("test_efficientnet").eval()
    folder = tmp_path / "folder"
    folder.mkdir()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    cfg = {"input_size": [3, 96, 96], "mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bilinear", "crop_pct": 1}
    about = {"architecture": "test_efficientnet", "num_classes": CLASSES, "pretrained_cfg": cfg}
    (folder / "config.json").write_text(json.dumps(about))
    network = open_network(str(folder))
    x = network.prepare("images")([image_file])
    assert x.shape == (1, 3, 96, 96)
    assert torch.allclose(network.model(x), model(x), atol=1e-6)


def test_a_text_folder_of_hugging_face(tmp_path):
    define_missing()
    transformers = pytest.importorskip("transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "blue"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    names = {0: "no", 1: "yes"}
    config = transformers.BertConfig(vocab_size=len(words), id2label=names, label2id={"no": 0, "yes": 1}, **SMALL)
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path)
    transformers.BertTokenizer(vocab=str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    network = open_network(str(tmp_path))
    assert (network.kind, network.class_names) == ("texts", ("no", "yes"))
    inputs = network.prepare("texts")(["red blue", "red"])
    assert inputs["attention_mask"].sum(dim=1).tolist() == [4, 3]
    assert network.model(**inputs).logits.shape == (2, 2)
    about = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**about, "architectures": ["BertModel"]}))
    with pytest.raises(BackboneError, match="a classifier, whose last layer is trained, but got BertModel"):
        open_network(str(tmp_path))


def test_an_image_folder_of_hugging_face(tmp_path, image_file):
    define_missing()
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(image_size=32, patch_size=8, num_labels=3, **SMALL)
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path)
    transformers.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(tmp_path)
    network = open_network(str(tmp_path))
    assert (network.kind, network.class_names) == ("images", None)
    inputs = network.prepare("images")([image_file])
    assert inputs["pixel_values"].shape == (1, 3, 32, 32)
    assert network.model(**inputs).logits.shape == (1, 3)


@pytest.mark.parametrize(
    ("name", "checkpoint", "said"),
    [
        ("own_data:nothing", None, "a function that returns the network, but got AttributeError"),
        ("no_such_module:f", None, "but got ModuleNotFoundError"),
        ("no/such/file.py:f", None, "FileNotFoundError: there is no no/such/file.py"),
        ("own_data:not_a_network", None, "a network, or (network, transform), but got int."),
        ("own_data:fails", None, "RuntimeError: the weights are."),
        ("own_data:rows_network", "own_data.py", "TypeError"),  # it takes no checkpoint
        ("resnet1800", None, "Did you mean 'resnet"),
        ("two words", None, "Expected `model` to be a name of timm, a folder"),
        ("resnet18", None, "Expected `--checkpoint` to be the file with the weights of timm's resnet18"),
        ("resnet18", "nothing.pth", "nothing.pth, which does not exist"),
        ("resnet18", "own_data.py", "to be the weights of timm's resnet18"),
        ("linear", None, "Expected `--checkpoint` to be a file with `weight` and `bias`"),
        ("linear", "own_data.py", "a .safetensors or .npz file with `weight` (K, d)"),
        ("files", None, "with config.json in it, but got files."),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(name, checkpoint, said, monkeypatch):
    define_missing()
    monkeypatch.chdir(Path(__file__).parents[1])
    with pytest.raises(BackboneError) as caught:
        open_network(name, checkpoint)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["images", "texts"])
def test_images_and_texts_need_a_transform(kind):
    with pytest.raises(BackboneError, match="returns \\(network, transform\\)"):
        open_network("own_data:rows_network").prepare(kind)


def test_a_last_layer_may_be_in_safetensors(tmp_path):
    weight, bias = torch.arange(6.0).view(2, 3), torch.tensor([1.0, -1.0])
    save_file({"weight": weight, "bias": bias}, tmp_path / "last.safetensors")
    network = open_network("linear", tmp_path / "last.safetensors")
    assert torch.equal(network.model(torch.eye(3)), weight.T + bias)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ('{"architecture": "resnet18"}', "a whole network of timm"),
        ('{"architectures": ["BertForSequenceClassification"], "model_type": "bert"}', "with its preprocessing"),
    ],
)
def test_a_folder_without_its_weights_is_refused(config, words, tmp_path):
    pytest.importorskip("timm")
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(BackboneError, match=f"Expected `?{re.escape(str(tmp_path))}`? to be .*{words}"):
        open_network(str(tmp_path))
