"""A model store beside a list of what must be in it: the base of the machines of F24."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from streampca.errors import InvalidInputError, SourceError
from streampca.model_store.stored_version import StoredVersion
from streampca.model_store.versions import VersionStore

NAMES = st.sampled_from(["champion", "challenger"])


class ExpectedVersions(RuleBasedStateMachine):
    """Promotes, rolls back and collects; a child publishes, and tells what each version holds."""

    steps: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.values: list[Any] = []  # of every published version, by number
        self.removed: set[int] = set()
        self.stack: list[int] = []  # promoted numbers
        self.names: dict[str, int] = {}  # aliases

    @property
    def store(self) -> VersionStore:
        """The store, opened anew."""
        raise NotImplementedError

    def check(self, version: StoredVersion, value: Any) -> None:
        """That a version holds what was published."""
        raise NotImplementedError

    @property
    def there(self) -> list[int]:
        return [n for n in range(1, len(self.values) + 1) if n not in self.removed]

    def published(self, value: Any, promote: bool = True) -> None:
        self.values.append(value)
        if promote:
            self.stack.append(len(self.values))

    def was_published(self) -> bool:
        """Whether there is one version more than was told here."""
        store = self.store
        return store.exists() and store.history().table.count > len(self.values)

    @precondition(lambda self: self.values)
    @rule(data=st.data())
    def promote(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(1, len(self.values)))
        if number in self.removed:
            with pytest.raises(InvalidInputError):
                self.store.promote(number)
            return
        self.store.promote(number)
        if not self.stack or self.stack[-1] != number:
            self.stack = [*(n for n in self.stack if n != number), number]

    @precondition(lambda self: self.values)
    @rule()
    def rollback(self) -> None:
        earlier = [n for n in self.stack[:-1] if n not in self.removed]
        if not earlier:
            with pytest.raises(SourceError):
                self.store.rollback()
            return
        assert self.store.rollback().number == earlier[-1]
        del self.stack[self.stack.index(earlier[-1]) + 1 :]

    @precondition(lambda self: self.values)
    @rule(name=NAMES, data=st.data())
    def alias(self, name: str, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(self.there))
        assert self.store.alias(name, number).number == number
        self.names[name] = number

    @precondition(lambda self: self.names)
    @rule(name=NAMES)
    def remove_alias(self, name: str) -> None:
        if self.names.pop(name, None) is None:
            with pytest.raises(InvalidInputError, match="has no alias"):
                self.store.remove_alias(name)
            return
        self.store.remove_alias(name)

    @precondition(lambda self: self.values)
    @rule(keep=st.integers(1, 3))
    def gc(self, keep: int) -> None:
        would = self.store.gc(keep, grace=0, dry_run=True)
        assert self.store.gc(keep, grace=0) == would
        promoted = [n for n in self.stack if n in self.there]
        kept = {*self.there[-keep:], *promoted[-max(keep, 2) :], *self.names.values()}
        self.removed |= {*self.there} - kept

    @invariant()
    def all_is_as_told(self) -> None:
        type(self).steps += 1
        if not self.values:
            return
        store = self.store
        assert [version.number for version in store.versions()] == self.there
        assert store.verify() == {}
        assert {name: one.number for name, one in store.aliases().items()} == self.names
        if self.stack:
            served = store.find()
            assert served.number == self.stack[-1]
            self.check(served, self.values[served.number - 1])


def go_on(machine: type[ExpectedVersions], runs: int, length: int) -> None:
    """So many runs of at most so many steps each, the same ones every time."""
    machine.steps = 0
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=runs,
            stateful_step_count=length,
            deadline=None,
            derandomize=True,
            suppress_health_check=slow,
        ),
    )
    print(f"{machine.steps} steps")
    assert machine.steps > runs * length / 2
