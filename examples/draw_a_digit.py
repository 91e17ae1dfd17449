"""Write a page on which to draw a digit and watch both doubts move: the demo's network with its heads, in the browser.

The page is one file that needs no server: it holds the ONNX model and onnxruntime-web, which is taken from the npm
registry once, checked against its digest and kept in a folder.

    python examples/draw_a_digit.py --out page
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import math
import subprocess
import tarfile
import tempfile
import warnings
from pathlib import Path

import repulse
from repulse._files import write_whole
from repulse.demo import digits
from repulse.ensemble import Ensemble
from repulse.prediction import ClassPrediction

VERSION = "1.22.0"
SHA512 = "Ud/+EBo6mhuaQWt/OjaOk0iNWjXqJoeeMFr6xQEERZdIZH2OWpGzuujz7lfuOBjUa6TEE/sc4nb7Da5dNL34fg=="
"""Digest of the package, as the registry's `integrity` names it."""

FILES = {
    "runtime": "package/dist/ort.wasm.min.mjs",
    "loader": "package/dist/ort-wasm-simd-threaded.mjs",
    "wasm": "package/dist/ort-wasm-simd-threaded.wasm",
}
CACHE = Path.home() / ".cache" / "repulse" / "npm"


def package(folder: Path = CACHE, fetch: bool = True) -> Path:
    """Return the archive of onnxruntime-web, fetched if it is not there yet."""
    path = folder / f"onnxruntime-web-{VERSION}.tgz"
    if not path.exists():
        if not fetch:
            raise FileNotFoundError(f"{path} is not there: `make page` fetches it")
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as aside:
            command = ["npm", "pack", f"onnxruntime-web@{VERSION}", "--silent", "--pack-destination", aside]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            (Path(aside) / path.name).replace(path)
    found = base64.b64encode(hashlib.sha512(path.read_bytes()).digest()).decode()
    if found != SHA512:
        raise ValueError(f"{path} is not the package that was expected: its digest is {found}")
    return path


def fit(seed: int = 0, epochs: int = 40) -> tuple[Ensemble, digits.Digits]:
    """Train the network of `repulse demo` on digits, and retrofit it; half of the clean test digits validate."""
    data = digits.load(seed)
    network = digits.train_network(data, seed, epochs)
    loader = list(zip(data.train.split(128), data.train_labels.split(128), strict=True))
    validation = [(data.clean[::2], data.clean_labels[::2]), (data.ambiguous[::2], data.ambiguous_labels[::2])]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", repulse.FitWarning)
        ensemble = repulse.retrofit(
            network, loader, validation=validation, class_names=[str(i) for i in range(10)], progress=False
        )
    return ensemble, data


def write_page(ensemble: Ensemble, data: digits.Digits, archive: Path, out: Path) -> Path:
    """Write `index.html` and `model.onnx` into a folder."""
    model = ensemble.export(out / "model.onnx")
    unseen = ensemble.predict(data.clean[1::2])
    assert isinstance(unseen, ClassPrediction)
    usual = {name: float(getattr(unseen, name).quantile(0.95)) for name in ("aleatoric", "epistemic")}
    about = {"classes": ensemble.class_names, "usual": usual, "scale": math.log(10)}
    with tarfile.open(archive) as packed:
        parts = {name: packed.extractfile(path).read() for name, path in FILES.items()}  # pyright: ignore
    parts["model"] = model.read_bytes()
    page = Path(__file__).with_suffix(".html").read_text(encoding="utf-8")
    page = page.replace("{{about}}", json.dumps(about))
    for name, content in parts.items():
        page = page.replace(f"{{{{{name}}}}}", base64.b64encode(content).decode())
    return write_whole(out / "index.html", page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("page"), help="folder to write to")
    arguments = parser.parse_args()
    path = write_page(*fit(), package(), arguments.out)
    print(f"{path} ({path.stat().st_size / 2**20:.0f} MB): open it in a browser")


if __name__ == "__main__":
    main()
