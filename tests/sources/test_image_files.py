"""Folders of images: what is read, what comes back as pictures, and what is refused."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import streampca
from streampca.cli import main
from streampca.errors import (
    DamagedSourceError,
    InvalidInputError,
    InvalidTypeError,
    MissingDependencyError,
    SourceError,
)
from streampca.plots.images import components_for

H, W = 9, 7
rng = np.random.default_rng(0)
GREY = rng.integers(0, 256, (24, H, W), dtype=np.uint8)
ORL = Path(__file__).parents[3] / "shared" / "data" / "faces_orl_pgm"


def written(folder: Path, pictures: np.ndarray, suffix: str = ".png") -> Path:
    """Two sub-folders, files named 1, 2, ... 12 in each."""
    for i, one in enumerate(pictures):
        path = folder / f"person{i // 12}" / f"{i % 12 + 1}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(one).save(path)
    return folder


@pytest.mark.parametrize("suffix", [".png", ".pgm", ".tif"])
def test_a_folder_is_a_matrix_of_images(tmp_path: Path, suffix: str) -> None:
    folder = written(tmp_path / "faces", GREY, suffix)
    for source in (folder, str(folder / "*" / f"*{suffix}")):
        matrix = streampca.open_images(source)
        assert (matrix.shape, matrix.dtype) == ((24, H * W), np.uint8)
        np.testing.assert_array_equal(matrix.read(0, 0, 24), GREY.reshape(24, -1))
        np.testing.assert_array_equal(matrix.read(1, 5, 9), GREY.reshape(24, -1)[:, 5:9])
        assert matrix.labels.features.sizes == (H, W)
        names = matrix.labels.samples.names([0, 1, 9])
        assert names == [f"person0/{i}{suffix}" for i in (1, 2, 10)]
    assert matrix.labels.samples.extra["label"].tolist() == ["person0"] * 12 + ["person1"] * 12
    np.testing.assert_array_equal(
        pickle.loads(pickle.dumps(matrix)).read(0, 3, 5), matrix.read(0, 3, 5)
    )
    np.testing.assert_array_equal(streampca.open(folder).read(0, 0, 24), matrix.read(0, 0, 24))


def test_colour_sixteen_bits_and_sizes(tmp_path: Path) -> None:
    colour = rng.integers(0, 256, (4, H, W, 3), dtype=np.uint8)
    matrix = streampca.open_images(written(tmp_path / "rgb", colour))
    np.testing.assert_array_equal(matrix.read(0, 0, 4), colour.reshape(4, -1))
    assert matrix.labels.features.dims == ("y", "x", "channel")
    deep = rng.integers(0, 65536, (4, H, W), dtype=np.uint16)
    matrix = streampca.open_images(written(tmp_path / "deep", deep))
    assert matrix.dtype == np.uint16
    np.testing.assert_array_equal(matrix.read(0, 0, 4), deep.reshape(4, -1))
    grey = streampca.open_images(tmp_path / "rgb", mode="grey", resize=(4, 5))
    assert grey.shape == (4, 20)
    expected = Image.fromarray(colour[2]).convert("L").resize((5, 4))
    np.testing.assert_array_equal(grey.read(0, 2, 3)[0], np.asarray(expected).ravel())


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = written(tmp_path / "faces", GREY)
    odd = folder / "person1" / "13.png"
    Image.fromarray(GREY[0, :5]).save(odd)
    with pytest.raises(
        InvalidInputError, match=r"13.png is 5 x 7, .*resize=\(9, 7\).*--resize 9 7"
    ):
        streampca.open_images(folder)
    Image.fromarray(np.stack([GREY[0]] * 3, axis=-1)).save(odd)
    with pytest.raises(InvalidInputError, match=r"13\.png is in colour.*mode='grey'"):
        streampca.open_images(folder)
    odd.write_text("no image")
    with pytest.raises(DamagedSourceError, match=r"13\.png is not an image"):
        streampca.open_images(folder)
    odd.unlink()
    matrix = streampca.open_images(folder)
    whole = (folder / "person0" / "3.png").read_bytes()
    (folder / "person0" / "3.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DamagedSourceError, match=r"person0.3\.png cannot be read"):
        streampca.PCA(2, progress=False).fit(matrix)
    with pytest.raises(SourceError, match="no images there"):
        streampca.open_images(tmp_path / "*.png")
    with pytest.raises(InvalidInputError, match="mode='rgba'"):
        streampca.open_images(folder, mode="rgba")
    with pytest.raises(InvalidInputError, match="resize="):
        streampca.open_images(folder, resize=(0, 4))
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'streampca\[images\]'"):
        streampca.open_images(folder)


def test_converted_images_are_pictures_still(tmp_path: Path, capsys: Any) -> None:
    folder = written(tmp_path / "faces", GREY)
    assert main(["convert", str(folder), "-o", str(tmp_path / "faces.zarr")]) == 0
    matrix = streampca.open(tmp_path / "faces.zarr")
    assert (matrix.labels.features.dims, matrix.labels.features.sizes) == (("y", "x"), (H, W))
    assert matrix.labels.samples.extra["label"][-1] == "person1"
    np.testing.assert_array_equal(matrix.read(0, 0, 24), GREY.reshape(24, -1))
    model, picture = str(tmp_path / "model"), tmp_path / "faces.png"
    assert main(["fit", str(tmp_path / "faces.zarr"), "-k", "5", "-o", model]) == 0
    assert main(["plot", model, "--kind", "images", "-o", str(picture)]) == 0
    alone = picture.stat().st_size
    beside = ["--images", str(folder), "-o", str(picture)]
    assert main(["plot", model, "--kind", "images", *beside]) == 0
    assert picture.stat().st_size > alone > 5000  # three images, and what is made of them
    small = str(tmp_path / "small.zarr")
    assert (
        main(["convert", str(folder), "--resize", "4", "3", "--image-mode", "rgb", "-o", small])
        == 0
    )
    assert streampca.open(small).labels.features.sizes == (4, 3, 3)
    capsys.readouterr()
    assert main(["convert", small, "--image-mode", "grey", "-o", str(tmp_path / "grey.zarr")]) == 65
    assert "--resize and --image-mode are for images" in capsys.readouterr().err


def test_the_picture_of_a_model(tmp_path: Path) -> None:
    matrix = streampca.open_images(written(tmp_path / "faces", GREY))
    pca = streampca.PCA(23, progress=False).fit(matrix)
    figure = streampca.plots.images(pca, matrix, n=8, k=(2, 23, 99))
    shown = [ax for ax in figure.findobj(lambda one: hasattr(one, "get_images")) if ax.get_images()]
    assert len(shown) == 1 + 8 + 3 * 3
    whole = {ax.get_title(): ax.get_images()[0].get_array() for ax in shown[::-1]}
    np.testing.assert_allclose(whole["k = 23"], whole["original"], atol=1e-5)
    assert np.abs(whole["k = 2"] - whole["original"]).max() > 0.1
    with pytest.raises(InvalidInputError, match="shape="):
        streampca.plots.images(streampca.PCA(2, progress=False).fit(GREY.reshape(24, -1)))
    with pytest.raises(InvalidTypeError, match="the fitted estimator"):
        streampca.plots.images(pca.result_, matrix)
    assert components_for(np.array([0.6, 0.35, 0.05]), 0.95) == 2
    assert components_for(np.array([0.6, 0.3]), 0.95) is None


@pytest.mark.slow
@pytest.mark.skipif(not ORL.exists(), reason="the ORL faces are not in ../shared/data")
def test_orl_faces() -> None:
    """Shares and numbers of components are those of NumPy; a held-out face finds its person."""
    matrix = streampca.open_images(ORL)
    x = matrix.read(0, 0, 400).astype(np.float64)
    pca = streampca.PCA(399, progress=False).fit(matrix)
    values = np.linalg.eigvalsh((centred := x - x.mean(axis=0)) @ centred.T)[::-1]
    shares = values / values.sum()
    ours = pca.explained_variance_ratio_
    np.testing.assert_allclose(ours, shares[:399], atol=1e-9)
    np.testing.assert_allclose(ours[:3], [0.1741, 0.1287, 0.0662], atol=5e-5)
    counts = [components_for(ours, share) for share in (0.95, 0.99, 0.999)]
    assert counts == [193, 328, 389]

    who = np.asarray(matrix.labels.samples.extra["label"])
    held = np.random.default_rng(0).permuted(np.tile(np.arange(10), (40, 1)), axis=1).ravel() < 3
    some = streampca.PCA(50, progress=False).fit(x[~held])
    known, asked = some.transform(x[~held]), some.transform(x[held])
    nearest = np.argmin(((asked[:, None] - known) ** 2).sum(axis=2), axis=1)
    assert np.mean(who[~held][nearest] == who[held]) > 0.93
