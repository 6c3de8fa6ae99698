"""Fixtures: the axes that a behaviour test runs over, with readable ids, and a fixed seed for every test."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported, which reads it once

import pytest
import torch
from helpers.models import HEADS, KERNELS, MODELS, PADDING, VARIANTS, short_name

torch.set_num_threads(min(2, torch.get_num_threads()))


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    """Every test draws the same random numbers, alone or with others."""
    torch.manual_seed(0)


@pytest.fixture(params=VARIANTS.values(), ids=VARIANTS)
def variant(request) -> dict:
    """`position_embedding_type` and `pre_norm`: every position kind x norm placement."""
    return request.param


@pytest.fixture(params=HEADS, ids=short_name)
def head_class(request) -> type:
    """Every class with a head."""
    return request.param


@pytest.fixture(params=MODELS, ids=short_name)
def model_class(request) -> type:
    """The base model and every class with a head."""
    return request.param


@pytest.fixture(params=KERNELS)
def kernel(request) -> str:
    """Every `attn_implementation` that is supported."""
    return request.param


@pytest.fixture(params=PADDING)
def padding(request) -> str:
    """The name of every padding pattern."""
    return request.param
