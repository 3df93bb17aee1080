"""Classes of clusters for ``cluster.class``; the module notes that it was imported."""

from __future__ import annotations

from typing import Any

from distributed import LocalCluster

made: list[Fake] = []


class Fake(LocalCluster):
    """Keeps what it was told. Workers in this process: tests ask only that they are there."""

    def __init__(self, queue: str, cores: int, **more: Any) -> None:
        self.told: dict[str, Any] = {"queue": queue, "closed": 0}
        super().__init__(
            n_workers=1,
            threads_per_worker=cores,
            processes=False,
            dashboard_address="127.0.0.1:0",
            **more,
        )
        made.append(self)

    def scale(self, n: Any = None, **more: Any) -> Any:
        self.told["workers"] = n
        return super().scale(n, **more)

    def adapt(self, **limits: Any) -> Any:
        self.told["adapt"] = limits

    def close(self, *args: Any, **more: Any) -> Any:
        self.told["closed"] += 1
        return super().close(*args, **more)


class Broken(LocalCluster):
    """One that its site does not start."""

    def __init__(self) -> None:
        raise RuntimeError("sbatch: command not found")

    def close(self, *args: Any, **more: Any) -> Any:
        """Nothing was started."""


class NoCluster:
    """Something else."""
