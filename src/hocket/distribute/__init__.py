"""Strategies: where the fragments of a graph run. One strategy, one file."""

from hocket.distribute.strategy import Strategy, resolve, strategies, strategy

__all__ = ["Strategy", "resolve", "strategies", "strategy"]
