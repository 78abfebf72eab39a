"""The kinds of devices, by the names that JAX has for platforms."""

from __future__ import annotations

import pytest

from hocket.system.platforms import kind_of


@pytest.mark.parametrize(
    ("platform", "kind"), [("cuda", "gpu"), ("rocm", "gpu"), ("cpu", "cpu"), ("tpu", "tpu")]
)
def test_a_platform_is_a_kind_of_device(platform: str, kind: str) -> None:
    assert kind_of(platform) == kind
