"""The expectations of tests that run on machines without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

NO_DRIVER = r"CUDA driver|cuInit"
"""A pattern for the reasons that a machine without CUDA gives."""
needs_no_gpu = pytest.mark.skipif(
    any(Path("/dev").glob("nvidia[0-9]*")), reason="there is a GPU, so there is no reason to give"
)
