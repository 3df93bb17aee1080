"""Small genotype stores for tests: PLINK filesets, VCF Zarr and plain Zarr of the same calls."""

from __future__ import annotations

import gzip
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import zarr

TWO_BITS = np.array([3, 2, 0, 1], np.uint8)  # of 0, 1 and 2 copies of A1, and of a missing call
TEXT = np.dtypes.StringDType()


def random_calls(n: int, p: int, seed: int = 0, missing: float = 0.05) -> np.ndarray:
    """(n, p) int8 copies 0, 1, 2 of an allele, -1 = missing, of two mixed populations."""
    rng = np.random.default_rng(seed)
    frequency = rng.uniform(0.1, 0.9, (2, p))[np.arange(n) % 2]
    calls = rng.binomial(2, frequency).astype(np.int8)
    calls[rng.random((n, p)) < missing] = -1
    return calls


def sample_names(n: int) -> list[str]:
    return [f"s{i}" for i in range(n)]


def variant_names(p: int, first: int = 0) -> list[str]:
    return [f"rs{i}" for i in range(first, first + p)]


def write_plink(
    stem: str | Path,
    calls: np.ndarray,
    *,
    ids: Sequence[str] | None = None,
    chromosomes: Sequence[str] | None = None,
    samples: Sequence[str] | None = None,
    families: Sequence[str] | None = None,
    alleles: Sequence[tuple[str, str]] | None = None,
) -> str:
    """Write stem.bed, .bim and .fam of calls (n, p), copies of A1; the path of the .bed.

    alleles : (A1, A2) of each variant.
    """
    n, p = calls.shape
    ids = ids or variant_names(p)
    chromosomes = chromosomes or ["1"] * p
    samples = samples or sample_names(n)
    families = families or list(samples)
    alleles = alleles or [("G", "A")] * p
    codes = np.zeros((p, -(-n // 4) * 4), np.uint8)
    codes[:, :n] = TWO_BITS[calls.T]
    four = codes.reshape(p, -1, 4)
    packed = four[..., 0] | four[..., 1] << 2 | four[..., 2] << 4 | four[..., 3] << 6
    Path(f"{stem}.bed").write_bytes(b"\x6c\x1b\x01" + packed.astype(np.uint8).tobytes())
    rows = zip(chromosomes, ids, alleles, strict=True)
    bim = [f"{c}\t{v}\t0\t{100 + j}\t{a}\t{b}\n" for j, (c, v, (a, b)) in enumerate(rows)]
    Path(f"{stem}.bim").write_text("".join(bim))
    fam = [f"{f} {s} 0 0 0 -9\n" for f, s in zip(families, samples, strict=True)]
    Path(f"{stem}.fam").write_text("".join(fam))
    return f"{stem}.bed"


def write_pgen(
    stem: str | Path,
    calls: np.ndarray,
    *,
    dosages: np.ndarray | None = None,
    ids: Sequence[str] | None = None,
    chromosomes: Sequence[str] | None = None,
    samples: Sequence[str] | None = None,
    families: Sequence[str] | None = None,
    alleles: Sequence[tuple[str, str]] | None = None,
) -> str:
    """Write stem.pgen, .pvar and .psam of calls (n, p), copies of ALT, with pgenlib; the path.

    dosages : (n, p), NaN = missing, instead of the calls.  alleles : (ALT, REF) of each variant.
    """
    import pgenlib

    n, p = (calls if dosages is None else dosages).shape
    ids, chromosomes = ids or variant_names(p), chromosomes or ["1"] * p
    samples, alleles = samples or sample_names(n), alleles or [("G", "A")] * p
    name = f"{stem}.pgen".encode()
    writer = pgenlib.PgenWriter(name, n, p, False, dosage_present=dosages is not None)
    if dosages is None:
        coded = np.where(calls < 0, np.int8(-9), calls)
        writer.append_biallelic_batch(np.ascontiguousarray(coded.T, np.int8))
    else:
        values = np.where(np.isnan(dosages), -9, dosages)
        writer.append_dosages_batch(np.ascontiguousarray(values.T, np.float32))
    writer.close()
    rows = zip(chromosomes, ids, alleles, strict=True)
    lines = [f"{c}\t{100 + j}\t{v}\t{b}\t{a}\n" for j, (c, v, (a, b)) in enumerate(rows)]
    Path(f"{stem}.pvar").write_text("#CHROM\tPOS\tID\tREF\tALT\n" + "".join(lines))
    people = [[one] for one in samples]
    if families:
        people = [[home, one] for home, one in zip(families, samples, strict=True)]
    head = "#FID\tIID\tSEX\n" if families else "#IID\tSEX\n"
    Path(f"{stem}.psam").write_text(head + "".join("\t".join([*p, "NA\n"]) for p in people))
    return f"{stem}.pgen"


def diploid(calls: np.ndarray) -> np.ndarray:
    """(p, n, 2) int8 alleles of calls (n, p), as ``call_genotype`` holds them."""
    counts = calls.T
    alleles = np.stack([counts >= 1, counts == 2], axis=2).astype(np.int8)
    alleles[counts < 0] = -1
    return alleles


def write_vcf_zarr(
    path: str | Path,
    calls: np.ndarray,
    *,
    alleles: np.ndarray | None = None,
    names: Sequence[Sequence[str]] | None = None,
    mask: np.ndarray | bool = True,
    chunks: tuple[int, int] = (16, 8),
    mask_chunks: tuple[int, int] | None = None,
    zarr_format: Any = 2,
    contig: str = "chr1",
    ids: Sequence[str] | None = None,
    samples: Sequence[str] | None = None,
) -> str:
    """Write calls (n, p) as bio2zarr does; its path.

    alleles : (p, n, ploidy) instead of those of diploid calls.
    names : alleles of each variant, REF first.  mask : True writes where alleles are negative.
    """
    n, p = calls.shape
    alleles = diploid(calls) if alleles is None else alleles
    names = names or [("A", "G")] * p
    ploidy = alleles.shape[2]
    group = zarr.open_group(str(path), mode="w", zarr_format=zarr_format)

    def put(name: str, values: Any, dims: Sequence[str], step: Any = None) -> None:
        values = np.asarray(values)
        v3 = {"dimension_names": dims} if zarr_format == 3 else {}
        array = group.create_array(
            name,
            shape=values.shape,
            chunks=step or values.shape,
            dtype=values.dtype,
            config={"write_empty_chunks": True},
            **v3,
        )
        if zarr_format == 2:
            array.attrs["_ARRAY_DIMENSIONS"] = list(dims)
        array[...] = values

    dims = ("variants", "samples", "ploidy")
    put("call_genotype", alleles, dims, (*chunks, ploidy))
    if mask is not False:
        hidden = alleles < 0 if mask is True else mask
        put("call_genotype_mask", hidden, dims, (*(mask_chunks or chunks), ploidy))
    widest = max(len(row) for row in names)
    padded = [[*row, *[""] * (widest - len(row))] for row in names]
    put("variant_allele", np.array(padded, TEXT), ("variants", "alleles"))
    put("variant_contig", np.zeros(p, np.int8), ("variants",))
    put("variant_position", 100 + np.arange(p, dtype=np.int32), ("variants",))
    put("variant_id", np.array(ids or variant_names(p), TEXT), ("variants",))
    put("contig_id", np.array([contig], TEXT), ("contigs",))
    put("sample_id", np.array(samples or sample_names(n), TEXT), ("samples",))
    return str(path)


def write_calls(path: str | Path, calls: np.ndarray, by_variant: bool, chunk: int = 16) -> str:
    """Write calls (n, p) as a plain int8 Zarr, samples x variants or the other way; its path."""
    values = calls.T if by_variant else calls
    chunks = (chunk, calls.shape[0]) if by_variant else (calls.shape[0], chunk)
    array = zarr.create_array(
        str(path),
        shape=values.shape,
        chunks=chunks,
        dtype="int8",
        config={"write_empty_chunks": True},
    )
    array[...] = values
    return str(path)


def digest_of(names: Sequence[str]) -> int:
    """EIGENSOFT's digest of names, as its source has it: one character after the other."""
    value = 0
    for name in names:
        one = 0
        for character in name.encode():
            one = (one * 23 + character) % 2**32
        value = (value * 17) % 2**32 ^ one
    return value


def write_geno(
    stem: str | Path,
    calls: np.ndarray,
    kind: str,
    *,
    ids: Sequence[str] | None = None,
    chromosomes: Sequence[str] | None = None,
    samples: Sequence[str] | None = None,
    populations: Sequence[str] | None = None,
    sexes: Sequence[str] | None = None,
    alleles: Sequence[tuple[str, str]] | None = None,
) -> str:
    """Write stem.geno, .snp and .ind of calls (n, p); the path of the .geno.

    kind : "EIGENSTRAT", "PACKEDANCESTRYMAP" or "TRANSPOSED".  alleles : (counted, other).
    """
    n, p = calls.shape
    ids, samples = ids or variant_names(p), samples or sample_names(n)
    rows = zip(ids, chromosomes or ["1"] * p, alleles or [("G", "A")] * p, strict=True)
    snp = [f"{v:>20} {c:>4} 0.0 {100 + j} {a} {b}\n" for j, (v, c, (a, b)) in enumerate(rows)]
    Path(f"{stem}.snp").write_text("".join(snp))
    people = zip(samples, sexes or "U" * n, populations or ["Control"] * n, strict=True)
    Path(f"{stem}.ind").write_text("".join(f"{s:>20} {x} {g:>10}\n" for s, x, g in people))
    if kind == "EIGENSTRAT":
        digits = np.where(calls.T < 0, 9, calls.T)
        text = "".join("".join(map(str, line)) + "\n" for line in digits.tolist())
        Path(f"{stem}.geno").write_text(text)
        return f"{stem}.geno"
    word, lines = ("TGENO", calls) if kind == "TRANSPOSED" else ("GENO", calls.T)
    head = f"{word} {n:7d} {p:7d} {digest_of(samples):x} {digest_of(ids):x}".encode()
    codes = np.zeros((len(lines), -(-lines.shape[1] // 4) * 4), np.uint8)
    codes[:, : lines.shape[1]] = np.where(lines < 0, 3, lines)
    four = codes.reshape(len(lines), -1, 4)
    packed = four[..., 0] << 6 | four[..., 1] << 4 | four[..., 2] << 2 | four[..., 3]
    width = packed.shape[1] if word == "TGENO" else max(48, packed.shape[1])
    body = np.zeros((len(lines), width), np.uint8)
    body[:, : packed.shape[1]] = packed
    head = head.ljust(48 if word == "TGENO" else width, b"\0")
    Path(f"{stem}.geno").write_bytes(head + body.tobytes())
    return f"{stem}.geno"


def certain(calls: np.ndarray, missing: np.ndarray | None = None) -> np.ndarray:
    """(p, n, 3) probabilities of 0, 1 and 2 copies of calls (n, p), NaN where missing."""
    lost = calls.T < 0 if missing is None else missing.T
    probabilities = (np.where(lost, 0, calls.T)[..., None] == [0, 1, 2]).astype(np.float64)
    probabilities[lost] = np.nan
    return probabilities


def write_bgen(
    stem: str | Path,
    probabilities: np.ndarray,
    *,
    bits: int = 8,
    phased: bool = False,
    ploidy: int = 2,
    compression: str | None = "zstd",
    layout: int = 2,
    index: bool = True,
    alleles: tuple[str, str] = ("A", "G"),
    several: Sequence[int] = (),
    ids: Sequence[str] | None = None,
    chromosomes: Sequence[str] | None = None,
    samples: Sequence[str] | bool = True,
) -> str:
    """Write stem.bgen of (p, n, genotypes) probabilities by the library bgen; its path.

    several : numbers of variants that get a third allele, T.  samples : False for none.
    """
    from bgen import BgenWriter

    p, n, _ = probabilities.shape
    names = sample_names(n) if samples is True else list(samples or [])
    path, ids = f"{stem}.bgen", ids or variant_names(p)
    logging.getLogger().setLevel(logging.ERROR)  # the library warns of each rounded variant
    with BgenWriter(path, n, names, compression, layout) as file:
        for j in range(p):
            rows, own = probabilities[j], list(alleles)
            if j in several:
                rows, own = np.hstack([rows, np.zeros_like(rows)]), [*alleles, "T"]
            chromosome = chromosomes[j] if chromosomes else "1"
            file.add_variant(
                "", ids[j], chromosome, 100 + j, own, rows, ploidy, phased, min(bits, 32)
            )
    if not index:
        Path(f"{path}.bgi").unlink(missing_ok=True)
    return path


def write_vcf(
    path: str | Path,
    calls: np.ndarray,
    *,
    dosages: np.ndarray | None = None,
    samples: Sequence[str] | None = None,
    ids: Sequence[str] | None = None,
) -> str:
    """Write calls (n, p), copies of ALT, as text, gzipped text (.gz), BGZF (.bgz) or BCF.

    dosages : (n, p) of DS, NaN = missing.
    """
    n, p = calls.shape
    names, ids = samples or sample_names(n), ids or variant_names(p)
    genotype = {-1: "./.", 0: "0/0", 1: "0/1", 2: "1/1"}
    kind = "GT" if dosages is None else "GT:DS"
    rows = []
    for j in range(p):
        cells = [genotype[int(call)] for call in calls[:, j]]
        if dosages is not None:
            shown = ["." if np.isnan(x) else f"{x:.4f}" for x in dosages[:, j]]
            cells = [f"{one}:{other}" for one, other in zip(cells, shown, strict=True)]
        rows.append(("1", str(100 + j), ids[j], "A", "G", ".", ".", ".", kind, *cells))
    return write_vcf_lines(path, names, rows)


def write_vcf_lines(path: str | Path, samples: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write lines of a VCF of these cells, from CHROM on."""
    head = [
        "##fileformat=VCFv4.2",
        *(f"##contig=<ID={name}>" for name in dict.fromkeys(row[0] for row in rows)),
        '##FORMAT=<ID=GT,Number=1,Type=String,Description="calls">',
        '##FORMAT=<ID=DS,Number=A,Type=Float,Description="dosages">',
        "\t".join("#CHROM POS ID REF ALT QUAL FILTER INFO FORMAT".split() + list(samples)),
    ]
    text = "".join("\t".join(row) + "\n" for row in rows)
    whole = "\n".join(head) + "\n" + text
    path = str(path)
    if path.endswith((".bgz", ".bcf")):
        from cyvcf2 import VCF, Writer

        plain = f"{path}.text.vcf"
        Path(plain).write_text(whole)
        source = VCF(plain)
        mode = "wb" if path.endswith(".bcf") else "wz"
        writer = Writer(path, source, mode=mode)
        for variant in source:
            writer.write_record(variant)
        writer.close()
        Path(plain).unlink()
    elif path.endswith(".gz"):
        Path(path).write_bytes(gzip.compress(whole.encode()))
    else:
        Path(path).write_text(whole)
    return path
