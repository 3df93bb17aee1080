"""Whole tasks: what the command line and schedulers start."""

from streampca.jobs.demo import DemoReport, digits_demo, genotype_demo

__all__ = ["DemoReport", "digits_demo", "genotype_demo"]
