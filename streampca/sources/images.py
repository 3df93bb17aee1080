"""Folders of images: every image is a sample, every pixel a feature."""

from __future__ import annotations

import glob
import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from streampca.errors import (
    DamagedSourceError,
    InvalidInputError,
    MissingDependencyError,
    SourceError,
)
from streampca.matrix import AxisLabels, ChunkedMatrix, Labels, Location, ReadCount
from streampca.matrix.columns import label_array
from streampca.sources.local_files import FileLocation, number_order, visible_files
from streampca.sources.stacked import Index, Reader, StackedMatrix, Tally

SUFFIXES = (".pgm", ".ppm", ".pnm", ".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp")
MODES = {"grey": "L", "rgb": "RGB"}
WIDE = ("I;16", "I;16B", "I;16L", "I")  # 16-bit grey, as Pillow names it
PILLOW_NBYTES = 8 << 20  # of the library, measured
MOST_PIXELS = 1 << 26  # of an image, so that a small file cannot fill the memory


def open_images(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    mode: str = "auto",
    resize: tuple[int, int] | None = None,
) -> ChunkedMatrix:
    """Open images as a matrix of images x pixels, (n, h w) or (n, h w 3), read in blocks.

    source : a folder (with the images of its sub-folders, whose names become labels), a pattern
        (``"faces/*/*.pgm"``) or a list of files: pgm, ppm, png, jpg, tiff, bmp; sorted with numbers
        in order (2 before 10).
    mode : "grey", "rgb", or "auto": the kind of the first image, which all others must be of.
    resize : (height, width) in pixels; without it all images must have the size of the first.

    Pixels are uint8, or uint16 in 16-bit files, as stored: no orientation of EXIF is applied. The
    features have the dimensions y and x (and channel), so that what belongs to features comes back
    as pictures: ``components_.reshape(-1, h, w)``, ``plots.images``. ``labels.samples`` holds the
    names of the files, and ``labels.samples.extra["label"]`` their folders.

    Cost: the header of every image is read here, pixels when they are needed; about 200 bytes of
    memory for each name. ``streampca convert faces/ -o faces.zarr`` pays decoding once.
    Raises InvalidInputError (sizes or kinds that differ, named), SourceError, DamagedSourceError,
    MissingDependencyError.

    Examples:
        >>> import tempfile, numpy as np
        >>> from pathlib import Path
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "a.pgm").write_bytes(b"P5 4 3 255\\n" + bytes(range(12)))
        >>> streampca.open_images(folder).shape  # images x pixels
        (1, 12)
    """
    if mode not in ("auto", *MODES):
        raise InvalidInputError(f"mode={mode!r}; expected 'auto', 'grey' or 'rgb'")
    if resize is not None and not (
        len(resize) == 2 and all(isinstance(one, (int, np.integer)) and one > 0 for one in resize)
    ):
        raise InvalidInputError(f"resize={resize!r}; expected (height, width) in pixels")
    paths, root = _paths(source)
    reader = ImageReader(paths, *_common(paths, mode, resize), resized=resize is not None)
    names = [os.path.relpath(path, root) for path in paths]
    folders = [os.path.dirname(name) for name in names]
    extra = {"label": label_array(folders)} if any(folders) else {}
    dims = ("y", "x", "channel")[: len(reader.shape) - 1]
    samples = replace(AxisLabels.plain("image", len(names), names), extra=extra)
    labels = Labels(samples, AxisLabels(dims, reader.shape[1:]))
    matrix = StackedMatrix(reader, (0,), labels=labels)
    matrix.resident_nbytes = PILLOW_NBYTES + sum(sys.getsizeof(file) + 8 for file in reader.files)
    return matrix


def are_images(source: Any) -> bool:
    """Whether ``streampca.open`` should read this as images."""
    listed = source if isinstance(source, (list, tuple)) and source else [source]
    if not all(isinstance(one, (str, os.PathLike)) for one in listed):
        return False
    paths = [os.fspath(one) for one in listed]
    if any("://" in path for path in paths):
        return False
    if all(path.lower().endswith(SUFFIXES) for path in paths):
        return True
    return len(paths) == 1 and os.path.isdir(paths[0]) and _first_is_image(paths[0])


