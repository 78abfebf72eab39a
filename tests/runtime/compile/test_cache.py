"""The persistent cache of compiled programs lies in the user's cache directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import jax, hocket
from tests.toys import Toy
hocket.run(Toy(), iterations=1)
print(jax.config.values["jax_compilation_cache_dir"])
"""


def test_compiled_programs_are_kept_in_the_users_cache(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    environment["XDG_CACHE_HOME"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True,
        timeout=120, check=True, cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert done.stdout.strip() == str(tmp_path / "hocket" / "xla")
    assert list((tmp_path / "hocket" / "xla").iterdir())
