"""scikit-learn's contract for constructor arguments, without loading scikit-learn."""

from __future__ import annotations

import inspect
from typing import Any, Self

from streampca.errors import InvalidInputError
from streampca.passes import is_client
from streampca.shown import hide_secrets


class Parameters:
    """Parameters stored untouched by the constructor: ``get_params``, ``set_params``, ``repr``."""

    @classmethod
    def _parameters(cls) -> list[str]:
        return [name for name in inspect.signature(cls.__init__).parameters if name != "self"]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments."""
        return {name: getattr(self, name) for name in self._parameters()}

    def set_params(self, **params: Any) -> Self:
        """Change constructor arguments; takes effect at the next fit."""
        for name, value in params.items():
            if name not in self._parameters():
                raise InvalidInputError(
                    f"Invalid parameter {name!r} for estimator {type(self).__name__}(). Valid "
                    f"parameters are: {self._parameters()!r}."
                )
            setattr(self, name, value)
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Without a client, which is of this process: elsewhere the ambient one, or threads."""
        state = dict(self.__dict__)
        if is_client(state.get("scheduler")):
            state["scheduler"] = None
        return state

    def __sklearn_clone__(self) -> Self:
        """The same parameters, not fitted; a client is shared, as it cannot be copied."""
        from sklearn.base import clone

        params = {
            name: value if is_client(value) else clone(value, safe=False)
            for name, value in self.get_params(deep=False).items()
        }
        return type(self)(**params)

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self).__init__).parameters
        changed = [
            f"{name}={hide_secrets(repr(value))}"
            for name, value in self.get_params().items()
            if repr(value) != repr(defaults[name].default)
        ]
        return f"{type(self).__name__}({', '.join(changed)})"
