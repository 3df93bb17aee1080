"""PCA of a folder of images beside scikit-learn's: ``python -m tests.benchmarks.images``.

Proves what README says of images: 200,000 grey images of 48 x 42 in pgm files, 50 components, in
512 MiB. scikit-learn has all pixels in memory as float32, and the solver that is fastest here. Each
runs in a fresh process and reads the files. Errors are relative, of the worst variance, to those of
NumPy in float64. Seconds are of processors: wall times mean little on a shared machine.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.embed import used
from tests.benchmarks.measure import measure, record, recordable, relative_error

HEIGHT, WIDTH, K, FACTORS = 48, 42, 50, 60
SHARE = 1000  # images of a folder
LIMIT = "512MiB"


def write(path: Path, n: int) -> None:
    """n images in folders of SHARE: factors of falling size, and noise."""
    rng = np.random.default_rng(0)
    pixels = HEIGHT * WIDTH
    basis = rng.standard_normal((FACTORS, pixels), "f4") * np.geomspace(12, 1, FACTORS)[:, None]
    head = f"P5\n{WIDTH} {HEIGHT}\n255\n".encode()
    for start in range(0, n, SHARE):
        folder = path / f"{start // SHARE:03}"
        folder.mkdir(parents=True)
        x = rng.standard_normal((min(SHARE, n - start), FACTORS), "f4") @ basis + 128
        x += 4 * rng.standard_normal(x.shape, "f4")
        for i, one in enumerate(np.clip(np.rint(x), 0, 255).astype("u1")):
            (folder / f"{i}.pgm").write_bytes(head + one.tobytes())


def images(path: str) -> Iterator[Any]:
    """Every image, (H, W) uint8."""
    from PIL import Image

    for file in Path(path).glob("*/*.pgm"):
        yield np.asarray(Image.open(file))


def ours(path: str) -> dict[str, Any]:
    """``streampca.PCA`` of the folder."""
    import streampca

    pca = streampca.PCA(K, memory_limit=LIMIT, progress=False).fit(path)
    planned = pca.plan_.peak_nbytes / 1e6
    return used() | {"planned_mb": planned, "values": pca.explained_variance_.tolist()}


def scikit_learn(path: str) -> dict[str, Any]:
    """``sklearn.decomposition.PCA`` of all pixels."""
    from sklearn.decomposition import PCA

    x = np.empty((sum(1 for _ in Path(path).glob("*/*.pgm")), HEIGHT * WIDTH), "f4")
    for row, image in zip(x, images(path), strict=True):
        row[:] = image.ravel()
    pca = PCA(K, svd_solver="covariance_eigh").fit(x)
    return used() | {"values": pca.explained_variance_.tolist()}


def reference(path: str) -> dict[str, Any]:
    """Variances by NumPy in float64, about the grey of the simulation."""
    n, total, scatter, rows = 0, 0.0, 0.0, []
    for image in images(path):
        rows.append(image.ravel())
        if len(rows) == SHARE:
            x = np.stack(rows).astype("f8") - 128
            n, total, scatter, rows = n + len(x), total + x.sum(axis=0), scatter + x.T @ x, []
    values = np.linalg.eigvalsh(scatter - np.outer(total, total) / n)[::-1][:K] / (n - 1)
    return used() | {"values": values.tolist()}


CANDIDATES = {"streampca.PCA, 512 MiB": ours, "scikit-learn PCA, in memory": scikit_learn}


def main() -> None:
    """Write the images once, run both, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=200_000)
    parser.add_argument("--folder", help="keep the images here, and use them again")
    recordable(parser, __file__)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        name, path = arguments.child
        print("RESULT " + json.dumps({**CANDIDATES, "reference": reference}[name](path)))
        return
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(arguments.folder or temporary) / "images"
        if not path.exists():
            write(path, arguments.images)
        truth = measure("tests.benchmarks.images", "reference", str(path))["values"]
        for name in CANDIDATES:
            found = measure("tests.benchmarks.images", name, str(path))
            found["relative_error"] = relative_error(found.pop("values"), truth)
            rows.append({"name": name, **found})
            print(f"{name:<30}", json.dumps(found), flush=True)
    record(arguments.record, rows, "scikit-learn")


if __name__ == "__main__":
    main()
