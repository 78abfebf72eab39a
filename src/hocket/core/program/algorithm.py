"""The algorithm that a user writes, and the policy that it trains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Policy:
    """The agent's policy for one observation: a pure function that holds its own parameters.

    memory = policy.memory
    action, memory = policy(obs, memory, key)
    """

    act: Callable[[Any, Any, Any], tuple[Any, Any]]
    memory: Any = None
    """The recurrent state at the start of an episode; None for a policy without recurrence."""

    def __call__(self, obs: Any, memory: Any = None, key: Any = None) -> tuple[Any, Any]:
        return self.act(obs, self.memory if memory is None else memory, key)


class Algorithm(Protocol):
    """A training algorithm: three pure functions, usually the methods of a frozen dataclass.

    The contract: sizes are read from arrays, never from a configuration; one key per environment
    for whatever happens per environment; a mean over environments that feeds the parameters goes
    through `averaged`; running statistics are state; metrics are a dict of arrays. `step` says what
    is computed, and knows no device, process, logger or file.
    """

    @property
    def env_steps(self) -> int:
        """The budget of environment steps, for schedules and for `run`."""
        ...

    @property
    def num_envs(self) -> int:
        """The default number of environments."""
        ...

    def init(self, key: Any, num_envs: int, /) -> Any:
        """Return the first state, made from one key."""

    def step(self, state: Any, /) -> tuple[Any, dict[str, Any]]:
        """Run an iteration. Return the new state, of the same structure and dtypes, and metrics."""
        ...

    def policy(self, state: Any, /, explore: bool = False) -> Policy:
        """Return the policy of a state. It takes the best action, or explores if `explore`."""
        ...
