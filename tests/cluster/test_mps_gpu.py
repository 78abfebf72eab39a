"""Slices on a real GPU, if there is one. Without pytest: `python tests/cluster/gpu_checks.py`"""

from __future__ import annotations

import pytest

from tests.cluster.gpu_checks import CHECKS, run, unavailable

WHY_NOT = unavailable()


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
@pytest.mark.parametrize("name", CHECKS)
def test_on_a_gpu(name: str) -> None:
    code, said = run(name)
    assert code == 0, said
