"""Event files for TensorBoard, in the folder of each seed (extra: `hocket[tensorboard]`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hocket.report.loggers import About, Numbers


class TensorBoard:
    """Writes a scalar for each number of a row. To see them: `tensorboard --logdir runs`."""

    def __init__(self) -> None:
        self._writer = _import_writer()
        self._boards: dict[int, Any] = {}

    def begin(self, about: About) -> None:
        # Tells TensorBoard to drop the rows after the checkpoint from which the run resumes.
        purge = about.last_step + 1 if about.last_step else None
        # Without a suffix, two files made in the same second would have the same name.
        suffix = f".{about.last_step}"
        for seed, folder in about.folders.items():
            self._boards[seed] = self._writer(str(folder), purge_step=purge, filename_suffix=suffix)

    def row(self, step: int, numbers: Numbers, seed: int) -> None:
        board = self._boards[seed]
        for name, value in numbers.items():
            if name != "iteration" and value is not None:
                board.add_scalar(name, value, step)
        board.flush()

    def media(self, path: Path) -> None:
        next(iter(self._boards.values())).add_text("files", str(path))

    def end(self, summary: Mapping[str, Any]) -> None:
        for board in self._boards.values():
            board.close()


LOGGER = TensorBoard


def _import_writer() -> Any:
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise ImportError(
            "the logger `tensorboard` needs the package tensorboardX. Run: "
            "pip install 'hocket[tensorboard]'"
        ) from error
    return SummaryWriter
