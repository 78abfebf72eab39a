"""The compiler for kernels: it compiles for GPUs that are not there, and says if it is missing."""

from __future__ import annotations

import pytest

from hocket.cluster.nvidia import nvrtc
from hocket.cluster.nvidia.nvrtc import NoCompiler, cubin
from hocket.system.native import KERNEL


def test_the_kernel_compiles_for_gpus() -> None:
    try:
        nvrtc.find_nvrtc()
    except NoCompiler as error:
        pytest.skip(str(error))
    for capability in ((8, 0), (9, 0)):
        assert cubin(KERNEL, *capability).startswith(b"\x7fELF")


def test_without_a_compiler_the_reason_says_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "_candidates", lambda: iter(["nowhere/libnvrtc.so.13"]))
    with pytest.raises(NoCompiler, match=r"NVRTC was not found.*jax\[cuda13\].*nowhere"):
        nvrtc.find_nvrtc()
