"""Fixtures: the axes that a behaviour test runs over, with readable ids, and a fixed seed for every test."""

import gc
import os
from collections.abc import Iterator

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported, which reads it once

import pytest
import torch
from helpers.models import CLASSES, HEADS, KERNELS, KIND_AND_NORM, MODELS, SETTINGS, SUBJECTS, short_name

from plainformer.positions_plainformer import POSITION_KINDS

torch.set_num_threads(min(2, torch.get_num_threads()))


@pytest.fixture(scope="module", autouse=True)
def frozen_imports() -> None:
    """Each training calls `gc.collect`, which would look through a million objects of imported modules each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    """Every test draws the same random numbers, alone or with others."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def same_environment() -> Iterator[None]:
    """No test leaves environment variables behind: transformers 4.57 notes `bf16=True` in one, for all that follow."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(params=POSITION_KINDS)
def kind(request) -> str:
    """Every `position_embedding_type`."""
    return request.param


@pytest.fixture(params=[False, True], ids=["post", "pre"])
def pre_norm(request) -> bool:
    """Every norm placement."""
    return request.param


@pytest.fixture(params=KIND_AND_NORM.values(), ids=KIND_AND_NORM)
def variant(request) -> dict:
    """`position_embedding_type` and `pre_norm`: every position kind, with either norm placement in turn."""
    return request.param


@pytest.fixture(params=SETTINGS.values(), ids=SETTINGS)
def setting(request) -> dict:
    """Configuration fields: every position kind, norm placement, kernel and route, one changed at a time."""
    return request.param


@pytest.fixture(params=HEADS, ids=short_name)
def head_class(request) -> type:
    """Every class with a head."""
    return request.param


@pytest.fixture(params=MODELS, ids=short_name)
def model_class(request) -> type:
    """The base model and every class with a head."""
    return request.param


@pytest.fixture(params=CLASSES.values(), ids=CLASSES)
def pooled_class(request) -> tuple[type, dict]:
    """Every class, and the configuration fields that make it pool in one way."""
    return request.param


@pytest.fixture(params=SUBJECTS.values(), ids=SUBJECTS)
def subject(request) -> tuple[type, dict]:
    """A class and configuration fields: every class with each pooling, and the base model in every setting."""
    return request.param


@pytest.fixture(params=KERNELS)
def kernel(request) -> str:
    """Every `attn_implementation` that is supported."""
    return request.param
