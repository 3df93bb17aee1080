"""A Parquet file of columns, written part by part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from streampca.errors import MissingDependencyError


def write_parquet(
    path: str, columns: Mapping[str, np.dtype[Any]], parts: Iterable[Sequence[Any]]
) -> None:
    """Write a file of these columns, texts or numbers.

    columns : name -> dtype.  parts : for some rows at a time, the entries of every column.
    Cost: the memory of one part. Raises MissingDependencyError.
    """
    try:
        import pyarrow as pa
        from pyarrow.parquet import ParquetWriter
    except ImportError:
        raise MissingDependencyError(
            "Parquet needs pyarrow: pip install 'streampca[tables]', or name a .tsv"
        ) from None
    schema = pa.schema(
        [
            (name, pa.string() if dtype.kind == "U" else pa.from_numpy_dtype(dtype))
            for name, dtype in columns.items()
        ]
    )
    with ParquetWriter(path, schema) as file:
        for part in parts:
            arrays = [
                pa.array(np.ascontiguousarray(one) if isinstance(one, np.ndarray) else one)
                for one in part
            ]
            file.write_table(pa.Table.from_arrays(arrays, schema=schema))
