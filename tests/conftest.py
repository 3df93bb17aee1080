"""What several test modules use."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The directory of real data that lies beside the repository."""
    path = Path(__file__).parents[1].parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip("the directory of real data does not lie beside the repository")
    return path
