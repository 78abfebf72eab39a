"""Settles how jax runs in the tests, and in what they start, before jax is imported."""

import os
import signal
from pathlib import Path

# No FMA: a fused multiply-add rounds once where two programs round twice, and the law of same
# numbers is tested bit for bit. Four devices, so that plans have somewhere to put things.
XLA_FLAGS = ("--xla_force_host_platform_device_count=4", "--xla_cpu_max_isa=AVX")

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hocket" / "tests"

os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *XLA_FLAGS]).strip()
os.environ.update(
    JAX_PLATFORMS="cpu",
    JAX_NUMPY_RANK_PROMOTION="raise",
    # Most of a test's time is compilation: every program is kept for the next run.
    JAX_COMPILATION_CACHE_DIR=str(CACHE),
    JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
    JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES="-1",
)

# A job in the background ignores Ctrl-C, and so does what it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest  # noqa: E402

from tests.front import Hocket  # noqa: E402


@pytest.fixture
def hocket(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Hocket:
    """The command line, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return Hocket(monkeypatch, capsys)
