"""What the tests share. Run with `pytest bindings/python`; CARRY_LIBRARY names another library than the newest build."""

from __future__ import annotations

import os

import numpy as np
import pytest

import checkout

# Tests must not depend on, or leave, what was measured on this machine.
os.environ["CARRY_WISDOM"] = "none"
checkout.use()


def pytest_report_header(config: pytest.Config) -> str:
    try:
        import torch

        with_torch = f"PyTorch {torch.__version__}"
    except ImportError:
        with_torch = "no PyTorch: its tests are skipped"
    return f"carry: {os.environ.get('CARRY_LIBRARY', 'the library of the package')}, {with_torch}"


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)
