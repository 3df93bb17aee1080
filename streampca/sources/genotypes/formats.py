"""The formats of genotypes: how their files are named, and what opens them.

To add one, add a line here. Opening, joining, messages and the command line read this list.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from streampca.matrix import ChunkedMatrix
from streampca.paths import paths_end


@dataclass(frozen=True)
class GenotypeFormat:
    """A format of genotypes.

    name : for messages.
    calls : ends of the paths of calls, in lower case.  tables : of the files that name samples and
        variants; these stand for the source too.
    opener : "module:function" of ``streampca.sources.genotypes``, imported when it is used. It
        takes the path and those options of ``streampca.open`` that ``takes`` names.
    takes : "dosages", "multiallelic" and the like.
    beside : ends of the files that are read together with the calls.
    option : PLINK's option on the command line, and the path that its value stands for.
    joins : whether the opener takes several paths, or a pattern. Otherwise each file is opened, and
        ``join_files`` joins them.
    """

    name: str
    calls: tuple[str, ...]
    opener: str
    tables: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    option: tuple[str, str] | None = None
    joins: bool = False

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Ends of all paths that stand for the source."""
        return (*self.calls, *self.tables)

    def open(self, source: Any, options: Mapping[str, Any]) -> ChunkedMatrix:
        """Samples x variants.  options : of ``streampca.open``."""
        module, function = self.opener.split(":")
        opener = getattr(import_module(f"streampca.sources.genotypes.{module}"), function)
        path = os.fspath(source) if isinstance(source, os.PathLike) else source
        matrix: ChunkedMatrix = opener(path, **{name: options[name] for name in self.takes})
        return matrix

    def files(self, path: str) -> list[str]:
        """The files that a path of this format stands for, whether they exist or not."""
        end = next(end for end in self.suffixes if path.lower().endswith(end))
        stem, others = path[: -len(end)], (*self.tables, *self.beside)
        if end in self.tables:
            others = (*self.calls, *others)
        return [path, *(stem + other for other in others if other != end)]


FORMATS = (
    GenotypeFormat(
        "PLINK 1 fileset",
        (".bed",),
        "plink:open_plink",
        tables=(".bim", ".fam"),
        option=("bfile", "{}.bed"),
        joins=True,
    ),
    GenotypeFormat(
        "PLINK 2 fileset",
        (".pgen",),
        "pgen:open_pgen",
        tables=(".pvar", ".pvar.zst", ".psam"),
        takes=("dosages", "multiallelic"),
        option=("pfile", "{}.pgen"),
    ),
    GenotypeFormat(
        "EIGENSTRAT or PACKEDANCESTRYMAP",
        (".geno", ".eigenstratgeno", ".packedancestrymapgeno"),
        "eigenstrat:open_eigenstrat",
        tables=(".snp", ".ind"),
        takes=("sample_file", "variant_file"),
        option=("eigfile", "{}.geno"),
    ),
    GenotypeFormat(
        "BGEN",
        (".bgen",),
        "bgen:open_bgen",
        takes=("multiallelic", "reference_allele", "sample_file"),
        beside=(".bgen.bgi", ".sample"),
        option=("bgen", "{}"),
    ),
    GenotypeFormat(
        "VCF",
        (".vcf", ".vcf.gz", ".vcf.bgz"),
        "vcf:open_vcf",
        takes=("dosages", "multiallelic"),
        option=("vcf", "{}"),
    ),
    GenotypeFormat(
        "BCF", (".bcf",), "vcf:open_vcf", takes=("dosages", "multiallelic"), option=("bcf", "{}")
    ),
)
SUFFIXES = tuple(suffix for one in FORMATS for suffix in one.suffixes)
CALLS = tuple(suffix for one in FORMATS for suffix in one.calls)


def format_of(source: Any) -> GenotypeFormat | None:
    """The format of a path, or of all paths of a list; None of anything else."""
    return next((one for one in FORMATS if paths_end(source, one.suffixes)), None)
