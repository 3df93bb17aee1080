"""What runs by itself: versions of models, the log of a store, refresh, jobs."""

from streampca.operations.convert import Conversion, convert
from streampca.operations.demo import DemoReport, digits_demo, genotype_demo

__all__ = ["Conversion", "DemoReport", "convert", "digits_demo", "genotype_demo"]
