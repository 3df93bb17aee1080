"""Whole tasks: what the command line and schedulers start."""

from streampca.jobs.convert import Conversion, convert
from streampca.jobs.demo import DemoReport, digits_demo, genotype_demo

__all__ = ["Conversion", "DemoReport", "convert", "digits_demo", "genotype_demo"]
