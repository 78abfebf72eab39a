"""Conformance kits: tests for algorithms and extensions that users write.

    same_numbers.py  `check_algorithm`, `check_strategy`: the contract, and the law of same numbers
    launcher.py      `check_launcher`: programs start, report their address and end; runs agree
    transport/       `check_transport`: messages arrive whole and in order, and every wait ends
    average.py       `check_average`: all replicas get the same mean, and every wait ends
    replica.py       one replica for `average.py`, in a process of its own
    logger.py        `check_logger`: no row is lost, even if a run is killed and resumed
    seeded.py        `Seeded`: runs the instances of a plan in one thread, in a seeded order

(`check_env` is in `hocket.envs`.)
"""

from hocket.testing.average import AverageCheck, check_average
from hocket.testing.launcher import LauncherCheck, check_launcher
from hocket.testing.logger import LoggerCheck, check_logger
from hocket.testing.same_numbers import (
    SMALL,
    Check,
    StrategyCheck,
    check_algorithm,
    check_strategy,
    difference,
)
from hocket.testing.transport import check_transport

__all__ = [
    "SMALL",
    "AverageCheck",
    "Check",
    "LauncherCheck",
    "LoggerCheck",
    "StrategyCheck",
    "check_algorithm",
    "check_average",
    "check_launcher",
    "check_logger",
    "check_strategy",
    "check_transport",
    "difference",
]
