"""Compile ensembles; fails if one says anything else than before. Run by `test_deploy.py`."""

from __future__ import annotations

import torch

from deployable import differences, ensemble_of


def main() -> None:
    torch.set_num_threads(1)
    for kind in ("cnn", "regression"):
        ensemble, x = ensemble_of(kind)
        answer = torch.compile(ensemble.deploy(), backend="eager", fullgraph=True)(x)._asdict()
        assert max(differences(ensemble, answer, x).values()) < 1e-5, kind
        with torch.no_grad():
            wanted = ensemble(x)
            for mode in (False, True):  # the network computes as in eval mode, whatever mode it is in
                ensemble.model.train(mode)
                found = torch.compile(ensemble, backend="eager")(x)
                assert torch.allclose(found, wanted, atol=1e-5), (kind, mode)
                assert all(part.training == mode for part in ensemble.model.modules())


if __name__ == "__main__":
    main()
