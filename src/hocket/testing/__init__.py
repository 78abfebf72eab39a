"""Conformance kits: tests for what users write.

    same_numbers.py  `check_algorithm`, `check_strategy`: the contract, and the law of same numbers
    logger.py        `check_logger`: no row is lost, also where a run is killed and resumed

(`check_env` is where environments are, in `hocket.envs`.)
"""

from hocket.testing.logger import LoggerCheck, check_logger
from hocket.testing.same_numbers import (
    SMALL,
    Check,
    StrategyCheck,
    check_algorithm,
    check_strategy,
    difference,
)

__all__ = [
    "SMALL",
    "Check",
    "LoggerCheck",
    "StrategyCheck",
    "check_algorithm",
    "check_logger",
    "check_strategy",
    "difference",
]
