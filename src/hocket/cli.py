"""The command line: `hocket train`, `hocket plan`, `hocket graph`."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Annotated, Any

import tyro

from hocket import algorithms, make
from hocket.errors import unknown
from hocket.report.display import Display
from hocket.run import plan, run

ALGORITHMS = {
    "ppo": algorithms.PPO,
    "recurrent-ppo": algorithms.RecurrentPPO,
    "dqn": algorithms.DQN,
}


@dataclass(frozen=True)
class What:
    """What to train, and where."""

    algorithm: tyro.conf.Positional[str]
    """ppo, recurrent-ppo or dqn."""
    env: str = "CartPole-v1"
    """The environment, by name."""
    num_envs: int | None = None
    """How many environments; by default the algorithm's choice."""
    env_steps: int | None = None
    """Environment steps in all; by default the algorithm's choice."""
    distribute: str = "anakin"
    """The strategy: where it runs."""

    def build(self) -> Any:
        if self.algorithm not in ALGORITHMS:
            raise ValueError(unknown("algorithm", self.algorithm, ALGORITHMS))
        made = ALGORITHMS[self.algorithm](env=make(self.env))
        return made if self.env_steps is None else replace(made, env_steps=self.env_steps)


@dataclass(frozen=True)
class Train(What):
    """Train an agent and say what it learned."""

    seed: int = 0
    """The same seed gives the same agent."""

    def __call__(self) -> None:
        algorithm = self.build()
        title = f"{self.algorithm} on {self.env}"
        with Display(title, algorithm.env_steps) as display:
            result = run(
                algorithm, seed=self.seed, num_envs=self.num_envs, distribute=self.distribute,
                watch=lambda r: display.update(r.env_steps, r.return_mean, r.timings.run),
            )  # fmt: skip
        seconds = result.timings
        print(
            f"return {result.return_mean:.1f} (last 100 episodes) after {result.env_steps:,} steps:"
            f" {seconds.run:.1f} s running, {seconds.trace + seconds.compile:.1f} s compiling"
        )


@dataclass(frozen=True)
class ShowPlan(What):
    """Print who would run where and what would cross. Starts nothing."""

    def __call__(self) -> None:
        print(plan(self.build(), num_envs=self.num_envs, distribute=self.distribute))


@dataclass(frozen=True)
class ShowGraph(What):
    """Print the fragments of an algorithm's step and what flows between them."""

    def __call__(self) -> None:
        print(plan(self.build(), num_envs=self.num_envs).graph)


Command = (
    Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[ShowPlan, tyro.conf.subcommand("plan")]
    | Annotated[ShowGraph, tyro.conf.subcommand("graph")]
)


def main() -> None:
    """Run one command; a user's mistake is a sentence, not a traceback."""
    command: Any = tyro.cli(
        Command, prog="hocket", description="Train reinforcement-learning agents."
    )
    try:
        command()
    except (ValueError, ImportError) as error:
        print(f"hocket: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
