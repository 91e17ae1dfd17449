"""Maps of evidence: positions sum to the share of the features that are their averages."""

import json

import pytest
import torch
from torch import nn

import repulse
from models import QUICK, images, normal

IMAGES = "ignore::repulse.FitWarning"


def explained(model, x, recipe=QUICK):
    ensemble = repulse.retrofit(model, [(x, torch.arange(len(x)) % 3)], recipe=recipe, progress=False)
    reasons = ensemble.why(x[:3] + 1, maps=True)
    assert isinstance(reasons, repulse.decide.Reasons)
    return ensemble, reasons


def small_cnn(end: nn.Module, features: int = 6) -> nn.Sequential:
    torch.manual_seed(0)
    stages = (nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Conv2d(4, 6, 3), nn.ReLU(inplace=True))
    return nn.Sequential(*stages, end, nn.Flatten(), nn.Linear(features, 3))


@pytest.mark.filterwarnings(IMAGES)
@pytest.mark.parametrize("centre", ["network", "heads"])
def test_positions_sum_to_the_share_of_the_features(centre):
    with torch.random.fork_rng(devices=[]):
        ensemble, reasons = explained(small_cnn(nn.AdaptiveAvgPool2d(1)), images(9), QUICK.replace(centre=centre))
    assert ensemble.backbone.penultimate == 6
    for reason in reasons:
        places = torch.tensor(reason.map, dtype=torch.float64)
        assert places.shape == (5, 5)  # two convolutions of three pixels leave five of nine
        assert float(places.sum()) == pytest.approx(reason.shares["penultimate features"], abs=1e-5)
    assert len(json.loads(reasons[0].json())["map"]) == 5
    assert len(reasons[0].plot(image=images(9)[0]).axes) > len(reasons[0].plot().axes) + 1
    quiet = ensemble.why(images(9)[0])
    assert isinstance(quiet, repulse.decide.Reason)
    assert quiet.map is None  # nobody asked


@pytest.mark.filterwarnings(IMAGES)
def test_a_position_that_says_what_is_usual_has_no_share():
    """A network that looks at each pixel alone: what stands out is where the map is not zero."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
        x = images(6)
        ensemble = repulse.retrofit(model, [(x, torch.arange(len(x)) % 3)], recipe=QUICK, progress=False)
        usual = x.mean(dim=(0, 2, 3))
    odd = usual[None, :, None, None].repeat(1, 1, 6, 6)
    odd[0, :, 2, 4] = 5.0
    reasons = ensemble.why(odd, maps=True)
    assert isinstance(reasons, repulse.decide.Reasons)
    places = torch.tensor(reasons[0].map).abs()
    assert float(places[2, 4]) > 100 * float(places.flatten().sort().values[-2])


@pytest.mark.filterwarnings(IMAGES)
@pytest.mark.parametrize(
    "make", [lambda: small_cnn(nn.AdaptiveMaxPool2d(1)), lambda: small_cnn(nn.Identity(), 150)], ids=["maxima", "all"]
)
def test_features_that_are_no_averages_have_no_map(make):
    with torch.random.fork_rng(devices=[]):
        _, reasons = explained(make(), images(9))
    assert all(reason.map is None for reason in reasons)


@pytest.mark.filterwarnings(IMAGES)
def test_rows_have_no_map():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        _, reasons = explained(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), normal(30, 4))
    assert reasons[0].map is None
