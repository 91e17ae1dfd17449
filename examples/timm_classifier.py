"""Any timm model: `pretrained=True` and your own loader in place of the random ones here.

python examples/timm_classifier.py
"""

import timm
import torch

import repulse

model = timm.create_model("resnet18", pretrained=False, num_classes=5)
loader = [(torch.rand(16, 3, 64, 64), torch.randint(5, (16,))) for _ in range(8)]

ensemble = repulse.retrofit(model, loader)

p = ensemble.predict(torch.rand(4, 3, 64, 64))
print(ensemble)
print("labels", p.labels.tolist(), "epistemic", [f"{e:.3f}" for e in p.epistemic.tolist()])
