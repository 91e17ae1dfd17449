"""Names in sentences of WikiANN: which words are of a kind that the tagger was never taught?

A linear tagger on the token states of all-MiniLM-L6-v2, frozen, for people and places, B- and I-; organisations are
ignored in training, and should be found. 3,000 sentences for training, 600 for validation, 1,500 of the test sentences
judge. Also: the same test sentences with their words in random order, which is of the kind that heads are made to
disagree on, so that column is easy for them. Needs WikiANN in the folder `REPULSE_DATA` and `repulse-lab[text]`.

python examples/tokens.py
"""

import os
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import repulse
from repulse.metrics import PositionMetrics, auroc
from repulse_lab.networks.sentences import minilm

TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
UNKNOWN = ("B-ORG", "I-ORG")
IGNORED, IS_UNKNOWN = -100, -1  # neither takes part in the fit
KEEP = Path.home() / ".cache" / "repulse" / "examples"


class Tagger(nn.Module):
    def __init__(self, encoder):
        super().__init__()
        self.encoder, self.classifier = encoder, nn.Linear(384, len(TAGS))

    def forward(self, input_ids, attention_mask, **rest):
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask, **rest)
        return self.classifier(states.last_hidden_state)


def sentences(part, most):
    """Words and tags of sentences."""
    path = Path(os.environ["REPULSE_DATA"]) / "files" / "wikiann-en" / f"{part}.conll"
    found, words = [], []
    for line in path.read_text().split("\n"):
        if line:
            word, tag = line.rsplit("\t", 1)
            words.append((word.removeprefix("en:"), tag))
        elif words:
            found.append(words)
            words = []
        if len(found) == most:
            break
    return found


def shuffled(found):
    """The same words in random order."""
    generator = torch.Generator().manual_seed(0)
    return [[words[i] for i in torch.randperm(len(words), generator=generator)] for words in found]


def batches(tokenizer, found, size=64):
    """Batches with a tag at the first token of each word."""
    made = []
    found = sorted(found, key=len)
    for begin in range(0, len(found), size):
        part = found[begin : begin + size]
        words = [[word for word, _ in one] for one in part]
        encoding = tokenizer(
            words, is_split_into_words=True, padding=True, truncation=True, max_length=64, return_tensors="pt"
        )
        labels = torch.full(encoding["input_ids"].shape, IGNORED)
        for row, one in enumerate(part):
            before = None
            for token, word in enumerate(encoding.word_ids(row)):
                if word is not None and word != before:
                    labels[row, token] = number(one[word][1])
                before = word
        made.append({**encoding, "labels": labels})
    return made


def number(tag):
    return IS_UNKNOWN if tag in UNKNOWN else TAGS.index(tag)


def trained(encoder, data):
    """A linear tagger on the token states, by logistic regression; the encoder stays as it is."""
    torch.manual_seed(0)
    network = Tagger(encoder).eval()
    kept = KEEP / "wikiann-tagger.pt"
    if kept.exists():
        network.classifier.load_state_dict(torch.load(kept, weights_only=True))
        return network
    x, y = [], []
    with torch.no_grad():
        for batch in data:
            states = encoder(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
            counted = batch["labels"] >= 0
            x.append(states[counted])
            y.append(batch["labels"][counted])
    x, y = torch.cat(x), torch.cat(y)
    adam = torch.optim.Adam(network.classifier.parameters(), 0.02)
    for _ in range(200):
        adam.zero_grad()
        F.cross_entropy(network.classifier(x), y).backward()
        adam.step()
    KEEP.mkdir(parents=True, exist_ok=True)
    torch.save(network.classifier.state_dict(), kept)
    return network


def feature_scores(kept, width):
    """Distances of features from those of training words: to the tenth nearest, and to the means of tags."""
    x, y = kept.train[:, :width], kept.targets
    means = torch.stack([x[y == k].mean(dim=0) for k in range(len(TAGS))])
    precision = torch.linalg.inv(torch.cov((x - means[y]).T) + 1e-4 * torch.eye(width))
    bank = F.normalize(x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:4000]], dim=1)

    def score(rows):
        apart = rows.unsqueeze(1) - means
        mahalanobis = ((apart @ precision) * apart).sum(dim=2).amin(dim=1)
        return {"KNN": -(F.normalize(rows, dim=1) @ bank.T).topk(10).values[:, -1], "Mahalanobis": mahalanobis}

    return score


