"""Means and differences, with their 95 % intervals by Student's t."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import t as student

LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean, and the interval that holds the expectation in 95 % of such studies; `half` is NaN for one value."""

    mean: float
    half: float

    @property
    def low(self) -> float:
        return self.mean - self.half

    @property
    def high(self) -> float:
        return self.mean + self.half

    def excludes(self, value: float) -> bool:
        """Whether the value lies outside; False where there is no interval."""
        return value < self.low or value > self.high


def mean_interval(values: Sequence[float]) -> Interval:
    """mean +- t(n - 1) s / sqrt(n)."""
    n = len(values)
    if n < 2:
        return Interval(values[0] if n else math.nan, math.nan)
    return Interval(statistics.fmean(values), quantile(n - 1) * statistics.stdev(values) / math.sqrt(n))


def difference(first: Sequence[float], second: Sequence[float]) -> Interval:
    """First minus second, of two independent samples (Welch).

    s^2 = a + b, a = s1^2 / n1, b = s2^2 / n2
    degrees of freedom = s^4 / (a^2 / (n1 - 1) + b^2 / (n2 - 1))
    """
    n1, n2 = len(first), len(second)
    if min(n1, n2) < 2:
        return Interval(mean_interval(first).mean - mean_interval(second).mean, math.nan)
    mean = statistics.fmean(first) - statistics.fmean(second)
    a, b = statistics.variance(first) / n1, statistics.variance(second) / n2
    if a + b == 0:
        return Interval(mean, 0.0)
    freedom = (a + b) ** 2 / (a**2 / (n1 - 1) + b**2 / (n2 - 1))
    return Interval(mean, quantile(freedom) * math.sqrt(a + b))


def quantile(freedom: float) -> float:
    """Of Student's t: 95 % of it lie between minus this and this."""
    return float(student.ppf((1 + LEVEL) / 2, freedom))


def write(interval: Interval, digits: int = 3) -> str:
    """ "0.950 (0.931 to 0.969)"."""
    mean, low, high = (f"{value:.{digits}f}" for value in (interval.mean, interval.low, interval.high))
    return mean if math.isnan(interval.half) else f"{mean} ({low} to {high})"
