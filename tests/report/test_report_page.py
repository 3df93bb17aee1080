"""The report as a text: what it says, that it stands alone, that nothing of the data is code."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streampca import CCA, MCA, PCA, HardImpute, KernelPCA
from streampca.cli import main
from streampca.errors import InvalidInputError
from streampca.report.document import MOST, MOST_GROUPS, report_of, thinned
from streampca.report.figures import ticks


class Elements(HTMLParser):
    """(tag, attributes) of a page, in its order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.found.append((tag, dict(attrs)))


def points(page: str) -> dict[str, Any]:
    """What the script of a page reads."""
    (found,) = re.findall(r'<script type="application/json" id="points">(.*?)</script>', page)
    told: dict[str, Any] = json.loads(found)
    return told


def decoded(one: dict[str, Any]) -> np.ndarray[Any, Any]:
    codes = np.frombuffer(base64.b64decode(one["codes"]), "<i2").astype(float)
    values = one["low"] + (codes + 32767) / 65534 * (one["high"] - one["low"])
    return np.where(codes == -32768, np.nan, values)


def test_the_page_holds_the_scores_to_16_bits(model: PCA, scores: Any, labels: Any) -> None:
    gap = scores.copy()
    gap[7, 1] = np.nan
    told = points(model.report(scores=gap, labels={"side": labels, "size": gap[:, 0]}).html)
    for j, one in enumerate(told["axes"]):
        step = (one["high"] - one["low"]) / 65534
        np.testing.assert_allclose(decoded(one), gap[:, j], atol=0.51 * step)
    side, length = told["labels"]
    codes = np.frombuffer(base64.b64decode(side["codes"]), np.uint8)
    assert [side["groups"][i] for i in codes] == labels.tolist()
    np.testing.assert_allclose(decoded(length), gap[:, 0], atol=1e-3)


