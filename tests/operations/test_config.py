"""Job files: what is taken, what is refused (F18), and the schema."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from streampca.cli import main
from streampca.errors import ConfigError
from streampca.models.contract.registry import all_kinds
from streampca.operations.config import check_job, read_job
from streampca.operations.sections import schema

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
GOOD = """
source: {path: x.zarr}
model: {n_components: 3}
store: models
"""


def write(folder: Path, text: str) -> str:
    path = folder / "job.yaml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_the_examples_are_good(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", str(path)]) == 0
    assert path.name in capsys.readouterr().out


def test_defaults(tmp_path: Path) -> None:
    job = read_job(write(tmp_path, GOOD))
    assert (job.verify, job.settle, job.align, job.keep, job.gate) == (
        "stat",
        60,
        "order",
        None,
        {},
    )
    model = job.estimator(memory_limit="1GiB", scheduler="threads", checkpoint="x")
    assert type(model).__name__ == "IncrementalPCA"
    assert (model.n_components, model.memory_limit) == (3, "1GiB")


BAD = {
    "unknown entry": GOOD + "stores: x",
    "unknown in a section": GOOD.replace("path: x.zarr", "path: x.zarr, paths: y"),
    "unknown parameter": GOOD.replace("n_components: 3", "n_component: 3"),
    "unknown model": GOOD.replace("n_components: 3", "kind: os.system"),
    "no store": GOOD.replace("store: models", ""),
    "no source": "model: {}\nstore: x",
    "source is a word": "source: x\nmodel: {}\nstore: x",
    "k of 0": GOOD.replace("3", "0"),
    "k below 0": GOOD.replace("3", "-3"),
    "k not a number": GOOD.replace("3", ".nan"),
    "k infinite": GOOD.replace("3", ".inf"),
    "k true": GOOD.replace("3", "true"),
    "settle not a number": GOOD + "settle: .nan",
    "settle below 0": GOOD + "settle: -1",
    "keep of 0": GOOD + "keep: 0",
    "keep a word": GOOD + "keep: all",
    "gate of 0": GOOD + "gate: {max_angle: 0}",
    "gate a word": GOOD + "gate: {max_angle: wide}",
    "another verify": GOOD + "verify: often",
    "chained URL": GOOD.replace("x.zarr", "reference::http://169.254.169.254/x"),
    "simplecache": GOOD.replace("x.zarr", "simplecache::s3://b/x"),
    "link-local": GOOD.replace("x.zarr", "https://169.254.169.254/latest/meta-data"),
    "link-local over http": GOOD.replace("x.zarr", "http://169.254.169.254/x"),
    "loopback": GOOD.replace("x.zarr", "https://127.0.0.1:8080/x"),
    "file URL": GOOD.replace("x.zarr", "file:///etc/passwd"),
    "store over http": GOOD.replace("store: models", "store: http://x/y"),
    "credentials": GOOD.replace("x.zarr", "https://user:secret@host/x"),
    "a null in a path": GOOD.replace("x.zarr", '"x\\0.zarr"'),
    "an alias": "a: &a [1]\nsource: {path: *a}\nmodel: {}\nstore: x",
    "alias bomb": "a: &a [x,x,x,x,x,x,x,x,x]\n"
    + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [{','.join([f'*{chr(97 + i)}'] * 9)}]\n" for i in range(8)
    ),
    "twice": GOOD + "store: other",
    "python object": GOOD + "keep: !!python/object/apply:os.system [true]",
    "not YAML": "{",
    "a list": "- 1",
    "empty": "",
    "number keys": GOOD + "3: 4",
    "deep": "[" * 5000,
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_used_is_refused_before_anything_happens(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("something left the machine")

    path = write(tmp_path, BAD[name])
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert main(["refresh", path]) == 78
    printed = capsys.readouterr()
    assert printed.out == ""
    assert path in printed.err
    assert "secret" not in printed.err
    assert [p.name for p in tmp_path.iterdir()] == ["job.yaml"]


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    with open(path, "ab") as file:
        file.truncate(10 << 20)
    with pytest.raises(ConfigError, match="more than 65536 bytes"):
        read_job(path)
    with pytest.raises(ConfigError, match="No such file"):
        read_job(tmp_path / "nowhere")


def test_messages_name_the_entry_and_what_it_takes(tmp_path: Path) -> None:
    for text, words in (
        ("verify: often", "verify: 'often': expected one of stat, full"),
        ("keep: 0", "keep: 0: expected at least 1"),
        ("gate: {max_angle: -1}", "gate.max_angle: -1: expected more than 0"),
        ("memory: 3", "memory: unknown; expected one of store, verify"),
    ):
        with pytest.raises(ConfigError, match=words):
            read_job(write(tmp_path, GOOD + text))


LINE = "# a comment\n" + GOOD.lstrip().replace("n_components: 3", "\n  n_components: 3,\n ")
NAMED = {
    "setle: 3": "job.yaml:7: setle: unknown; .*; did you mean settle\\?",
    "gates: {max_angle: 1}": "job.yaml:7: gates: unknown; .*; did you mean gate\\?",
    "gate:\n  max_angel: 1": "job.yaml:8: gate.max_angel: unknown; .*; did you mean max_angle\\?",
    "gate: {max_angle: 1}\nverify: stats": "job.yaml:8: verify: 'stats'.*; did you mean stat\\?",
    "variable: sst": "job.yaml:7: variable: unknown; .*; variable belongs in the section source",
    "n_components: 3": "job.yaml:7: n_components: .*; n_components belongs in the section model",
    "cluster:\n  adress: x": "job.yaml:8: cluster.adress: .*; did you mean address\\?",
    "cluster: {adapt: {minimum: 1}}": "job.yaml:7: cluster.adapt.maximum is missing",
    "memory_limit: 1GG": "job.yaml:7: memory_limit: '1GG': expected bytes, such as 512MiB",
    "spans: lots": "job.yaml:7: spans: 'lots': expected bytes, such as 512MiB or 2GB, or 0",
    "scheduler: localhost": "job.yaml:7: scheduler: 'localhost': expected tcp://host:port",
    "store: again": "job.yaml:7: store is there twice",
    "\tkeep: 3": "job.yaml:7: this is not YAML: 'keep: 3': found character",
    " keep: 3": "job.yaml:7: this is not YAML: 'keep: 3': .*indented as the lines around it",
    "scores: {path: 's3://bucket/x.zarr'}": "job.yaml:7: scores.path: scores are written to disk",
    "scores: {path: 'x-{versoin}'}": "scores.path: .*; did you mean {version}\\?",
}


@pytest.mark.parametrize("text", NAMED)
def test_messages_name_the_line_and_what_is_like_it(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=NAMED[text]):
        read_job(write(tmp_path, LINE + text + "\n"))


SETTINGS = {
    "n_components: ten": "model.n_components: 'ten'; expected an integer",
    "n_components: 1.5": "model.n_components: 1.5; a share of variance lies between 0 and 1",
    "scale: stdd": "model.scale: 'stdd'; expected one of",
    "missing: means": "model.missing: 'means'; expected 'raise' or 'mean'",
    "solver: fulll": "model.solver: 'fulll'; expected",
    "whiten: maybe": "model.whiten: 'maybe'; expected true or false",
    "ddof: one": "model.ddof: 'one'; expected",
    "memory_limit: 1GiB": "model.memory_limit: .*; memory_limit belongs outside",
}


@pytest.mark.parametrize("kind", ["PCA", "IncrementalPCA"])
@pytest.mark.parametrize("text", SETTINGS)
def test_values_that_no_data_can_meet_are_refused(text: str, kind: str, tmp_path: Path) -> None:
    job = f"source: {{path: x}}\nstore: y\nmodel:\n  kind: {kind}\n  {text}\n"
    with pytest.raises(ConfigError, match=f"job.yaml:5: {SETTINGS[text]}"):
        read_job(write(tmp_path, job))


@pytest.mark.parametrize("kind", [name for name, one in all_kinds().items() if one.views == 1])
def test_values_that_only_the_data_can_judge_are_taken(kind: str) -> None:
    parameters = all_kinds()[kind].parameters
    count = next(name for name, one in parameters.items() if one.counts_components)
    more: dict[str, Any] = {count: 5000}
    if kind == "PCA":
        more |= {"weights": "coslat", "remove": ["month", "trend"]}
    if kind == "GenotypePCA":
        more |= {"variants": {"chromosomes": ["1"], "exclude_long_range_ld": 37}, "maf": 0.01}
    job = check_job({"source": {"path": "x"}, "store": "y", "model": {"kind": kind, **more}}, "x")
    assert getattr(job.estimator(), count) == 5000
    assert job.estimator(memory_limit="1GiB").memory_limit == "1GiB"


def test_genotypes_are_chosen_by_entries() -> None:
    entries = {"source": {"path": "x"}, "store": "y"}
    model = {"kind": "GenotypePCA", "variants": {"chromosomes": ["1"]}}
    assert check_job({**entries, "model": model}, "x").estimator().variants.chromosomes == ["1"]
    model["variants"] = {"chr": ["1"]}
    with pytest.raises(ConfigError, match=r"model.variants: .*expected some of chromosomes"):
        check_job({**entries, "model": model}, "x")


def test_files_of_options_are_checked_likewise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, "source: x.zarr\nn-component: 3\n")
    assert main(["config", "check", path]) == 78
    said = capsys.readouterr().err
    assert "job.yaml:2: n-component: no option" in said
    assert "did you mean n-components?" in said
    genotypes = next(str(path) for path in CONFIGS if path.stem == "genotypes")
    assert main(["config", "check", genotypes]) == 0
    assert "options of streampca fit" in capsys.readouterr().out


def test_the_schema_agrees_with_the_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "schema"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == schema()
    assert set(told["required"]) == {"store", "source", "model"}
    assert told["properties"]["gate"]["properties"]["max_angle"]["exclusiveMinimum"] == 0
    job = {"source": {"path": "x"}, "model": {}, "store": "y"}
    assert check_job(job, "x").store == "y"
    jsonschema.validate(job, told)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**job, "verify": "often"}, told)


def test_a_gate_that_a_kind_cannot_answer_is_refused() -> None:
    model = {"kind": "FactorAnalysis", "n_components": 2}
    entries = {"source": {"path": "x"}, "store": "y", "model": model}
    assert check_job({**entries, "gate": {"max_angle": 0.5}}, "x").gate == {"max_angle": 0.5}
    with pytest.raises(ConfigError, match=r"gate.max_error_ratio: a FactorAnalysis explains"):
        check_job({**entries, "gate": {"max_error_ratio": 3}}, "x")


def test_lists_and_short_numbers_are_taken(tmp_path: Path) -> None:
    text = "source: {path: x}\nstore: y\nmodel: {kind: HardImpute, rank: [2, 100], tol: 1e-4, "
    job = read_job(write(tmp_path, text + "validation: 0.1}\n"))
    assert job.model["tol"] == 1e-4
    assert job.estimator().rank == [2, 100]
