"""Tells whether a multi-GPU training run is progressing, validating or dead, as Prometheus metrics."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("training-exporter")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"
