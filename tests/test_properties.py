"""Properties of public calls, for whatever hypothesis comes up with: a right answer, or one sentence."""

from __future__ import annotations

import string

import jaxtyping
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from repulse import ActiveLearning, DataError, Recipe, RecipeError, RepulseError, batchbald, functional
from repulse._files import sealed, unsealed
from repulse._schema import mismatch

QUICK = settings(max_examples=30, deadline=None)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(string.ascii_letters), inner, max_size=3),
    max_leaves=8,
)
ANYTHING = JSON | st.floats() | st.tuples(st.integers())


@pytest.fixture(autouse=True, scope="module")
def as_users_run_it():
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@QUICK
@given(st.dictionaries(st.text(string.ascii_letters, min_size=1), JSON, max_size=4), st.data())
def test_sealed_json_comes_back_and_no_change_of_a_character_does(content, data):
    text = sealed(content)
    content.pop("digest", None)
    assert unsealed(text) == content
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from(string.printable))
    try:
        found = unsealed(text[:at] + other + text[at + 1 :])
    except ValueError:
        return
    assert found == content  # white space


@QUICK
@given(st.sampled_from(sorted(Recipe.__dataclass_fields__)), ANYTHING)
def test_a_recipe_is_right_or_refused(name, value):
    try:
        recipe = Recipe(**{name: value})
    except RecipeError:
        return
    assert recipe.replace() == recipe


@QUICK
@given(ANYTHING, ANYTHING)
def test_labels_are_told_or_refused_and_then_nothing_changes(indices, labels):
    learning = ActiveLearning(torch.zeros(9, 2), lambda *_: None)
    learning.tell([0, 1], [2, 1])
    try:
        learning.tell(indices, labels)
    except DataError:
        assert learning.known == {0: 2, 1: 1}
    assert all(isinstance(label, int) and 0 <= index < 9 for index, label in learning.known.items())


@QUICK
@given(
    st.lists(st.floats(-1, 1, width=32), min_size=12, max_size=12),
    st.floats(-38, 38),
    st.sampled_from(["rbf", "imq", "l2", "laplace"]),
    st.sampled_from(["kde", "blob", "sge", "ssge", "svgd"]),
    st.sampled_from(["jointly", "pointwise"]),
)
def test_repulsion_is_finite_at_any_scale(values, exponent, kernel, rule, compare):
    outputs = (torch.tensor(values).view(3, 2, 2) * 10.0**exponent).requires_grad_()
    loss = functional.repulsion(outputs, kernel=kernel, rule=rule, compare=compare)
    loss.backward()
    assert bool(loss.isfinite())
    assert outputs.grad is not None
    assert bool(outputs.grad.isfinite().all())


@QUICK
@given(st.integers(1, 4), st.integers(1, 6), st.integers(2, 4), st.integers(-1, 8), st.integers(0, 99))
def test_batchbald_chooses_different_samples_or_refuses(members, count, classes, k, seed):
    generator = torch.Generator().manual_seed(seed)
    log_probs = torch.randn(members, count, classes, generator=generator).log_softmax(dim=-1)
    try:
        chosen, gains = batchbald(log_probs, k)
    except RepulseError:
        assert not 1 <= k <= count
        return
    assert len(set(chosen.tolist())) == k
    assert bool((gains >= 0).all())
    assert float(gains.sum()) <= float(torch.tensor(float(members)).log()) + 1e-6


@QUICK
@given(JSON)
def test_what_matches_a_hint_is_of_that_type(value):
    assert (mismatch(value, int, "it") is None) == (type(value) is int)
    assert (mismatch(value, dict[str, int] | None, "it") is None) == (
        value is None or (isinstance(value, dict) and all(type(part) is int for part in value.values()))
    )
