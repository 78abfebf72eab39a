"""Files of events for TensorBoard, in the folder of each seed (extra: `hocket[tensorboard]`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hocket.report.loggers import About, Numbers


class TensorBoard:
    """Writes a scalar for each number of a row: `tensorboard --logdir runs` shows them."""

    def __init__(self) -> None:
        self._writer = _import_writer()
        self._boards: dict[int, Any] = {}

    def begin(self, about: About) -> None:
        # Tells TensorBoard to forget the rows of a run that was lost.
        after = about.last_step + 1 if about.last_step else None
        for seed, folder in about.folders.items():
            # The files of a folder need names of their own, and these have only the second in them.
            suffix = f".{about.last_step}"
            self._boards[seed] = self._writer(str(folder), purge_step=after, filename_suffix=suffix)

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
