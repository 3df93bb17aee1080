"""The samples of a genotype fit, where not all of them are fitted, and scores of the others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.accumulators import RowMissing
from streampca.errors import InvalidInputError
from streampca.genetics.counts import SAMPLES, all_read, of_samples, share_of, well_called_samples
from streampca.genetics.filters import VariantFilter, filter_genotypes
from streampca.genetics.id_lists import Names, sample_mask
from streampca.genetics.kinship import METHOD, PAIRS, counted_kinship, pairs_pass
from streampca.genetics.pair_passes import PairSettings, refuse_pairs
from streampca.genetics.pcair import SamplePartition, pcair_partition
from streampca.genetics.sample_scores import oadp_scores
from streampca.kernels import Array
from streampca.matrix import AxisLabels, ChunkedMatrix, select
from streampca.passes import (
    Candidate,
    Pass,
    PassSpec,
    Planned,
    Steps,
    choose,
    pass_spec,
    single_threaded_blas,
)
from streampca.sources.genotypes.allele_counts import DIPLOID

if TYPE_CHECKING:
    from streampca.genetics.joint_read import JointRead

AUTO = "auto"


@dataclass(frozen=True)
class WellCalled:
    """What the passes before a fit say.

    matrix : of the samples that have enough calls, as it is fitted.
    partition : of these samples.
    """

    matrix: Any  # ChunkedMatrix, or JointRead
    partition: SamplePartition


def finding_unrelated(model: Any, opened: ChunkedMatrix | JointRead) -> Planned[WellCalled]:
    """The passes that find unrelated samples, planned: calls by sample, then kinship of all pairs.

    model : the :class:`GenotypePCA`.
    opened : what is read. Of its variants the autosomes count for kinship, if they pass ``maf``
        and ``max_missing`` by the calls of all samples.
    Raises InvalidInputError where kinship is not defined, MemoryLimitError.
    """
    if model.ploidy != DIPLOID:
        raise InvalidInputError(
            f"unrelated='auto' counts kinship of diploid calls, not of ploidy={model.ploidy}; "
            "name the samples to fit, unrelated='unrelated.txt'"
        )
    settings = PairSettings(maf=model.maf, max_missing=model.max_missing)
    some, read = VariantFilter(n_autosomes=model.variants.n_autosomes), all_read(opened)
    autosomes = filter_genotypes(read.hard_calls(), some)
    refuse_pairs(autosomes, METHOD)
    wanted = settings.wanted(autosomes, METHOD)
    counting: PassSpec | None = None
    if share_of(model.max_sample_missing) < 1.0:
        counting = pass_spec(SAMPLES, read, 1, {SAMPLES: RowMissing()})
    pairs = replace(pairs_pass(autosomes, wanted), matrix=autosomes)
    limit = model.max_sample_missing
    find = partial(
        _find, opened=opened, counting=counting, pairs=pairs, limit=limit, settings=settings
    )
    passes = (pairs,) if counting is None else (counting, pairs)
    held = {"counts of pairs": pairs.total_nbytes}
    candidate = Candidate("king", "kinship of all pairs, then PC-AiR", passes, held, solve=find)
    return choose(read, "unrelated samples", [candidate], model.memory_limit)


def _find(
    planned: Planned[Any],
    *,
    opened: ChunkedMatrix | JointRead,
    counting: PassSpec | None,
    pairs: PassSpec,
    limit: float,
    settings: PairSettings,
) -> Steps[WellCalled]:
    """Samples with enough calls, and their partition by the kinship among them."""
    autosomes = pairs.matrix
    assert autosomes is not None
    if counting is not None:
        lost = (yield Pass(counting))[SAMPLES].counts()
        kept = well_called_samples(all_read(opened), lost, limit)
        if not kept.all():
            opened, autosomes = of_samples(opened, kept), select(autosomes, samples=kept)
            refuse_pairs(autosomes, METHOD)
    counts = (yield Pass(pairs, matrix=autosomes))[PAIRS]
    described = {"samples": autosomes.labels.samples}
    king = counted_kinship(counts, settings, autosomes.shape[1], described)
    return WellCalled(opened, pcair_partition(king))


def samples_to_fit(
    opened: ChunkedMatrix,
    fit_samples: Names | None,
    unrelated: Names | SamplePartition | None,
    partition: SamplePartition | None,
) -> tuple[Array, dict[str, Any] | None]:
    """The numbers of the samples to fit, and how unrelated ones were chosen, JSON-ready.

    partition : what the passes before the fit found, for unrelated="auto"; None in a plan, which
        counts all samples.
    Raises InvalidInputError for names that are not there and for two lists.
    """
    samples = opened.labels.samples
    if unrelated is None:
        assert fit_samples is not None
        return _named(samples, fit_samples, "fit_samples"), None
    if fit_samples is not None:
        raise InvalidInputError(
            "fit_samples and unrelated both name the samples to fit; leave one of them out"
        )
    if isinstance(unrelated, str) and unrelated == AUTO:
        if partition is None:
            return np.arange(len(samples)), {"method": AUTO}
        return np.flatnonzero(partition.unrelated), partition.to_dict()
    if isinstance(unrelated, SamplePartition):
        return _rows_of(unrelated, opened), unrelated.to_dict()
    rows = _named(samples, unrelated, "unrelated")
    return rows, {"method": "listed", "unrelated": len(rows), "related": len(samples) - len(rows)}


def _named(samples: AxisLabels, names: Names, option: str) -> Array:
    """The numbers of the named samples.  names : or a mask, (n,) True, as ``Kinship.unrelated``."""
    mask = np.asarray(names) if isinstance(names, (np.ndarray, list)) else np.empty(0, object)
    if mask.dtype.kind != "b":
        return np.flatnonzero(sample_mask(samples, names, option))
    if mask.shape != (len(samples),) or not mask.any():
        raise InvalidInputError(
            f"{option}: a mask {mask.shape} with {np.count_nonzero(mask)} True, and "
            f"{len(samples)} samples; expected one entry for each, at least one of them True"
        )
    return np.flatnonzero(mask)


def _rows_of(partition: SamplePartition, opened: ChunkedMatrix) -> Array:
    """The unrelated samples of a partition among those of a matrix."""
    samples, known = opened.labels.samples, partition.samples
    if samples.named and known.named:
        place = {name: i for i, name in enumerate(known.names())}
        at = np.array([place.get(name, -1) for name in samples.names()])
        if (at < 0).any():
            strange = samples.name(int(np.argmax(at < 0)))
            raise InvalidInputError(
                f"unrelated: {np.count_nonzero(at < 0)} of {len(samples)} samples are not in the "
                f"partition, such as {strange}; make it of the kinship of all of them"
            )
        return np.flatnonzero(partition.unrelated[at])
    if len(samples) != len(known):
        raise InvalidInputError(
            f"unrelated: a partition of {len(known)} samples and data of {len(samples)}; samples "
            "without names must be the same"
        )
    return np.flatnonzero(partition.unrelated)


def without_shrinkage(result: Any, squares: Array) -> Array:
    """(n, k) scores of all samples, those that were not fitted corrected by :func:`oadp_scores`.

    squares : (n,) sums of the squared standardised values of each sample.
    """
    scores, others = np.array(result.scores), ~result.fitted
    projected = scores[others]
    left = squares[others] - np.einsum("ij,ij->i", projected, projected)
    residual = np.sqrt(np.maximum(left, 0.0))
    with single_threaded_blas():
        scores[others] = oadp_scores(result.singular_values, projected, residual)
    return scores
