"""The library as users install it: its wheel alone, in an environment with nothing but what it declares to need."""

from __future__ import annotations

import email
import re
import subprocess
import sys
import sysconfig
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
BUILD = "import sys, hatchling.build; hatchling.build.build_wheel(sys.argv[1])"

BEFORE = """
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(8, 4)
)
train_loader = [(torch.rand(32, 3, 16, 16), torch.randint(4, (32,))) for _ in range(4)]
validation_loader = calibration_loader = [(torch.rand(32, 3, 16, 16), torch.randint(4, (32,)))]
images = torch.rand(5, 3, 16, 16)
"""
AFTER = """
assert p.probs.shape == (5, 4)
assert torch.equal(p.total, p.aleatoric + p.epistemic)
assert len(gate(images).action) == 5
assert ensemble(images).shape == (5, 4)
assert torch.allclose(ensemble.predict(images).probs, p.probs, atol=1e-6)
print("done with", repulse.__file__)
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("wheels")
    for house in (ROOT, ROOT / "lab"):
        subprocess.run([sys.executable, "-c", BUILD, str(folder)], cwd=house, check=True, capture_output=True)
    return {path.name.split("-")[0]: path for path in folder.glob("*.whl")}


@pytest.fixture(scope="module")
def python(wheels, tmp_path_factory) -> Path:
    """The interpreter of an environment with the library's wheel and the packages that it needs, and no others."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", "--quiet"]
    subprocess.run([*install, "--disable-pip-version-check", str(wheels["repulse"])], check=True)
    for name in needed(requirements(wheels["repulse"])):
        for top in {file.parts[0] for file in distribution(name).files or ()} - {"..", "__pycache__"}:
            (site / top).symlink_to(distribution(name).locate_file(top))
    return python


def requirements(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as file:
        name = next(name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(file.read(name)).get_all("Requires-Dist") or []


def needed(lines: list[str]) -> set[str]:
    """Return the packages that these requirements, without any extra, bring in, directly or not."""
    names: set[str] = set()
    left = list(lines)
    while left:
        requirement = Requirement(left.pop())
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if wanted and requirement.name not in names:
            names.add(requirement.name)
            left += distribution(requirement.name).requires or []
    return names


def contents(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as file:
        return {name.split("/")[0] for name in file.namelist()}


def test_each_wheel_holds_its_own_house(wheels):
    assert {re.sub(r"-.*\.", ".", name) for name in contents(wheels["repulse"])} == {"repulse", "repulse.dist-info"}
    lab = {re.sub(r"-.*\.", ".", name) for name in contents(wheels["repulse_lab"])}
    assert lab == {"repulse_lab", "repulse_lab.dist-info"}
    with zipfile.ZipFile(wheels["repulse"]) as file:
        assert {"repulse/py.typed", "repulse/evaluation/page.css", "repulse/serve/page.html"} <= set(file.namelist())


def test_the_readme_runs_with_the_library_alone(python, tmp_path):
    (code,) = re.findall(r"```python\n(import repulse\n.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    script = tmp_path / "readme.py"
    script.write_text(BEFORE + code + AFTER)
    done = subprocess.run([python, "-I", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert str(python.parents[1]) in done.stdout


def test_what_is_not_declared_is_not_there(python):
    absent = ("repulse_lab", "sklearn", "matplotlib", "scipy", "PIL")
    script = f"import importlib.util; print([n for n in {absent} if importlib.util.find_spec(n)])"
    done = subprocess.run([python, "-I", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_command_is_installed_and_the_demo_says_what_it_needs(python, tmp_path):
    done = subprocess.run(
        [python.with_name("repulse"), "demo"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == "repulse demo needs sklearn and matplotlib: pip install 'repulse[demo]'\n"
    assert list(tmp_path.iterdir()) == []
