"""What an option of PLINK 1.9 or 2 is here: our line, or what to run PLINK for first.

Only options that no command has, or that mean something else here. Asked before abbreviations are:
``--memory`` would stand for ``--memory-limit``, whose numbers are bytes, not MiB.
Source: the references of PLINK 1.9 and PLINK 2 (Chang et al. 2015, GigaScience 4:7).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

# answer -> options, with an example of their value where the answer repeats them, {}
ANSWERS = {
    # inputs
    "not read; convert it first: plink2 {} --make-bed --out y, then --bfile y": (
        "haps x.haps; data x; gen x.gen; import-dosage x; pmerge-list list.txt"
    ),
    "not read; convert it first: plink1.9 {} --make-bed --out y, then --bfile y": (
        "file x; tfile x; lfile x"
    ),
    "--bfile x, or the path of the .bed": "bed; bim; fam",
    "--eigfile x, or the path of the .geno, with --variant-file and --sample-file": (
        "eiggeno; eigsnp; eigind"
    ),
    "--pfile x, or the path of the .pgen": "bpfile; pgen; pvar; psam",
    "--bgen x.bgen --sample-file x.sample": "sample",
    "not here: calls are those that a .pgen stores, else those of dosages within 0.1; to make a "
    ".pgen of others: plink2 --pfile x {} --make-pgen --out y": (
        "hard-call-threshold 0.2; dosage-erase-threshold 0.01"
    ),
    "the default is missing, with a warning": "vcf-half-call",
    "name several filesets: streampca fit a.bed b.bed": "merge-list; bmerge; merge; pmerge",
    # variants
    "not here; filter first: plink2 --bfile x {} --make-bed --out y": (
        "snps-only; hwe 1e-6; max-maf 0.4; max-mac 9; thin 0.1; thin-count 1000; bp-space 1000; "
        "min-alleles 2; mach-r2-filter; minimac3-r2-filter 0.3; var-min-qual 30; ref-from-fa x.fa; "
        "set-all-var-ids '@:#:$r:$a'; thin-indiv 0.5; thin-indiv-count 99; "
        "new-id-max-allele-len 50"
    ),
    "--maf X, where X is the number of copies / (2 x samples)": "mac",
    "--multiallelic drop; a .bed has two alleles": "max-alleles",
    "the default, with XY, PAR1 and PAR2; without these: --chr 1-22": "autosome",
    "the default": "autosome-par; autosome-xy; keep-allele-order; real-ref-alleles",
    "name the others: --chr 1-5,7-22": "not-chr",
    "the default; such chromosomes are fitted with --chr all": "allow-extra-chr",
    "--region 6:25000000-34000000": (
        "from; to; from-bp; to-bp; from-kb; to-kb; from-mb; to-mb; window"
    ),
    "--extract FILE, an id in each line": "snp; snps; extract-intersect",
    "--exclude FILE, an id in each line": "exclude-snp; exclude-snps",
    "repeated ids stop only lists of ids; plink2 --bfile x {} --make-bed --out y": (
        "rm-dup force-first"
    ),
    "--ld-r2 0.2 --ld-window 50 --ld-step 5; or streampca prune": (
        "indep-pairwise; indep; indep-pairphase"
    ),
    "not here; in Python: streampca.prune_ld(X, order=2)": "indep-order",
    "not needed: an id '.' stands for place and alleles": "set-missing-var-ids",
    "not needed: streampca project turns alleles and strands by itself": (
        "ref-allele; a1-allele; alt1-allele; maj-ref; flip"
    ),
    "not needed: streampca project takes the frequencies of the fit": "read-freq",
    "not needed, unless --ld-r2 says so; plink2 --bfile x {} --make-pgen --out y": "sort-vars",
    # samples
    "--keep or --remove FILE, a line for each sample: FID IID": (
        "keep-fam; remove-fam; keep-if; remove-if; keep-cats; remove-cats; within; keep-females; "
        "keep-males; remove-females; remove-males; loop-cats"
    ),
    "everyone counts, founder or not; to fit on some and score all: --fit-samples FILE": (
        "keep-founders; keep-nonfounders; filter-founders; nonfounders; bad-freqs; pca-clusters"
    ),
    "streampca relate x.bed -o x --king-cutoff 0.0884 writes x.king.cutoff.in.id, on which "
    "to fit: --fit-samples x.king.cutoff.in.id (all are scored), or --keep": (
        "king-cutoff-table; rel-cutoff; grm-cutoff"
    ),
    "not needed: ids are those of the .fam": "double-id; const-fid; id-delim",
    "not needed: sex is not used": "update-sex; allow-no-sex",
    # results
    "streampca fit is that: -k 10 --out x; for approx --solver randomized": "pca; pca-cols",
    "streampca relate x.bed -o x --make-grm-bin writes the matrix for GCTA; "
    "streampca.grm('x.bed').relationship is it in Python": (
        "make-rel; make-grm; make-grm-list; make-grm-bin; make-grm-sparse; make-grm-gz"
    ),
    "streampca project model x.bed -o x.tsv scores samples on a fit; --allele-wts writes loadings "
    "for plink2 --score; --scores ZARR takes the scores of a fit": "score; score-list",
    "streampca relate x.bed -o x --make-king-table writes the table x.kin0; the matrix is "
    "streampca.kinship('x.bed').kinship in Python": ("make-king; king-table-subset"),
    "--freq lists every variant": "write-snplist",
    "--out lists every sample": "write-samples",
    "not here; streampca convert writes Zarr": "make-bed; make-pgen; make-bpgen; recode; export",
    "not here; PLINK takes the .eigenvec that --out writes as covariates": (
        "glm; linear; logistic; assoc; pheno; pheno-name; mpheno; 1; covar; covar-name"
    ),
    "not here; PLINK computes it": (
        "genome; het; hardy; fst; geno-counts; sample-counts; homozyg; "
        "r2; r2-phased; r2-unphased; ld; clump; freqx; variant-score; vscore; mds-plot; "
        "output-chr; zst-level"
    ),
    # running
    "--memory-limit 4000MiB (PLINK's number is in MiB)": "memory",
    "not needed: a fit does not depend on chance": "seed",
    "--quiet": "silent",
    "not here; --scheduler tcp://host:8786 uses a cluster": "parallel",
}
# (an option that we have, the value that PLINK takes there or "") -> answer
VALUES = {
    ("--missing", ""): "--missing-counts, with --out, writes plink2's tables .smiss and .vmiss; "
    "--missing mean says what a missing cell is taken for",
    ("--make-king-table", "counts"): "--make-king-table takes no value here, HETHET and IBS0 are "
    "shares; streampca.kinship('x.bed').pairs_of(i) has counts in Python",
    ("--cluster", ""): "--cluster takes a YAML file of Dask workers here; PLINK's clusters are not "
    "here",
    ("--freq", "counts"): "--freq takes no value here; .afreq has frequencies and OBS_CT",
}
_BY_NAME = {
    f"--{one.split()[0]}": answer.replace("{}", f"--{one}")
    for answer, options in ANSWERS.items()
    for one in options.split("; ")
}


SPECIES = {  # PLINK's names -> autosomes
    "--cow": 29,
    "--dog": 38,
    "--horse": 31,
    "--human": 22,
    "--mouse": 19,
    "--rice": 12,
    "--sheep": 26,
}
MODES = {  # what PLINK takes behind the file of an option -> ours
    ("--bgen", "ref-first"): ["--reference-allele", "first"],
    ("--bgen", "ref-last"): ["--reference-allele", "last"],
    ("--bgen", "ref-unknown"): ["--reference-allele", "last"],
    ("--vcf", "dosage=DS"): ["--dosages"],
    ("--bcf", "dosage=DS"): ["--dosages"],
}
ABSENT = ("no-x", "no-y", "no-xy", "no-mt")  # chromosomes that a species has not: nothing follows


def as_ours(arguments: Sequence[str]) -> list[str]:
    """Arguments in which PLINK's names of species, and the words behind a file, are options."""
    words: list[str] = []
    modes = {word: ours for (option, word), ours in MODES.items() if option in arguments}
    of_set = False  # whether a number of autosomes may be followed by chromosomes that are absent
    for word in arguments:
        if word in SPECIES:
            words += ["--chr-set", str(SPECIES[word])]
        elif word in modes:
            words += modes[word]
        elif not (of_set and word in ABSENT):
            words.append(word)
            of_set = word.startswith("--chr-set") or (of_set and not word.startswith("--"))
    return words


def plink_answer(arguments: Sequence[str], own: Collection[str]) -> str:
    """The answer to the first option of PLINK among the arguments that is not here, or "".

    own : the options of the command.
    """
    for word, after in zip(arguments, [*arguments[1:], ""], strict=True):
        name, value = word.partition("=")[::2]
        value = value or ("" if after.startswith("-") else after)
        if name in own and (name, value) in VALUES:
            return f"{name} {value}".strip() + f" of PLINK: {VALUES[name, value]}"
        if name not in own and name in _BY_NAME:
            return f"{name} of PLINK: {_BY_NAME[name]}"
    return ""
