"""What a user writes: the algorithm, and the policy it trains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Policy:
    """The agent's pi, for one observation: a pure function with everything it needs inside.

    memory = policy.memory
    action, memory = policy(obs, memory, key)
    """

    act: Callable[[Any, Any, Any], tuple[Any, Any]]
    memory: Any = None
    """The memory at the beginning of an episode; None for a policy without one."""

    def __call__(self, obs: Any, memory: Any = None, key: Any = None) -> tuple[Any, Any]:
        return self.act(obs, self.memory if memory is None else memory, key)


class Algorithm(Protocol):
    """A training algorithm: three pure functions, usually of a frozen dataclass.

    The contract: sizes are read from arrays, never from a configuration; one key per environment
    for whatever happens per environment; a mean over environments that feeds the parameters goes
    through `averaged`; running statistics are state; metrics are a dict of arrays. `step` says what
    is computed, and knows no device, process, logger or file.
    """

    @property
    def env_steps(self) -> int:
        """The budget of environment steps: schedules need it, and `run` reads it."""
        ...

    @property
    def num_envs(self) -> int:
        """How many environments to run where the user does not say."""
        ...

    def init(self, key: Any, num_envs: int, /) -> Any:
        """The first state, from one key."""

    def step(self, state: Any, /) -> tuple[Any, dict[str, Any]]:
        """One iteration: the new state, of the same structure and dtypes, and metrics."""
        ...

    def policy(self, state: Any, /, explore: bool = False) -> Policy:
        """The policy in this state: the best action, or with `explore` as in training."""
        ...
