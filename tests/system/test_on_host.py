"""The CPU computes values that tracing needs at once, unless the user chose a device."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hocket.system.on_host import on_host


def test_tracing_computes_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(on_host(), nullcontext)  # everything is on the host in tests
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    with jax.default_device(jax.devices()[1]):
        assert isinstance(on_host(), nullcontext)  # the user has chosen a device
    with on_host():
        assert jnp.zeros(3).devices() == {jax.devices("cpu")[0]}

    def no_cpu(**_: Any) -> Any:
        raise RuntimeError("Unknown backend cpu")

    monkeypatch.setattr(jax, "local_devices", no_cpu)
    assert isinstance(on_host(), nullcontext)
