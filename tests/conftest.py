"""Configures JAX for the tests and the processes they start, before JAX is imported."""

import ctypes
import gc
import os
import signal
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

# No FMA: a fused multiply-add rounds once where two programs round twice, and the law of same
# numbers is tested bit for bit. Four devices, so that plans have somewhere to put things.
XLA_FLAGS = ("--xla_force_host_platform_device_count=4", "--xla_cpu_max_isa=AVX")
# Most of a test's time is compilation, and these two flags make that five times faster. Later
# versions of XLA do not know the second one. Slow tests do without: they need fast programs.
QUICKLY = ["--xla_backend_optimization_level=0"]
if metadata.version("jaxlib").startswith("0.10."):
    QUICKLY.append("--xla_cpu_use_fusion_emitters=false")

# Compiled programs are dropped after a test if the process uses more bytes than this.
ROOMY = 2_200_000_000
# Slow files whose tests share no programs. They start first, each test on any free worker.
FIRST = {
    "test_analysis_is_sound.py", "test_examples.py", "test_failures.py", "test_pages.py",
    "test_interruptions.py",
    "test_native.py", "test_native_datagram.py", "test_process.py", "test_resume.py",
    "test_service_native.py",
}  # fmt: skip

# Fixtures that start servers of others. Tests with them are slow, and run on demand.
ON_DEMAND = {"ssh", "ray_cluster"}

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hocket" / "tests"

os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *XLA_FLAGS]).strip()
os.environ.update(
    JAX_PLATFORMS="cpu",
    JAX_NUMPY_RANK_PROMOTION="raise",
    # Cache every program for the next run.
    JAX_COMPILATION_CACHE_DIR=str(CACHE),
    JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
    JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES="-1",
)

# A shell's background jobs ignore Ctrl-C, and so would the processes that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

import jax  # noqa: E402
import pytest  # noqa: E402

from hocket.runtime.launch.launchers.processes import Processes  # noqa: E402
from hocket.system.garbage import keep_imports  # noqa: E402
from tests.faults import left_behind  # noqa: E402
from tests.forked import ForkedMember  # noqa: E402
from tests.front import Hocket  # noqa: E402


def pytest_configure(config: pytest.Config) -> None:
    """Set the flags for fast compilation before the first test starts XLA."""
    if config.getoption("markexpr") == "not slow":
        os.environ["XLA_FLAGS"] = " ".join([os.environ["XLA_FLAGS"], *QUICKLY])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start slow files first, and keep the tests of any other file on one worker, which compiles
    their programs once. (Needs `--dist loadgroup --no-loadscope-reorder`.) Tests that need the
    servers of others are slow.
    """
    grouped = {item for item in items if item.get_closest_marker("xdist_group")}
    for item in items:
        if isinstance(item, pytest.Function) and ON_DEMAND.intersection(item.fixturenames):
            item.add_marker(pytest.mark.slow)
        if item not in grouped and item.path.name not in FIRST:
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
    items.sort(key=lambda item: 0 if item.path.name in FIRST else 1 if item in grouped else 2)


def pytest_collection_finish() -> None:
    """Exempt all imported modules from garbage collection, and collect less often."""
    gc.collect()
    keep_imports()


@pytest.fixture(autouse=True)
def room_in_memory() -> Iterator[None]:
    """Drop compiled programs if they take too much memory; the cache on disk still has them."""
    yield
    if resident() > ROOMY:
        jax.clear_caches()
        gc.collect()
        give_back()


def resident() -> int:
    """Return how many bytes of memory this process uses."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def give_back() -> None:
    """Return free memory to the system; otherwise half of a worker's memory is unused."""
    if malloc_trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # glibc's
        malloc_trim(0)


@pytest.fixture
def hocket(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Hocket:
    """Return a caller of the command line, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return Hocket(monkeypatch, capsys)


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start workers sooner, as forks, where a test is about a run and not about its processes."""
    monkeypatch.setattr(Processes, "start", lambda _, seat, command: ForkedMember(command))


@pytest.fixture
def nothing_is_left() -> Iterator[None]:
    """Check that a test leaves no process and no shared memory behind."""
    before = left_behind()
    yield
    assert left_behind() <= before


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder with a short path, because that of a Unix socket has room for 107 bytes."""
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)
