"""A Hugging Face image classifier, with batches as its processor makes them: `from_pretrained` in place of the config.

python examples/huggingface_vit.py
"""

import torch
from transformers import ViTConfig, ViTForImageClassification

import repulse

config = ViTConfig(
    image_size=32, patch_size=8, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, num_labels=5
)
model = ViTForImageClassification(config)
loader = [{"pixel_values": torch.rand(16, 3, 32, 32), "labels": torch.randint(5, (16,))} for _ in range(8)]

ensemble = repulse.retrofit(model, loader)

p = ensemble.predict({"pixel_values": torch.rand(4, 3, 32, 32)})
print(ensemble)
print("labels", p.labels.tolist(), "epistemic", [f"{e:.3f}" for e in p.epistemic.tolist()])
