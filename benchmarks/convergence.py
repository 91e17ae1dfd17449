"""What heads gain by being fitted further: CIFAR-10 by the published ResNet-20, fs-RLL-E repelled on Tiny ImageNet.

Puts the table in docs/speed.md.

    REPULSE_DATA=data python benchmarks/convergence.py
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from pathlib import Path

from repulse.baselines import LastLayerEnsemble
from repulse.evaluation.table import Column, Table
from repulse.recipe import FS_RLL_E
from repulse_lab.jobs.job import Place
from repulse_lab.speed.clock import threads
from repulse_lab.study.features import features_of
from repulse_lab.study.measures import Trial, measured
from tables import ROOT, insert

SCHEDULES = {
    "default (2,340 steps, 1e-3, cosine)": {},
    "3 epochs, 5e-3, cosine": {"epochs": 3, "lr": 5e-3},
    "3 epochs, 1e-2, cosine": {"epochs": 3, "lr": 1e-2},
    "30 epochs, 1e-4, constant (the paper's)": {"epochs": 30, "lr": 1e-4, "decay": "none"},
}
COLUMNS = {
    "seconds": Column("processor seconds", 2),
    "objective": Column("objective", 4),
    "accuracy": Column("accuracy", 2),
    "nll": Column("NLL", 3),
    "ece": Column("ECE", 2),
    "mean auroc": Column("mean AUROC", 1),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("REPULSE_DATA", "data")))
    parser.add_argument("--keep", type=Path, default=Path("results", "cpu", "cache"), help="folder of the features")
    parser.add_argument("--seeds", type=int, default=3)
    wanted = parser.parse_args()
    warnings.simplefilter("ignore")
    features = features_of("cifar10", {"name": "resnet20"}, 0, Place(wanted.data, wanted.keep, True))
    view, table = features.view("last"), Table("schedule", list(COLUMNS.values()))
    for name, change in SCHEDULES.items():
        runs = []
        for seed in range(wanted.seeds):
            recipe = FS_RLL_E.replace(**change, seed=seed)
            method = LastLayerEnsemble(10, recipe, view.repulsion["Tiny ImageNet"], 0)
            begun = time.process_time()
            with threads(1):  # one that waits for another counts as busy
                method.fit(view.train, features.images.targets)
            found, last = {"seconds": time.process_time() - begun}, method.heads.history[-1]
            found |= measured(Trial(method, features.images, view))
            found["objective"] = last.nll + recipe.strength_for(10) * (last.repulsion or 0.0)
            runs.append([found[key] for key in COLUMNS])
        table.add(name, runs)
    insert(ROOT / "docs" / "speed.md", "convergence", table.markdown())
    print(table.text())


if __name__ == "__main__":
    main()
