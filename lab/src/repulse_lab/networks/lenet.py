"""LeNet-5 with rectifiers."""

from __future__ import annotations

from torch import Tensor, nn

from repulse.errors import RecipeError, expected


class LeNet(nn.Module):
    """Two convolutions with pooling, then 120 and 84 features.

    Args:
        classes: number of outputs.
        padding: pixels of zeros around the image; 2 makes the 32 x 32 of the original out of 28 x 28.
        channels: of the images.
        size: of the images, in pixels.
    """

    def __init__(self, classes: int = 10, padding: int = 0, channels: int = 1, size: int = 28) -> None:
        super().__init__()
        side = ((size + 2 * padding - 4) // 2 - 4) // 2
        if side < 1:
            raise RecipeError(expected("size", f"at least {16 - 2 * padding} pixels for LeNet", size))
        self.features = nn.Sequential(
            *(nn.Conv2d(channels, 6, 5, padding=padding), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        )
        self.classifier = nn.Sequential(
            *(nn.Flatten(), nn.Linear(16 * side**2, 120), nn.ReLU()),
            *(nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))
