"""Example of a logger: a table with a line for every number of a run.

hocket train ppo --loggers examples/own_logger.py:Table
hocket train ppo --loggers tensorboard examples/own_logger.py:Table:file=all.csv
"""

import csv

from hocket.report.loggers import About, Numbers
from hocket.testing import check_logger


class Table:
    """Appends lines of step, seed, name and value to a file in the run's folder."""

    def __init__(self, file="numbers.csv"):
        self.file = file

    def begin(self, about: About):
        path = about.folder / self.file
        before = csv.reader(path.read_text().splitlines() if path.exists() else [])
        fresh = path.with_suffix(".new")
        self.out = fresh.open("w", newline="")
        # A resumed run sends the rows after its checkpoint again, so those lines are dropped.
        self.write([line for line in before if int(line[0]) <= about.last_step])
        fresh.replace(path)  # atomic, so a kill right here loses no line

    def row(self, step: int, numbers: Numbers, seed: int):
        self.write([(step, seed, name, value) for name, value in numbers.items()])

    def write(self, lines):
        csv.writer(self.out).writerows(lines)
        self.out.flush()

    def media(self, path):
        """Do nothing: the table has only numbers."""

    def end(self, summary):
        self.out.close()


if __name__ == "__main__":
    print(check_logger(Table))  # tries whole, resumed and killed runs
