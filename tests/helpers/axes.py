"""Axes that do not interact: each value of each is tested, and not each with each."""

from collections.abc import Iterable, Mapping

import pytest

from helpers.models import short_name


def paired(*axes: Iterable | Mapping) -> list:
    """Cases in which every value of every axis occurs: as many as the longest axis has, the others start again.

    A mapping gives its keys to the ids and its values to the test; values of other axes name themselves.
    """
    named = [list(axis.items()) if isinstance(axis, Mapping) else [(name_of(v), v) for v in axis] for axis in axes]
    rows = [[axis[index % len(axis)] for axis in named] for index in range(max(map(len, named)))]
    return [pytest.param(*(value for _, value in row), id="-".join(name for name, _ in row)) for row in rows]


def name_of(value) -> str:
    return short_name(value) if isinstance(value, type) else str(value)
