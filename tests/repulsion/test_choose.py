"""`choose`: which samples every kind of inputs gets, and that it says so."""

from __future__ import annotations

import pytest
import torch

from repulse.repulsion import choose
from repulse.repulsion.choose import SHELL_SHARE, kind_of


def normal(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def ids(*shape):
    return torch.randint(5, 100, shape, generator=torch.Generator().manual_seed(0))


WAVES = torch.sin(normal(16, 1) * 3 + torch.linspace(0, 20, 200))
KINDS = {
    "images": [
        normal(4, 3, 32, 32),
        normal(4, 32, 32, 3),
        normal(4, 1, 64, 10),
        (255 * torch.rand(4, 32, 32, 3)).byte(),
        (255 * torch.rand(4, 28, 28)).byte(),
        normal(4, 28, 28),
        {"pixel_values": normal(4, 3, 32, 32), "size": torch.arange(4)},
    ],
    "signals": [normal(4, 2, 100), WAVES, {"input_values": WAVES, "attention_mask": torch.ones(16, 200).long()}],
    "table": [
        normal(4, 3),
        normal(16, 300),
        normal(16, 80) * 10.0 ** torch.linspace(-3, 3, 80),
        {"age": normal(4), "codes": ids(4, 3)},
        (normal(4, 3), ids(4)),
        torch.randint(0, 2, (4, 20), generator=torch.Generator().manual_seed(0)),
    ],
    "text": [
        ids(4, 10),
        {"input_ids": ids(4, 10), "attention_mask": torch.ones(4, 10).long()},
        (ids(4, 10), torch.ones(4, 10).long()),
    ],
    "other": [
        normal(1, 3),  # nothing to shuffle with
        normal(4, 3, 5, 16, 16),
        (normal(7, 3), ids(2, 12)),  # a graph: nodes and links
        (normal(4, 3, 8, 8), normal(4, 3, 8, 8)),
        {"inputs_embeds": normal(4, 6, 12), "attention_mask": torch.ones(4, 6).long()},
    ],
}


@pytest.mark.parametrize(("kind", "inputs"), [(kind, inputs) for kind, some in KINDS.items() for inputs in some])
def test_every_kind_of_inputs_is_recognised(kind, inputs):
    assert kind_of(inputs) == kind
    choice = choose(inputs)
    assert choice.source.feature_share == (1 if kind == "other" else SHELL_SHARE)
    assert str(choice).endswith(("images", "signals", "a table", "token ids", "samples for"))
    assert "Mixup" not in str(choice)


def test_what_the_network_cannot_see_is_left_out():
    """A mean over tokens is blind to their order, and heads must not repel on training data."""
    embedding = normal(100, 8)
    choice = choose(ids(16, 10), lambda x: embedding[x].mean(dim=1))
    assert "SpanMix" in repr(choice.source)
    assert "WordShuffle" not in repr(choice.source)
    ordered = choose(ids(16, 10), lambda x: (embedding[x] * torch.arange(10).view(10, 1)).mean(dim=1))
    assert "TextSamples" in repr(ordered.source)


def test_what_the_network_cannot_take_is_left_out():
    """Integers that are no token ids but categories, each with its own table."""
    codes = torch.stack([torch.arange(16) % 3, 50 + torch.arange(16)], dim=1)
    few, many = normal(3, 4), normal(100, 4)
    choice = choose(codes, lambda x: few[x[:, 0]] + many[x[:, 1]])
    assert choice.source.feature_share == 1
    assert "WordShuffle" not in repr(choice.source)
    broken = choose(normal(8, 3), lambda x: x * torch.nan)
    assert broken.source.feature_share == 1
