"""Conformance kits: tests for what users write.

    same_numbers.py  `check_algorithm`, `check_strategy`: the contract, and the law of same numbers
    launcher.py      `check_launcher`: what is started is heard and ended, and computes the same
    transport/       `check_transport`: messages arrive whole and in order, and every wait ends
    average.py       `check_average`: the means of all replicas, and no wait without an end
    replica.py       one replica that averages as `average.py` tells it, in a process of its own
    logger.py        `check_logger`: no row is lost, also where a run is killed and resumed
    seeded.py        `Seeded`: a crew in one thread, in an order that a seed decides

(`check_env` is where environments are, in `hocket.envs`.)
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
