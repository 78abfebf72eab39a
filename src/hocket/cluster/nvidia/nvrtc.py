"""A compiler for CUDA C++ at run time: NVRTC, which comes with `jax[cuda]` and with CUDA."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterator
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_void_p
from functools import cache
from pathlib import Path

_STRINGS = POINTER(c_char_p)
_SIGNATURES: dict[str, list[object]] = {
    "nvrtcVersion": [POINTER(c_int), POINTER(c_int)],
    "nvrtcCreateProgram": [POINTER(c_void_p), c_char_p, c_char_p, c_int, _STRINGS, _STRINGS],
    "nvrtcCompileProgram": [c_void_p, c_int, _STRINGS],
    "nvrtcGetProgramLogSize": [c_void_p, POINTER(c_size_t)],
    "nvrtcGetProgramLog": [c_void_p, c_char_p],
    "nvrtcGetCUBINSize": [c_void_p, POINTER(c_size_t)],
    "nvrtcGetCUBIN": [c_void_p, c_char_p],
    "nvrtcDestroyProgram": [POINTER(c_void_p)],
}


class NoCompiler(RuntimeError):
    """NVRTC is missing or cannot compile a source; the message says which."""


def cubin(source: Path, major: int, minor: int) -> bytes:
    """Compile a file of CUDA C++ to machine code for GPUs of this compute capability."""
    return _compiled(source, source.stat().st_mtime_ns, f"sm_{major}{minor}")


def find_nvrtc() -> ctypes.CDLL:
    """Load NVRTC from NVIDIA's Python packages or from an installed CUDA."""
    tried = []
    for path in _candidates():
        try:
            return _typed(ctypes.CDLL(path))
        except (OSError, AttributeError) as error:
            tried.append(f"{path}: {error}")
    reasons = "; ".join(tried[:3]) or "nothing to try"
    raise NoCompiler(f"NVRTC was not found; `pip install 'jax[cuda13]'` installs it ({reasons})")


def _candidates() -> Iterator[str]:
    nvidia = importlib.util.find_spec("nvidia")
    for folder in map(Path, (nvidia and nvidia.submodule_search_locations) or ()):
        for inside in ("cu13/lib", "cu12/lib", "cuda_nvrtc/lib", "cuda_nvrtc/lib64"):
            yield from _libraries(folder / inside)
    # Then try bare names: jax may have loaded the library, or the system's loader may find it.
    yield from ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")
    for root in sorted(Path("/usr/local").glob("cuda*"), reverse=True):
        yield from _libraries(root / "lib64")


def _libraries(folder: Path) -> Iterator[str]:
    """Return the paths of NVRTC's libraries in a folder, newest first."""
    paths = [p for p in folder.glob("libnvrtc.so*") if "alt" not in p.name]
    yield from map(str, sorted(paths, reverse=True))


def _typed(loaded: ctypes.CDLL) -> ctypes.CDLL:
    for name, arguments in _SIGNATURES.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = c_int, arguments
    loaded.nvrtcGetErrorString.restype = c_char_p
    return loaded


@cache
def _compiled(source: Path, _changed: int, arch: str) -> bytes:
    nvrtc, program = find_nvrtc(), c_void_p()
    text = source.read_text().encode()
    _check(
        nvrtc, nvrtc.nvrtcCreateProgram(byref(program), text, source.name.encode(), 0, None, None)
    )
    try:
        # A fused multiply-add rounds once where the host rounds twice, so results would differ.
        options = [f"--gpu-architecture={arch}", "--std=c++17", "--fmad=false"]
        array = (c_char_p * len(options))(*map(str.encode, options))
        if error := nvrtc.nvrtcCompileProgram(program, len(options), array):
            why = nvrtc.nvrtcGetErrorString(error).decode()
            raise NoCompiler(
                f"NVRTC cannot compile {source.name} for {arch}: {why}\n" + _log(nvrtc, program)
            )
        size = c_size_t()
        _check(nvrtc, nvrtc.nvrtcGetCUBINSize(program, byref(size)))
        code = ctypes.create_string_buffer(size.value)
        _check(nvrtc, nvrtc.nvrtcGetCUBIN(program, code))
        return code.raw
    finally:
        nvrtc.nvrtcDestroyProgram(byref(program))


def _log(nvrtc: ctypes.CDLL, program: c_void_p) -> str:
    size = c_size_t()
    _check(nvrtc, nvrtc.nvrtcGetProgramLogSize(program, byref(size)))
    text = ctypes.create_string_buffer(size.value)
    _check(nvrtc, nvrtc.nvrtcGetProgramLog(program, text))
    return text.value.decode(errors="replace")


def _check(nvrtc: ctypes.CDLL, error: int) -> None:
    if error:
        raise NoCompiler(f"NVRTC failed: {nvrtc.nvrtcGetErrorString(error).decode()}")
