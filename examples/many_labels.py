"""Comments of GoEmotions, each with one or several of 28 emotions: are probabilities right, and is it a comment at all?

A linear layer on all-MiniLM-L6-v2, frozen, fitted to 4,000 comments; 1,000 for validation, 2,000 of the test comments
judge. Unknown: queries to an assistant (CLINC150) and sentences of Wikipedia. Features are kept in
~/.cache/repulse/examples, where the next run finds them. Needs GoEmotions and CLINC150 in the folder `REPULSE_DATA`
and `repulse-lab[text]`.

python examples/many_labels.py
"""

import json
import os
from pathlib import Path

import torch
from torch.nn import functional as F

import repulse
from repulse import metrics
from repulse_lab.networks.sentences import SentenceClassifier, TokenBatches, minilm

KEEP = Path.home() / ".cache" / "repulse" / "examples"
FILES = Path(os.environ.get("REPULSE_DATA", "data")) / "files"
NAMES = (FILES / "goemotions" / "labels.txt").read_text().split() if FILES.exists() else []


def comments(part, most):
    """Texts, and 0 or 1 for each emotion."""
    lines = (FILES / "goemotions" / f"{part}.tsv").read_text().splitlines()[:most]
    texts, numbers, _ = zip(*(line.split("\t") for line in lines), strict=True)
    labels = torch.zeros(len(texts), len(NAMES))
    for row, chosen in enumerate(numbers):
        labels[row, [int(number) for number in chosen.split(",")]] = 1
    return list(texts), labels


def elsewhere(most):
    """Texts that are no comments."""
    queries = json.loads((FILES / "clinc150" / "data_full.json").read_text())["test"]
    wikipedia = (FILES / "clinc150" / "all_wiki_sents.txt").read_text().splitlines()
    return {"queries": [text for text, _ in queries[:: len(queries) // most]], "Wikipedia": wikipedia[:most]}


def trained(tokenizer, encoder, texts, labels):
    """A linear layer on the sentences' embeddings, by logistic regression; the encoder stays as it is."""
    torch.manual_seed(0)
    network = SentenceClassifier(encoder, 384, len(NAMES)).eval()
    kept = KEEP / "goemotions-classifier.pt"
    if kept.exists():
        network.classifier.load_state_dict(torch.load(kept, weights_only=True))
        return network
    seen = []
    hook = network.classifier.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
    batches = TokenBatches(tokenizer, texts, labels)
    with torch.no_grad():
        for batch in batches:
            network(**{name: value for name, value in batch.items() if name != "labels"})
    hook.remove()
    x, y = torch.cat(seen), labels[batches.order]
    adam = torch.optim.Adam(network.classifier.parameters(), 0.1)
    for _ in range(300):
        adam.zero_grad()
        F.binary_cross_entropy_with_logits(network.classifier(x), y).backward()
        adam.step()
    KEEP.mkdir(parents=True, exist_ok=True)
    torch.save(network.classifier.state_dict(), kept)
    return network


@torch.no_grad()
def features_of(ensemble, batches):
    return torch.cat([ensemble.backbone({k: v for k, v in batch.items() if k != "labels"}) for batch in batches])


def best_temperature(logits, labels):
    """The temperature with the smallest loss on validation comments."""
    tried = [1.05**power for power in range(-20, 60)]
    return min(tried, key=lambda t: float(F.binary_cross_entropy_with_logits(logits / t, labels)))


def detectors(x, bank, logits, p):
    """Scores of unknown texts by name, larger for those that are unknown."""
    closest = F.normalize(x, dim=1) @ F.normalize(bank, dim=1).T
    centred, mean = bank - bank.mean(dim=0), bank.mean(dim=0)
    precision = torch.linalg.inv(centred.T @ centred / len(bank) + 1e-6 * torch.eye(bank.shape[1]))
    alone = repulse.MultilabelPrediction(logits.unsqueeze(0))
    return {
        "network entropy": alone.total,
        "max logit": -logits.amax(dim=1),
        "energy": -F.softplus(logits).sum(dim=1),
        "KNN": -closest.topk(10, dim=1).values[:, -1],
        "Mahalanobis": (((x - mean) @ precision) * (x - mean)).sum(dim=1),
        "repulse, epistemic": p.epistemic,
        "repulse, total": p.total,
    }


def main():
    tokenizer, encoder = minilm()
    train, validation, test = comments("train", 4000), comments("dev", 1000), comments("test", 2000)
    network = trained(tokenizer, encoder, *train)
    ensemble = repulse.retrofit(
        network,
        TokenBatches(tokenizer, *train),
        validation=TokenBatches(tokenizer, *validation),
        recipe=repulse.Recipe(task="multilabel", repulsion_samples=3000),
        cache=KEEP / "goemotions",
        class_names=NAMES,
    )
    print(ensemble.summary())
    weight, bias = ensemble.backbone.weights
    batches = TokenBatches(tokenizer, *test)
    x, labels = features_of(ensemble, batches), test[1][batches.order]
    kept = ensemble.required_features("a comparison")
    assert kept.held_out is not None  # validation comments
    held_out, held_out_labels = kept.held_out
    width = ensemble.backbone.penultimate
    temperature = best_temperature(F.linear(held_out[:, :width], weight, bias), held_out_labels)
    logits = F.linear(x[:, :width], weight, bias)
    predictions = {
        "network": repulse.MultilabelPrediction(logits.unsqueeze(0)),
        f"temperature {temperature:.2f}": repulse.MultilabelPrediction(logits.unsqueeze(0) / temperature),
        "repulse": ensemble.heads.predict(x),
    }
    print("\n| mean over emotions | NLL | ECE % | AUROC | AP |\n| --- | --- | --- | --- | --- |")
    for name, p in predictions.items():
        nll = float(metrics.label_nll(p, labels).nanmean())
        ece = float(metrics.label_ece(p, labels, adaptive=True).nanmean())
        auroc, precision = (
            float(metric(p, labels).nanmean()) for metric in (metrics.label_auroc, metrics.label_average_precision)
        )
        print(f"| {name} | {nll:.4f} | {100 * ece:.2f} | {100 * auroc:.1f} | {100 * precision:.1f} |")
    bank = kept.train[:, :width]
    known = detectors(x[:, :width], bank, logits, predictions["repulse"])
    unknown = {}
    for name, texts in elsewhere(600).items():
        far = features_of(ensemble, TokenBatches(tokenizer, texts))
        logits = F.linear(far[:, :width], weight, bias)
        unknown[name] = detectors(far[:, :width], bank, logits, ensemble.heads.predict(far))
    print(f"\n| AUROC by | {' | '.join(unknown)} |\n| --- | --- | --- |")
    for name, scores in known.items():
        found = (f"{100 * metrics.auroc(scores, other[name]):.1f}" for other in unknown.values())
        print(f"| {name} | {' | '.join(found)} |")


if __name__ == "__main__":
    main()
