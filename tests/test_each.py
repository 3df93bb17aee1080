"""Cases in a loop: all of them run, and the one that fails is named."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from tests.each import each


def test_every_case_runs_and_the_one_that_fails_is_named() -> None:
    ran = []

    @each("letter, number", [("a", 1), ("b", 2)])
    @each("sign", [1, -1])
    def test(place: str, letter: str, number: int, sign: int) -> None:
        ran.append((place, letter, sign * number))
        assert sign * number != -2

    assert list(inspect.signature(test).parameters) == ["place"]
    with pytest.raises(AssertionError) as caught:
        test(place="here")
    assert ran == [("here", "a", 1), ("here", "a", -1), ("here", "b", 2), ("here", "b", -2)]
    assert caught.value.__notes__ == ["the case: sign=-1", "the case: letter='b', number=2"]


def test_a_name_of_no_parameter_is_an_error() -> None:
    with pytest.raises(AssertionError, match="names of no parameters"):
        each("colour", ["red"])(lambda place: None)


def test_each_case_has_a_folder_of_its_own(tmp_path: Path) -> None:
    folders = []

    @each("number", [1, 2])
    @each("letter", ["a", "b"])
    def test(tmp_path: Path, number: int, letter: str) -> None:
        assert list(tmp_path.iterdir()) == []
        folders.append(tmp_path)

    test(tmp_path=tmp_path)
    assert len(set(folders)) == 4
