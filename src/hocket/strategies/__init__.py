"""Strategies: where the fragments of a graph run. One strategy, one file."""

from hocket.strategies.strategy import Strategy, options_text, resolve, strategies, strategy

__all__ = ["Strategy", "options_text", "resolve", "strategies", "strategy"]
