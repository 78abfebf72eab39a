"""A kept run as Python objects: its algorithm, state and policy."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax

from hocket.core.graph.trace import init_state
from hocket.core.program.algorithm import Algorithm, Policy
from hocket.core.program.describe import build
from hocket.envs import Env, HostEnv
from hocket.envs.play.evaluate import Evaluation, evaluate, evaluate_on_host
from hocket.errors import unknown
from hocket.runtime.executor import by_seed
from hocket.training.folder import checkpoints_of, find_run, read_config


@dataclass(frozen=True)
class Run:
    """One agent of a kept run, as it was at a checkpoint."""

    folder: Path
    config: dict[str, Any]
    algorithm: Any
    iteration: int
    state: Any = field(repr=False)
    """The algorithm's whole state. It has many arrays, so `repr` leaves it out."""
    notes: tuple[str, ...] = ()
    """Reasons why later checkpoints could not be used."""

    @property
    def env(self) -> Env | HostEnv:
        return self.algorithm.env

    @property
    def policy(self) -> Policy:
        """The greedy policy, compiled: `action, memory = run.policy(obs)`."""
        policy = self.algorithm.policy(self.state)
        return Policy(jax.jit(policy.act), policy.memory)

    def evaluate(self, episodes: int | None = None, seed: int = 0) -> Evaluation:
        """Play `episodes` whole episodes with the greedy policy, and return the results.

        By default, play as many as each evaluation during training did.
        """
        count = self.config["eval_episodes"] if episodes is None else episodes
        return Evaluator(self.algorithm, count, seed)(self.state)


def load(
    run: str | Path,
    *,
    agent: int = 0,
    checkpoint: int | Literal["latest", "best"] = "latest",
    algorithm: Algorithm | None = None,
) -> Run:
    """Load an agent of a run, given the run's folder or its name in `runs`.

        run = hocket.load("runs/first")
        action, memory = run.policy(obs)

    `agent` selects one of several seeds, counted from 0. Unless `algorithm` is given, it is built
    from the run's configuration. This imports the script that defines its class, so that script
    must train only under `if __name__ == "__main__"`.
    """
    runs = load_agents(run, checkpoint=checkpoint, algorithm=algorithm)
    if not 0 <= agent < len(runs):
        raise ValueError(f"{runs[0].folder} has agents 0 to {len(runs) - 1}, found agent={agent}.")
    return runs[agent]


def load_agents(
    run: str | Path,
    *,
    checkpoint: int | Literal["latest", "best"] = "latest",
    algorithm: Algorithm | None = None,
) -> list[Run]:
    """Load all agents of a run, one for each seed."""
    folder = find_run(Path(run))
    config = read_config(folder)
    algorithm = algorithm or build(config["algorithm"])
    assert algorithm is not None
    seeds = config["seeds"] if config["seeds"] > 1 else None
    specs = state_specs(algorithm, seeds)
    with closing(checkpoints_of(folder)) as checkpoints:
        which = {"latest": checkpoints.latest, "best": checkpoints.best}
        if isinstance(checkpoint, int):
            loaded = checkpoints.at(checkpoint, specs)
        elif checkpoint in which:
            loaded = which[checkpoint](specs)
        else:
            raise ValueError(unknown("checkpoint", checkpoint, [*which, "a number"]))
    return [
        Run(folder, config, algorithm, loaded.iteration, state, loaded.refused)
        for state in agents_of(loaded.state, seeds)
    ]


def agents_of(state: Any, seeds: int | None) -> list[Any]:
    """Split the state of a run into the states of its agents."""
    if seeds is None:
        return [state]
    return [jax.tree.map(lambda x, i=i: x[i], state) for i in range(seeds)]


class Evaluator:
    """Evaluates greedy policies, in one compiled program.

    If the environment runs on the host, only the policy is compiled, and a Python loop calls the
    policy and the environment.
    """

    def __init__(self, algorithm: Any, episodes: int, seed: int = 0) -> None:
        def play(state: Any, key: jax.Array) -> Evaluation:
            return evaluate(algorithm.env, algorithm.policy(state), key, episodes=episodes)

        @jax.jit
        def act(state: Any, obs: Any, memory: Any, keys: jax.Array) -> Any:
            return jax.vmap(algorithm.policy(state).act)(obs, memory, keys)

        def play_on_host(state: Any, key: jax.Array) -> Evaluation:
            return evaluate_on_host(
                algorithm.env, partial(act, state), algorithm.policy(state).memory, key,
                episodes=episodes,
            )  # fmt: skip

        # Fold in a constant, so that the episodes differ from those of training with this seed.
        self._key = jax.random.fold_in(jax.random.key(seed), 1)
        self._play = play_on_host if isinstance(algorithm.env, HostEnv) else jax.jit(play)

    def __call__(self, state: Any) -> Evaluation:
        return jax.device_get(self._play(jax.device_put(state, jax.local_devices()[0]), self._key))

    def means(self, state: Any, seeds: int | None) -> list[float]:
        """Return each agent's mean return, as it would be if that agent were evaluated alone."""
        return [float(self(agent).returns.mean()) for agent in agents_of(state, seeds)]


def state_specs(algorithm: Algorithm, seeds: int | None) -> Any:
    """Return the structure, shapes and dtypes of an algorithm's state."""
    init = partial(init_state, algorithm, num_envs=algorithm.num_envs)
    return by_seed(jax.eval_shape(init, jax.random.key(0)), seeds)
