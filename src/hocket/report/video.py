"""Video files from frames (needs `pip install 'hocket[video]'`)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np

GIF_MAX_FPS = 50
"""The highest frame rate of a GIF. A frame lasts a whole number of hundredths of a second, and
viewers do not honor a duration of one."""


def write_video(path: Path | str, frames: np.ndarray, fps: float = 30) -> Path:
    """Write `frames`, uint8 `[T, H, W, 3]`, to a file that ends in `.mp4` or `.gif`.

    An MP4 is H.264, which browsers play. A GIF loops forever, shows each frame for a whole number
    of hundredths of a second, and merges equal frames into one longer frame.
    """
    path = Path(path)
    check_name(path)
    _check(frames, fps)
    path.parent.mkdir(parents=True, exist_ok=True)
    write = _write_mp4 if path.suffix.lower() == ".mp4" else _write_gif
    write(path, frames, fps)
    return path


def check_name(path: Path) -> None:
    """Raise an error unless the name ends in `.mp4` or `.gif`. Call this before recording."""
    if path.suffix.lower() not in (".mp4", ".gif"):
        raise ValueError(
            f"a video cannot be written to `{path}`. Use a name that ends in .mp4 or .gif."
        )


def _check(frames: np.ndarray, fps: float) -> None:
    if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[-1] != 3 or not frames.size:
        raise ValueError(
            f"frames are {frames.dtype} of shape {frames.shape}. Give uint8 of shape "
            "(T, H, W, 3), with at least one frame."
        )
    if fps <= 0:
        raise ValueError(f"fps={fps} shows nothing. Use a positive number, such as 30.")


def _write_mp4(path: Path, frames: np.ndarray, fps: float) -> None:
    try:
        import imageio_ffmpeg
    except ImportError as error:
        raise _missing("imageio-ffmpeg", path) from error
    # Browsers only play yuv420p, which halves the resolution of colors and so needs even sizes.
    height, width = frames.shape[1:3]
    frames = np.pad(frames, ((0, 0), (0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    size = f"{frames.shape[2]}x{frames.shape[1]}"
    raw = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", size, "-r", str(fps), "-i", "-"]
    coded = ["-c:v", "libx264", "-pix_fmt", "yuv420p", "-crf", "18", "-movflags", "+faststart"]
    # Start ffmpeg here: imageio would fork, which may hang in a process where JAX has threads.
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-loglevel", "error", *raw, *coded, str(path)]
    done = subprocess.run(command, input=frames.reshape(-1).data, capture_output=True, check=False)
    if done.returncode:
        raise OSError(f"ffmpeg could not write `{path}`: {done.stderr.decode().strip()}")


def _write_gif(path: Path, frames: np.ndarray, fps: float) -> None:
    if fps > GIF_MAX_FPS:
        raise ValueError(
            f"a GIF shows at most {GIF_MAX_FPS} frames a second, not {fps}. Use "
            f"fps={GIF_MAX_FPS}, or write an .mp4."
        )
    try:
        from PIL import Image
    except ImportError as error:
        raise _missing("pillow", path) from error
    images = [Image.fromarray(frame) for frame in frames]
    hundredths = max(2, round(100 / fps))
    images[0].save(path, save_all=True, append_images=images[1:], duration=10 * hundredths, loop=0)


def _missing(packages: str, path: Path) -> ImportError:
    return ImportError(
        f"writing a {path.suffix} needs {packages}. Run: pip install 'hocket[video]'"
    )
