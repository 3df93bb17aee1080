"""The version of the installed package."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("streampca")
except PackageNotFoundError:  # a source tree that was not installed
    __version__ = "0+unknown"
