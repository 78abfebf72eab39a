"""Videos can be read back, and frames that cannot be written are refused."""

import subprocess
import sys
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import pytest
from PIL import Image, ImageSequence

from hocket.report.video import write_video


def ffmpeg(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = [imageio_ffmpeg.get_ffmpeg_exe(), *arguments]
    return subprocess.run(command, capture_output=True, check=False)


def read(path: Path, height: int, width: int) -> np.ndarray:
    """Read the frames of a video with another program."""
    if path.suffix == ".mp4":
        raw = ffmpeg("-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-").stdout
        return np.frombuffer(raw, np.uint8).reshape(-1, height, width, 3)
    with Image.open(path) as gif:
        return np.stack([np.asarray(f.convert("RGB")) for f in ImageSequence.Iterator(gif)])


def moving(num_frames: int, height: int, width: int) -> np.ndarray:
    """Make frames of a dark bar that moves down over a light background."""
    frames = np.full((num_frames, height, width, 3), 240, np.uint8)
    for t, frame in enumerate(frames):
        frame[4 * t : 4 * t + 4] = (200, 30, 30)
    return frames


@pytest.mark.parametrize("suffix", [".mp4", ".gif", ".GIF"])
def test_frames_are_read_back(tmp_path: Path, suffix: str) -> None:
    frames = moving(7, 48, 64)
    path = write_video(tmp_path / "new" / f"video{suffix}", frames, fps=20)
    seen = read(path, 48, 64)
    assert seen.shape == frames.shape
    assert abs(seen.astype(int) - frames).mean() < 4


def test_an_odd_size_is_made_even_for_mp4(tmp_path: Path) -> None:
    frames = moving(5, 33, 47)
    path = write_video(tmp_path / "video.mp4", frames, fps=10)
    assert b"48x34" in ffmpeg("-i", str(path)).stderr
    assert len(read(path, 34, 48)) == 5
    assert read(write_video(tmp_path / "video.gif", frames, fps=10), 33, 47).shape == frames.shape


def test_the_speed_and_the_format_are_what_browsers_play(tmp_path: Path) -> None:
    for name in ("video.mp4", "video.gif"):
        write_video(tmp_path / name, moving(6, 32, 32), fps=25)
    said = ffmpeg("-i", str(tmp_path / "video.mp4")).stderr.decode()
    assert all(word in said for word in ("Video: h264", "yuv420p", "25 fps"))
    with Image.open(tmp_path / "video.gif") as gif:
        assert gif.info["duration"] == 40 and gif.info["loop"] == 0


def test_a_single_frame(tmp_path: Path) -> None:
    for name in ("video.mp4", "video.gif"):
        path = write_video(tmp_path / name, moving(1, 32, 32))
        assert read(path, 32, 32).shape == (1, 32, 32, 3)


def test_what_ffmpeg_says_is_passed_on(tmp_path: Path) -> None:
    (tmp_path / "video.mp4").mkdir()
    with pytest.raises(OSError, match=r"ffmpeg could not write `.*video\.mp4`: .*directory"):
        write_video(tmp_path / "video.mp4", moving(2, 8, 8))


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"video\.avi`.* \.mp4 or \.gif"):
        write_video(tmp_path / "video.avi", moving(2, 8, 8))


def test_other_frames_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "video.gif"
    with pytest.raises(ValueError, match=r"float32 of shape \(2, 8, 8, 3\)"):
        write_video(path, moving(2, 8, 8).astype(np.float32))
    with pytest.raises(ValueError, match="at least one frame"):
        write_video(path, moving(0, 8, 8))
    with pytest.raises(ValueError, match="fps=0"):
        write_video(path, moving(2, 8, 8), fps=0)
    with pytest.raises(ValueError, match="at most 50 frames a second, not 60"):
        write_video(path, moving(2, 8, 8), fps=60)
    assert not path.exists()


@pytest.mark.parametrize(("name", "module"), [("a.mp4", "imageio_ffmpeg"), ("a.gif", "PIL")])
def test_without_the_package_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=r"pip install 'hocket\[video\]'"):
        write_video(tmp_path / name, moving(2, 8, 8))