@pytest.mark.parametrize("kind", [CCA, MCA])
def test_the_scores_of_two_views_are_axes_of_the_same_samples(kind: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    x = rng.standard_normal((60, 4))
    y = x[:, :3] + rng.standard_normal((60, 3))
    model = kind(2, progress=False).fit(x, y)
    both = model.transform(x, y)
    told = points(model.report(scores=both, labels={"side": ["a", "b"] * 30}).html)
    assert [one["title"] for one in told["axes"]] == ["X 1", "Y 1", "X 2", "Y 2"]
    for one, expected in zip(told["axes"], np.dstack(both).reshape(60, 4).T, strict=True):
        np.testing.assert_allclose(decoded(one), expected, atol=1e-3)
    with pytest.raises(InvalidInputError, match=r"got ndarray: scores=model\.transform\(X, Y"):
        model.report(scores=both[0])
    model.save(tmp_path / "m")
    model.transform(x, y, out=(tmp_path / "s-x.zarr", tmp_path / "s-y.zarr"))
    words = ["report", str(tmp_path / "m"), "-o", str(tmp_path / "r.html")]
    assert main([*words, "--scores", str(tmp_path / "s.zarr")]) == 0
    assert len(points((tmp_path / "r.html").read_text())["axes"]) == 4


def test_nothing_of_the_data_is_markup(model: PCA, scores: Any, labels: Any) -> None:
    page = model.report(scores=scores, labels=labels, title="<i>mine</i>").html
    tags = [tag for tag, _ in Elements(page).found]
    assert tags.count("script") == 2
    assert "i" not in tags
    assert "b" not in tags
    assert "alert(1)" in page
    assert "<script>alert" not in page


def test_the_page_stands_alone(model: PCA, scores: Any) -> None:
    page = model.report(scores=scores).html
    for tag, attributes in Elements(page).found:
        assert tag not in ("link", "iframe", "object", "embed")
        for name in ("src", "href", "action"):
            value = attributes.get(name) or "#"
            assert value.startswith(("#", "data:")), (tag, value)
    assert "http" not in re.sub(r"http-equiv", "", page)
    assert "default-src 'none'" in page


def test_it_says_what_the_fit_says(model: PCA) -> None:
    page = model.report().html
    assert model.certificate_ is not None
    assert model.certificate_.in_words() in page
    assert "1 constant" in page
    assert f"{model.explained_variance_[2]:.6g}" in page
    assert str(model.result_.provenance["source"]) in page
    assert "This fit kept no scores" in page
    assert 'id="canvas"' not in page
    headings = re.findall("<h2>(.*?)</h2>", page)
    assert headings[:2] == ["Worth knowing", "Spectrum"]
    assert headings[-1] == "Load it again"


def test_many_samples_are_thinned_and_counted(model: PCA) -> None:
    n = MOST + 1000
    many = np.random.default_rng(0).normal(size=(n, 4))
    names = np.array([f"group {i % 40}" for i in range(n)])
    made = model.report(scores=many, labels=names)
    assert f"{MOST:,} of {n:,} samples are drawn" in made.html
    assert len(made.html) < 2_000_000
    told = points(made.html)
    rows = np.array(told["rows"]) - 1
    np.testing.assert_array_equal(rows, thinned(n))
    np.testing.assert_allclose(decoded(told["axes"][2]), many[rows, 2], atol=1e-3)
    assert len(told["labels"][0]["groups"]) == MOST_GROUPS + 1
    assert told["labels"][0]["groups"][-1] == "other"


def test_wrong_scores_and_labels_are_refused(model: PCA, scores: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"expected \(n, 4\)"):
        model.report(scores=scores[:, :2])
    with pytest.raises(InvalidInputError, match="expected one for each of"):
        model.report(scores=scores, labels=["a"] * 4)


def test_other_kinds_have_a_report_too(table: Any) -> None:
    values = table.to_numpy()
    assert "<h1>KernelPCA" in KernelPCA(2).fit(values).report().html
    holes = np.where(np.random.default_rng(1).random(values.shape) < 0.2, np.nan, values)
    model = HardImpute(2, alpha=1.0, tol=1e-2, validation=0.1).fit(holes)
    page, (without, kept) = model.report().html, model.validation_
    assert "Objective of the completion after each of" in page
    assert f"error of {kept['held_out']:.4g}; without components {without['held_out']:.4g}" in page
    assert "% of the variance that levels of rows and columns leave" in page
    assert "used all" not in page
    with pytest.warns(Warning, match="not converged"):
        stopped = HardImpute(2, alpha=1.0, tol=1e-9, max_passes=4).fit(holes)
    assert "used all 4 passes" in stopped.report().html


def test_components_that_lie_elsewhere_are_said(model: PCA) -> None:
    gone = replace(model.result_, components=None, settings={"loadings": "elsewhere.zarr"})
    assert "were streamed to elsewhere.zarr" in report_of(gone).html


def test_the_command_writes_it(model: PCA, scores: Any, tmp_path: Path, capsys: Any) -> None:
    model.save(tmp_path / "model")
    lines = ["#IID\tPC1\tPC2\tPC3\tPC4"]
    lines += ["\t".join([f"s{i}", *map(str, row)]) for i, row in enumerate(scores)]
    (tmp_path / "new.tsv").write_text("\n".join(lines) + "\n")
    panel = [f"s{i} {'east' if i % 2 else 'west'}" for i in range(90)]
    (tmp_path / "pops.txt").write_text("\n".join(["sample population", *panel]) + "\n")
    words = [
        str(tmp_path / "model"),
        "--scores",
        str(tmp_path / "new.tsv"),
        "--panel",
        str(tmp_path / "pops.txt"),
    ]
    assert main(["report", *words, "-o", str(tmp_path / "r.html")]) == 0
    assert "report written to" in capsys.readouterr().out
    told = points((tmp_path / "r.html").read_text())
    assert told["labels"][0]["groups"] == ["east", "west"]
    assert main(["plot", *words, "-o", str(tmp_path / "new.png")]) == 0
    assert (tmp_path / "new.png").stat().st_size > 5000
    assert main(["report", words[0], "-o", str(tmp_path / "r.txt")]) == 65
    (tmp_path / "new.tsv").write_text("#IID\tPC1\nonly\tx\n")
    assert main(["report", *words, "-o", str(tmp_path / "r.html")]) == 66


def luminance(colour: str) -> float:
    """Source: W3C 2018, "Web Content Accessibility Guidelines 2.1", relative luminance."""
    colour = "".join(2 * c for c in colour) if len(colour) == 3 else colour
    parts = np.array([int(colour[i : i + 2], 16) for i in (0, 2, 4)]) / 255
    linear = np.where(parts <= 0.03928, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def test_text_has_contrast_in_both_themes() -> None:
    style = files("streampca.report").joinpath("page.css").read_text()
    themes = re.findall(r":root \{(.*?)\}", style, re.S)
    assert len(themes) == 2
    for theme in themes:
        shade = dict(re.findall(r"--(\w+): #(\w+)", theme))
        for name in ("ink", "soft", "blue", "orange", "grey"):
            for behind in ("page", "panel"):
                pair = sorted(luminance(shade[one]) for one in (name, behind))
                assert (pair[1] + 0.05) / (pair[0] + 0.05) >= 4.5, (name, behind)


@pytest.mark.parametrize(("low", "high"), [(-0.3, 0.4), (-1e-9, 2e-9), (-5.0, 5.0), (-0.7, -0.1)])
def test_ticks_are_round_and_zero_has_no_sign(low: float, high: float) -> None:
    found = ticks(low, high)
    written = [f"{value:.3g}" for value in found]
    assert "-0" not in written
    assert ("0" in written) == (low <= 0 <= high)
    assert low <= found[0]
    assert found[-1] <= high * (1 + 1e-9) if high > 0 else high * (1 - 1e-9)
    assert len(found) > 2


def test_a_model_without_components_has_a_report(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    noise = np.where(rng.random((40, 12)) < 0.2, np.nan, rng.normal(size=(40, 12)))
    model = HardImpute([1], validation=0.1).fit(noise)
    assert model.result_.n_components == 0
    path = report_of(model.result_).save(tmp_path / "report.html")
    assert "kept no component" in path.read_text()
