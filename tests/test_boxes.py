"""Detectors: heads in place of the class layer that is applied to every proposal, by the recipe of the docs."""

# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import repulse
from models import normal
from repulse._operators import define_missing
from repulse.metrics import auroc

NO_OBJECT = 2


class Detector(nn.Module):
    """Four proposals per image, its quarters: features of each, a linear class layer, and boxes."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())
        self.classifier = nn.Linear(32, NO_OBJECT + 1)

    def forward(self, images):
        parts = self.body(images).unflatten(3, (2, 8)).unflatten(2, (2, 8)).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
        boxes = torch.tensor([[x, y, 0.5, 0.5] for y in (0.25, 0.75) for x in (0.25, 0.75)])
        features = torch.cat([parts.mean(dim=(3, 4)), parts.std(dim=(3, 4))], dim=2)
        return {"logits": self.classifier(features), "pred_boxes": boxes.expand(len(images), 4, 4)}


def scenes(kinds, seed):
    """Grey images with one object in a quarter: stripes along (0) or across (1), or, as nobody was told, dots (3)."""
    images, lines = 0.05 * normal(len(kinds), 1, 16, 16, seed=seed), (torch.arange(8) % 4 < 2).float()
    patterns = {0: lines.expand(8, 8), 1: lines.expand(8, 8).T, 3: lines.unsqueeze(1) * lines}
    where = torch.randint(4, (len(kinds),), generator=torch.Generator().manual_seed(seed)).tolist()
    for i, (kind, quarter) in enumerate(zip(kinds, where, strict=True)):
        top, left = 8 * (quarter // 2), 8 * (quarter % 2)
        images[i, 0, top : top + 8, left : left + 8] += patterns[kind]
    boxes = [torch.tensor([[0.25 + 0.5 * (q % 2), 0.25 + 0.5 * (q // 2), 0.5, 0.5]]) for q in where]
    return images, [
        {"boxes": box, "class_labels": torch.tensor([kind])} for box, kind in zip(boxes, kinds, strict=True)
    ]


class Watched:
    """A detector whose class layer is watched: features of all proposals, and the class of the object at each."""

    def __init__(self, detector, class_layer, no_object):
        self.detector, self.no_object = detector, no_object
        class_layer.register_forward_hook(lambda _, inputs, __: setattr(self, "seen", inputs[0]))

    @torch.no_grad()
    def __call__(self, images, objects):
        boxes = self.detector(images)["pred_boxes"]
        classes = torch.full(boxes.shape[:2], self.no_object)
        for row, one in enumerate(objects):
            classes[row, torch.cdist(boxes[row], one["boxes"], p=1).argmin(dim=0)] = one["class_labels"]
        return self.seen.flatten(0, 1), classes.flatten()


def test_unknown_objects_in_a_detector_get_high_epistemic_uncertainty():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        detector = Detector().eval()
    watched = Watched(detector, detector.classifier, NO_OBJECT)
    features, classes = watched(*scenes([0, 1] * 60, seed=0))
    adam = torch.optim.Adam(detector.classifier.parameters(), 0.05)
    for _ in range(200):
        adam.zero_grad()
        F.cross_entropy(detector.classifier(features), classes).backward()
        adam.step()

    generator = torch.Generator().manual_seed(0)
    far = repulse.repulsion.Shell().sample_features(features, 1000, generator, classes)
    last = (detector.classifier.weight, detector.classifier.bias)
    heads = repulse.fit_heads(features, classes, far, classes=NO_OBJECT + 1, start=last, progress=False)

    known, truth = watched(*scenes([0, 1] * 20, seed=1))
    assert float((heads.predict(known).labels == truth).float().mean()) > 0.95
    unknown, is_object = watched(*scenes([3] * 40, seed=2))
    score = heads.predict(unknown).epistemic[is_object == 3]
    assert len(score) == 40
    assert auroc(heads.predict(known).epistemic, score) > 0.95


def test_the_class_layer_of_detr_is_one_of_them():
    define_missing()
    transformers = pytest.importorskip("transformers")
    stages = {"embedding_size": 8, "hidden_sizes": [8, 8], "depths": [1, 1], "out_features": ["stage2"]}
    config = transformers.DetrConfig(
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=transformers.ResNetConfig(layer_type="basic", **stages),
        num_labels=2,
        num_queries=4,
        d_model=16,
        **{f"{part}_{what}": 1 for part in ("encoder", "decoder") for what in ("layers", "attention_heads")},
        **{f"{part}_ffn_dim": 16 for part in ("encoder", "decoder")},
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        detector = transformers.DetrForObjectDetection(config).eval()
    layer = detector.class_labels_classifier
    watched = Watched(detector, layer, config.num_labels)
    images, objects = scenes([0, 1] * 8, seed=0)
    features, classes = watched(F.interpolate(images.repeat(1, 3, 1, 1), size=(32, 32)), objects)
    assert features.shape == (64, 16)
    assert sorted(classes.unique().tolist()) == [0, 1, 2]
    recipe = repulse.Recipe(space="none", epochs=1)
    heads = repulse.fit_heads(
        features, classes, None, recipe, classes=3, start=(layer.weight, layer.bias), progress=False
    )
    torch.testing.assert_close(heads.predict(features).probs, layer(features).softmax(dim=1), atol=0.05, rtol=0)
