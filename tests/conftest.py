"""Settles how jax runs in the tests, and in what they start, before jax is imported."""

import os
import signal
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

# No FMA: a fused multiply-add rounds once where two programs round twice, and the law of same
# numbers is tested bit for bit. Four devices, so that plans have somewhere to put things.
XLA_FLAGS = ("--xla_force_host_platform_device_count=4", "--xla_cpu_max_isa=AVX")
# Most of a test's time is compilation, which takes a fifth of it with both of these, the second of
# which later versions of XLA do not know. Runs that learn for a while want fast programs.
QUICKLY = ["--xla_backend_optimization_level=0"]
if metadata.version("jaxlib").startswith("0.10."):
    QUICKLY.append("--xla_cpu_use_fusion_emitters=false")

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hocket" / "tests"

os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *XLA_FLAGS]).strip()
os.environ.update(
    JAX_PLATFORMS="cpu",
    JAX_NUMPY_RANK_PROMOTION="raise",
    # Every program is kept for the next run.
    JAX_COMPILATION_CACHE_DIR=str(CACHE),
    JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
    JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES="-1",
)

# A job in the background ignores Ctrl-C, and so does what it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

import jax  # noqa: E402
import pytest  # noqa: E402

from tests.front import Hocket  # noqa: E402


def pytest_configure(config: pytest.Config) -> None:
    """Before the first test asks XLA for anything."""
    if config.getoption("markexpr") == "not slow":
        os.environ["XLA_FLAGS"] = " ".join([os.environ["XLA_FLAGS"], *QUICKLY])


@pytest.fixture(scope="module", autouse=True)
def programs_of_one_module() -> Iterator[None]:
    """Those of all modules would be gigabytes; what another needs again is in the cache."""
    yield
    jax.clear_caches()


@pytest.fixture
def hocket(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Hocket:
    """The command line, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return Hocket(monkeypatch, capsys)
