"""What runs by itself: versions of models, the log of a store, refresh, jobs."""

from streampca.operations.convert import Conversion, DemoReport, convert, digits_demo, genotype_demo

__all__ = ["Conversion", "DemoReport", "convert", "digits_demo", "genotype_demo"]
