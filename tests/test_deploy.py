"""A deployed ensemble: a plain module that says what `predict` says."""

from __future__ import annotations

import copy
import io
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

import repulse
from deployable import KINDS, differences, ensemble_of
from models import QUICK, normal, same_state, state_of
from repulse.backbone.batches import call


@pytest.mark.parametrize("kind", KINDS)
def test_a_deployed_ensemble_says_what_predict_says(kind):
    ensemble, x = ensemble_of(kind)
    answer = call(ensemble.deploy(), x)._asdict()
    first = "mean" if kind in ("regression", "several targets") else "probs"
    assert list(answer) == [first, "aleatoric", "epistemic", "total"]
    assert max(differences(ensemble, answer, x).values()) < 1e-6


def test_the_network_is_left_as_it_was_and_shares_its_memory():
    ensemble, x = ensemble_of("cnn")
    before = state_of(ensemble.model)
    deployed = ensemble.deploy()
    deployed(x)
    ours, theirs = (list(m.parameters()) for m in (deployed.backbone.model, ensemble.model))
    assert [p.data_ptr() for p in ours] == [p.data_ptr() for p in theirs]
    assert not any(p.requires_grad for p in deployed.parameters())
    deployed.double()(x.double())  # moves the twin alone
    assert same_state(before, state_of(ensemble.model))
    assert next(ensemble.model.parameters()).dtype == torch.float32


def test_it_adds_no_hooks_when_it_is_called():
    ensemble, x = ensemble_of("cnn")
    deployed = ensemble.deploy()
    before = [list(part._forward_hooks) for part in deployed.modules()]
    deployed(x)
    assert [list(part._forward_hooks) for part in deployed.modules()] == before


def test_it_stays_in_eval_mode():
    ensemble, x = ensemble_of("cnn")
    deployed = ensemble.deploy()
    before = deployed(x).probs
    deployed.train()
    assert not any(part.training for part in deployed.modules())
    assert torch.equal(deployed(x).probs, before)


def test_copies_and_files_of_it_work_alone():
    ensemble, x = ensemble_of("cnn")
    deployed = ensemble.deploy()
    file = io.BytesIO()
    torch.save(deployed, file)
    file.seek(0)
    for other in (copy.deepcopy(deployed), torch.load(file, weights_only=False)):
        assert torch.equal(other(x).epistemic, deployed(x).epistemic)


def test_gradients_flow_to_its_inputs():
    ensemble, x = ensemble_of("cnn")
    x = x.clone().requires_grad_()
    ensemble.deploy()(x).epistemic.sum().backward()
    assert float(x.grad.abs().sum()) > 0


def test_inputs_that_are_not_finite_give_nan_and_no_error():
    ensemble, x = ensemble_of("regression")
    bad = x.clone()
    bad[2, 1] = float("nan")
    answer = ensemble.deploy()(bad)
    assert [bool(value) for value in answer.mean.isnan()] == [i == 2 for i in range(len(x))]


class Waiting(nn.Module):
    """Lets each thread wait in the middle of its pass until the other is there too."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
        self.together: list[threading.Barrier] = []

    def forward(self, x):
        hidden = self.body(x).tanh()
        for barrier in self.together:
            barrier.wait(timeout=20)
        return self.head(hidden)


def test_two_threads_do_not_mix_their_passes():
    model = Waiting()
    targets = torch.arange(30) % 3
    ensemble = repulse.retrofit(model, [(normal(30, 4), targets)], recipe=QUICK, layers=["body"], progress=False)
    deployed = ensemble.deploy()
    batches = [normal(5, 4, seed=1), normal(5, 4, seed=2)]
    alone = [deployed(x).probs for x in batches]
    deployed.backbone.model.together.append(threading.Barrier(2))
    found = {}
    threads = [
        threading.Thread(target=lambda i=i, x=x: found.update({i: deployed(x).probs})) for i, x in enumerate(batches)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(2):  # another thread may add up in another order
        torch.testing.assert_close(found[i], alone[i])


def test_ensembles_compile():
    """In a process of its own: what checks the shapes of our arguments in tests is not for compilers."""
    script = Path(__file__).with_name("compiled_ensembles.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, "a compiler had something to say"


@pytest.mark.parametrize("kind", ["cnn", "several labels", "several targets"])
def test_torch_exports_the_ensemble_for_any_number_of_samples(kind):
    ensemble, x = ensemble_of(kind)
    shapes = {"inputs": ({0: torch.export.Dim("batch")},)}
    for module in (ensemble, ensemble.deploy()) if kind == "cnn" else (ensemble.deploy(),):
        program = torch.export.export(module, (x,), dynamic_shapes=shapes).module()
        for batch in (x[:1], x[:7]):
            found, wanted = program(batch), module(batch)
            pairs = [(found, wanted)] if isinstance(wanted, torch.Tensor) else zip(found, wanted, strict=True)
            assert all(torch.allclose(a, b, atol=1e-5) for a, b in pairs)