class ImageReader(Reader):
    """Files of one size and kind, decoded when they are read.

    pixels : (height, width).  kind : of Pillow, "L", "RGB" or "I;16".
    """

    def __init__(
        self, files: Sequence[str], pixels: tuple[int, int], kind: str, resized: bool = False
    ) -> None:
        self.files, self.kind, self.resized = list(files), kind, resized
        self.shape = (len(self.files), *pixels, *((3,) if kind == "RGB" else ()))
        self.dtype = np.dtype(np.uint16 if kind == "I;16" else np.uint8)
        self.carried_nbytes = sum(map(len, self.files))
        self.tally = Tally()

    def read(self, index: Index) -> np.ndarray[Any, Any]:
        rows, inner = index[0], tuple(index[1:])
        sizes = [one.stop - one.start for one in index]
        out = np.empty(sizes, self.dtype)
        for i, path in enumerate(self.files[rows]):
            out[i] = self._decoded(path)[inner]
        self.tally.add(ReadCount(len(out), out.nbytes))
        return out

    def _decoded(self, path: str) -> np.ndarray[Any, Any]:
        height, width = self.shape[1:3]
        values: np.ndarray[Any, Any]
        with _opened(path) as image:
            if self.kind == "I;16":
                if self.resized:
                    image = image.convert("F").resize((width, height))
                values = np.clip(np.rint(np.asarray(image)), 0, 65535).astype(np.uint16)
            else:
                image = image.convert(self.kind)
                values = np.asarray(image.resize((width, height)) if self.resized else image)
        if values.shape != self.shape[1:]:
            raise SourceError(f"{path} is {values.shape} now; it was {self.shape[1:]} when opened")
        return values

    def edges(self, dim: int) -> np.ndarray[Any, Any] | None:
        return None

    def scratch_nbytes(self, index: Index) -> int:
        return 8 * int(np.prod(self.shape[1:]))

    def fingerprint(self) -> str:
        text = f"{self.shape} {self.kind} {self.resized} " + "\n".join(self.files)
        return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()

    def content_stamp(self) -> str:
        digest = hashlib.sha256(self.fingerprint().encode())
        for path in self.files:
            seen = os.stat(path)
            digest.update(f"{seen.st_size} {seen.st_mtime_ns}\n".encode())
        return digest.hexdigest()

    def paths(self) -> tuple[str, ...]:
        return tuple(sorted({os.path.dirname(path) for path in self.files}))

    def locations(self) -> tuple[Location, ...]:
        return tuple(map(FileLocation, dict.fromkeys((self.files[0], self.files[-1]))))


# -- which files, and what they have in common ----------------------------------------------------


def _paths(source: Any) -> tuple[list[str], str]:
    """(the files, the folder that their names are relative to)."""
    if isinstance(source, (list, tuple)):
        paths = [os.path.abspath(one) for one in source]
        what = f"the list of {len(paths)}"
    else:
        path = what = os.fspath(source)
        if os.path.isdir(path):
            whole = os.path.abspath(path)
            files = (file for file in visible_files(whole) if file.lower().endswith(SUFFIXES))
            return _nonempty(sorted(files, key=number_order), what), whole
        found = glob.glob(path, recursive=True) if glob.has_magic(path) else [path]
        paths = sorted((os.path.abspath(one) for one in found), key=number_order)
    return _nonempty(paths, what), os.path.commonpath(
        [os.path.dirname(one) for one in paths] or "/"
    )


def _nonempty(paths: list[str], what: str) -> list[str]:
    if not paths:
        raise SourceError(f"{what}: no images there; expected {', '.join(SUFFIXES)}")
    return paths


def _first_is_image(folder: str) -> bool:
    """Whether images are the first files of a folder; looks no further."""
    for _, folders, names in os.walk(folder):
        folders[:] = sorted(one for one in folders if not one.startswith("."))[:1]
        shown = [name for name in names if not name.startswith(".")]
        if {"zarr.json", ".zgroup", ".zarray"} & {*names}:
            return False
        if any(name.lower().endswith(SUFFIXES) for name in shown):
            return True
    return False


def _common(
    paths: Sequence[str], mode: str, resize: tuple[int, int] | None
) -> tuple[tuple[int, int], str]:
    """(pixels, kind) of all images. Raises InvalidInputError that names the first that differs."""
    first: tuple[tuple[int, int], str] | None = None
    for path in paths:
        with _opened(path) as image:
            size = (int(image.height), int(image.width))
            kind = MODES[mode] if mode != "auto" else _kind(image.mode)
        if size[0] * size[1] > MOST_PIXELS:
            raise InvalidInputError(
                f"{path} has {size[0]} x {size[1]} pixels; expected at most {MOST_PIXELS} in all"
            )
        here = (size if resize is None else (int(resize[0]), int(resize[1])), kind)
        first = first or here
        if here[0] != first[0]:
            height, width = first[0]
            raise InvalidInputError(
                f"{path} is {size[0]} x {size[1]}, {paths[0]} {height} x {width} pixels; "
                f"expected one size: open_images(..., resize=({height}, {width})), or "
                f"--resize {height} {width}"
            )
        if here[1] != first[1]:
            raise InvalidInputError(
                f"{path} is {_kind_shown(here[1])}, {paths[0]} {_kind_shown(first[1])}; "
                "expected one kind: open_images(..., mode='grey'), or --image-mode grey"
            )
    assert first is not None
    return first


def _kind(mode: str) -> str:
    if mode in WIDE:
        return "I;16"
    return "L" if mode in ("L", "1", "LA") else "RGB"


def _kind_shown(kind: str) -> str:
    return {"L": "grey", "RGB": "in colour", "I;16": "grey of 16 bits"}[kind]


@contextmanager
def _opened(path: str) -> Iterator[Any]:
    """An image of Pillow. Raises DamagedSourceError that names the file."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise MissingDependencyError(
            f"images need Pillow ({error}). Install it: pip install 'streampca[images]'"
        ) from error
    try:
        with Image.open(path) as image:
            yield image
    except FileNotFoundError:
        raise SourceError(f"{path}: no such file") from None
    except UnidentifiedImageError:
        raise DamagedSourceError(
            f"{path} is not an image that Pillow reads; restore it, or remove it"
        ) from None
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        if isinstance(error, SourceError):
            raise
        raise DamagedSourceError(
            f"{path} cannot be read: {error}. Restore it, or remove it"
        ) from error
