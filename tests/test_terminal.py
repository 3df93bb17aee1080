"""What the command line shows: the result first, the nearest of what is mistyped, examples."""

from __future__ import annotations

import shutil
import subprocess

import numpy as np
import pandas as pd
import pytest

import streampca
from streampca.cli import main
from streampca.cli.commands import COMMANDS, EXAMPLES, WELCOME, build_parser


@pytest.fixture(autouse=True)
def _restore_warnings():
    import warnings

    with warnings.catch_warnings():
        yield


@pytest.fixture
def matrix(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.random.default_rng(0).standard_normal((60, 8)))
    return str(path)


def printed(capsys, *words: str) -> str:
    assert main(words) == 0
    return capsys.readouterr().out


def refused(capsys, *words: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    return capsys.readouterr().err


def test_without_arguments_it_shows_five_commands(capsys):
    assert printed(capsys).strip() == WELCOME.strip()
    lines = [line.split("  ")[1] for line in WELCOME.splitlines() if line.startswith("  ")]
    assert len(lines) == 5
    for line in lines:
        program, command, *_ = line.split()
        assert program == "streampca"
        assert command in COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_the_examples_of_help_are_accepted(command, capsys):
    assert EXAMPLES[command]
    for line in EXAMPLES[command]:
        words = line.split()
        assert words[0] == command
        assert callable(build_parser(words).parse_args(words).run)
    with pytest.raises(SystemExit):
        main([command, "--help"])
    text = capsys.readouterr().out
    for line in EXAMPLES[command]:
        assert f"  streampca {line}\n" in text


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["fit", "x.zarr", "--memry-limit", "1GB"], "--memory-limit"),
        (["fit", "x.zarr", "--memry-limit=1GB"], "--memory-limit"),
        (["impute", "x.zarr", "--validatoin", ".1"], "--validation"),
        (["fit", "x.zarr", "--model", "ppca", "--n-componets", "3"], "--n-components"),
        (["fit", "x.zarr", "--solver", "gran"], "gram"),
        (["fti", "x.zarr"], "fit"),
        (["models", "lst", "store"], "list"),
    ],
)
def test_the_nearest_of_what_is_mistyped_is_named(words, meant, capsys):
    text = refused(capsys, *words)
    assert f"did you mean {meant}?" in text
    assert "usage" not in text
    assert len(text.splitlines()) == 2


def test_a_word_unlike_all_commands_is_not_corrected(capsys):
    text = refused(capsys, "fit", "x.zarr", "--zzyzx")
    assert "--zzyzx" in text
    assert "did you mean" not in text


def test_the_result_is_printed_first_and_the_plan_on_request(matrix, capsys):
    brief = printed(capsys, "fit", matrix, "-k", "2")
    assert brief.startswith("PCA: 2 components of 60 samples x 8 features\n")
    assert "projected peak" not in brief
    assert "scatter: 1 pass, 3.8 KiB read" in brief
    whole = printed(capsys, "fit", matrix, "-k", "2", "--verbose")
    assert "projected peak" in whole.split("PCA: 2 components")[0]
    assert "planned    measured" in whole
    assert printed(capsys, "fit", matrix, "-k", "2", "-q") == ""


def test_tables_fit_a_terminal_of_80_columns(matrix, capsys):
    for line in printed(capsys, "fit", matrix, "-k", "2").splitlines():
        assert len(line) <= 80


# -- completion ------------------------------------------------------------------------------------


def completed(tmp_path, capsys, *words: str) -> set[str]:
    """What bash offers for the last of these words."""
    script = tmp_path / "completion.bash"
    script.write_text(printed(capsys, "completion", "bash"))
    names = " ".join(f"'{one}'" for one in ("streampca", *words))
    ask = (
        f"source '{script}'; COMP_WORDS=({names}); COMP_CWORD={len(words)}; _streampca; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    bash = shutil.which("bash")
    assert bash is not None
    done = subprocess.run([bash, "-c", ask], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_bash_completes_commands_options_and_subcommands(tmp_path, capsys):
    assert completed(tmp_path, capsys, "") == set(COMMANDS)
    assert completed(tmp_path, capsys, "im") == {"impute"}
    assert completed(tmp_path, capsys, "fit", "--mem") == {"--memory-limit"}
    assert "rollback" in completed(tmp_path, capsys, "models", "")
    assert completed(tmp_path, capsys, "models", "roll") == {"rollback"}
    assert completed(tmp_path, capsys, "info", "--no-such") == set()


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_scripts_of_other_shells_are_read(shell, tmp_path, capsys):
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "script"
    script.write_text(printed(capsys, "completion", shell))
    subprocess.run([program, "-n", str(script)], check=True)


def test_fish_gets_every_option(capsys):
    script = printed(capsys, "completion", "fish")
    parsers = build_parser().commands
    for name in COMMANDS:
        assert f"-a {name} -d '" in script
        for option in parsers[name].options():
            assert f"'__fish_seen_subcommand_from {name}' -l {option[2:]}\n" in script + "\n"


HOSTILE = "x\nstreampca: version 9 is served\x1b[2J\u202e\u061c"


def test_a_path_forges_no_line_and_moves_no_cursor(tmp_path, capsys):
    place = tmp_path / HOSTILE
    np.save(f"{place}.npy", np.random.default_rng(0).standard_normal((20, 4)))
    (tmp_path / "job.yaml").write_text("store: [1]\n")
    lines = (
        ["fit", f"{place}.npy", "-k", "2", "-o", f"{place}-model"],
        ["transform", f"{place}-model", f"{place}.npy", "-o", f"{place}.tsv"],
        ["transform", f"{place}-model", f"{place}.npy", "-o", f"{place}.tsv"],  # it is there
        ["fit", f"{place}.absent.npy"],
        ["config", "check", f"{place}.yaml"],
    )
    codes = []
    for line in lines:
        codes.append(main(line))
        said = "".join(capsys.readouterr())
        assert "x\\nstreampca: version 9" in said
        assert "\nstreampca: version 9" not in said
        assert not {"\x1b", "\u202e", "\u061c"} & {*said}
    assert codes == [0, 0, 73, 66, 78]


def test_a_report_shows_names_from_the_data_with_their_control_characters_escaped(tmp_path):
    frame = pd.DataFrame(
        np.random.default_rng(0).standard_normal((20, 3)) * [9, 1, 1],
        columns=[f"<b>{HOSTILE}", "b", "c"],
        index=[f"{HOSTILE} {i}" for i in range(20)],
    )
    with pytest.warns(
        streampca.errors.DominantFeatureWarning, match=r"b>x\\nstreampca.*\\u202e"
    ) as told:
        model = streampca.PCA(2, progress=False).fit(frame)
    assert "\x1b" not in str(told[0].message)
    page = model.report(scores=model.transform(frame)).html + model._repr_html_()
    assert not {"\x1b", "\u202e", "\u061c"} & {*page}
    assert "<b>x" not in page
    assert "\\u202e" in page
