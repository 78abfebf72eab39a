"""`hocket algorithms`, `envs`, `strategies` and `devices`: the commands that list things."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import tyro

from hocket.algorithms import ALGORITHMS
from hocket.cli.look import leave_memory
from hocket.cli.main import COMMANDS
from hocket.envs import Discrete, Env, make, names
from hocket.strategies import options_text, strategies


def algorithms_command(arguments: list[str]) -> None:
    """List the algorithms."""
    _only_help("algorithms", arguments)
    for name, cls in ALGORITHMS.items():
        print(f"{name:<16}{_first_line(cls)}")
    print("\nyour own: hocket train path/to/file.py:Name, or package.module:Name")


def envs_command(arguments: list[str]) -> None:
    """List the environments."""
    _only_help("envs", arguments)
    known = names()
    spaces = {name: "" if name.startswith("gymnax:") else _spaces(make(name)) for name in known}
    width = 2 + max(len(name) for name, about in spaces.items() if about)
    for name, about in spaces.items():
        print(f"{name:<{width}}{about}".rstrip())
    if not any(name.startswith("gymnax:") for name in known):
        print("gymnax:NAME      an environment of gymnax, after: pip install 'hocket[gymnax]'")
    print("playground:NAME  an environment of MuJoCo Playground, such as CartpoleBalance")
    print("gymnasium:NAME   an environment of Gymnasium, Atari included")
    print("envpool:NAME     an environment of EnvPool")
    print("\nwith options: --env CartPole-v1:gravity=1.6,max_steps=200")
    print("your own:     --env path/to/file.py:Env, or package.module:Env")


def strategies_command(arguments: list[str]) -> None:
    """List the strategies."""
    _only_help("strategies", arguments)
    for name, configure in strategies().items():
        print(f"{name:<20}{_first_line(configure)}\n{'':<20}options: {options_text(configure)}")
    print("\nwith options: --distribute actor_learner:actors=4,lag=1 --launch processes")
    print("your own:     --distribute path/to/file.py:name, decorated with @hocket.strategy")


@dataclass(frozen=True)
class Devices:
    """List the devices of this machine or of a cluster, and how each can be cut into slices.

    If a GPU has NVIDIA's MPS, this starts MPS to see if it works, and then stops it.
    """

    json: bool = False
    """Print JSON, for programs."""
    cluster: str | None = None
    """The cluster whose nodes to list: `hosts:FILE` for machines that are reached by ssh, `ray`
    for a Ray cluster, or `loopback:N` for N nodes on this machine. By default this machine is
    listed."""
    check: bool = False
    """With --cluster: try what usually goes wrong before the first run. That is the way between any
    two nodes, versions, clocks and free memory. The rates are kept for `hocket plan`."""


def devices_command(arguments: list[str]) -> None:
    """List the devices, and how each can be cut into slices."""
    command = tyro.cli(Devices, args=arguments, prog="hocket devices")
    if command.check and command.cluster is None:
        raise ValueError("--check tries the nodes of a cluster: name it with --cluster.")
    if command.cluster is not None:
        from hocket.cli.nodes import list_nodes

        list_nodes(command.cluster, check=command.check, json=command.json)
        return
    from hocket.cluster.survey import as_text, survey

    leave_memory()
    machine = survey()
    print(json.dumps(machine, indent=2) if command.json else as_text(machine))
    if not command.json:
        print("\nto use slices: --distribute sliced:slices=2, with cut=NAME for one of these ways")


def _only_help(command: str, arguments: list[str]) -> None:
    """Parse the arguments of a command that has no flags: allow `--help`, and refuse all others."""
    about = COMMANDS[command][1].capitalize() + "."
    tyro.cli(lambda: None, args=arguments, prog=f"hocket {command}", description=about)


def _spaces(env: Env) -> str:
    space = env.action_space
    acts = f"one of {space.n}" if isinstance(space, Discrete) else _shape(space.spec())
    return f"observes {_shape(env.observation_space.spec())}, acts {acts}"


def _shape(spec: Any) -> str:
    return f"{spec.dtype}{list(spec.shape)}"


def _first_line(thing: Any) -> str:
    return (thing.__doc__ or "").strip().partition("\n")[0]
