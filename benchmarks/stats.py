"""The few statistics the report states."""

import math
import statistics
from collections.abc import Sequence

# One-sided 95 % quantiles of Student's t by degrees of freedom; between two, the smaller's is taken: it errs upwards.
_T95 = {
    1: 6.314,
    2: 2.920,
    3: 2.353,
    4: 2.132,
    5: 2.015,
    6: 1.943,
    7: 1.895,
    8: 1.860,
    9: 1.833,
    11: 1.796,
    14: 1.761,
    19: 1.729,
    24: 1.711,
    29: 1.699,
    59: 1.671,
}


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def upper_bound(values: Sequence[float]) -> float:
    """One-sided 95 % upper bound of the mean: mean + t(0.95, n-1) s / sqrt(n). Needs two values."""
    degrees = len(values) - 1
    quantile = _T95[max(known for known in _T95 if known <= degrees)]
    return statistics.fmean(values) + quantile * statistics.stdev(values) / math.sqrt(len(values))