@torch.no_grad()
def judge(network, ensembles, by_features, data):
    """Scores of all words by name, the tags they have, and the quality of predictions."""
    found, tags, quality = {}, [], {name: PositionMetrics(len(TAGS)) for name in ("network", *ensembles)}
    for batch in data:
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        counted = batch["labels"] != IGNORED
        logits = network(**inputs)
        entropy = torch.special.entr(logits.softmax(dim=-1)).sum(dim=-1)
        predictions = {"network": repulse.TokenPrediction(logits.softmax(dim=-1), entropy, 0 * entropy, 1)}
        scores = {"network entropy": entropy, "max logit": -logits.amax(dim=-1), "energy": -logits.logsumexp(dim=-1)}
        for name, ensemble in ensembles.items():
            p = predictions[name] = ensemble.predict(inputs)
            scores |= {f"{name}, epistemic": p.epistemic, f"{name}, total": p.total}
        rows = network.encoder(**inputs).last_hidden_state[counted]
        each = {name: score[counted] for name, score in scores.items()} | by_features(rows)
        for name, score in each.items():
            found.setdefault(name, []).append(score)
        for name, p in predictions.items():
            quality[name].update(p, batch["labels"])
        tags.append(batch["labels"][counted])
    return {name: torch.cat(parts) for name, parts in found.items()}, torch.cat(tags), quality


def main():
    tokenizer, encoder = minilm()
    train = batches(tokenizer, sentences("train", 3000))
    validation = batches(tokenizer, sentences("dev", 600))
    test = sentences("test", 1500)
    network = trained(encoder, train)
    ensembles = {
        "LL-E": repulse.retrofit(network, train, recipe=repulse.LL_E, progress=False),
        "repulse": repulse.retrofit(network, train, validation=validation, class_names=TAGS),
    }
    print(ensembles["repulse"].summary())
    by_features = feature_scores(ensembles["repulse"].kept, 384)
    scores, tags, quality = judge(network, ensembles, by_features, batches(tokenizer, test))
    mixed, mixed_tags, _ = judge(network, ensembles, by_features, batches(tokenizer, shuffled(test[:500])))
    print("\n| | accuracy % | NLL | ECE % |\n| --- | --- | --- | --- |")
    for name, one in quality.items():
        m = one.compute()
        print(f"| {name} | {100 * m['accuracy']:.1f} | {m['nll']:.3f} | {100 * m['ece']:.2f} |")
    print("\n| AUROC by | organisations | words in random order |\n| --- | --- | --- |")
    for name, score in scores.items():
        known, unknown = score[tags >= 0], score[tags == IS_UNKNOWN]
        easy = auroc(known, mixed[name][mixed_tags >= 0])
        print(f"| {name} | {100 * auroc(known, unknown):.1f} | {100 * easy:.1f} |")
    words = ["He", "moved", "to", "Oslo", "to", "work", "for", "Deutsche", "Bank"]
    encoding = tokenizer([words], is_split_into_words=True, return_tensors="pt")
    p = ensembles["repulse"].predict(dict(encoding))
    assert isinstance(p, repulse.TokenPrediction)
    p = p.words([encoding.word_ids(0)])
    told = zip(words, p.labels[0].tolist(), p.epistemic[0].tolist(), strict=True)
    print("\n" + ", ".join(f"{word} {TAGS[tag]} {doubt:.2f}" for word, tag, doubt in told))


if __name__ == "__main__":
    main()
