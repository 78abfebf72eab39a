"""Host environments inside programs: the law of same numbers, snapshots, and failures."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.envs import gymnasium_toys
from tests.forked import quick
from tests.front import Hocket
from tests.host_toys import LiveWalk, Walk

import hocket as library
from hocket import PlanError, Policy, fragment, make, trace
from hocket.algorithms import DQN, PPO
from hocket.cluster import Cluster
from hocket.core.graph.host_calls import hosts
from hocket.core.graph.trace import Graph
from hocket.envs import HostEnvError, HostStep, init_actor, unroll
from hocket.runtime.executor import Executor, advance
from hocket.runtime.host_calls.calls import PREFIX
from hocket.runtime.launch.watch import InstanceError
from hocket.strategies import resolve
from hocket.testing import difference
from hocket.training.loop import make_executor

assert gymnasium_toys  # it registers them

WALK: Any = Walk()
NUM_ENVS, ITERATIONS, TOLERANCE = 8, 4, 1e-5
SMALL: dict[str, Any] = {
    "ppo": PPO(env=WALK, num_envs=8, length=8, epochs=2, minibatches=2, hidden=(16,)),
    "dqn": DQN(env=WALK, num_envs=8, length=4, capacity=512, min_size=64, batch_size=32,
               hidden=(16,)),
}  # fmt: skip
CALLBACK = "anakin:callback=true"
ONE_THREAD = "sebulba:lag=0,actors=1,threads=1"
TWO_THREADS = "sebulba:lag=0,actors=1,threads=2"
STRATEGIES = (
    ONE_THREAD, TWO_THREADS, "actor_learner", "central_inference:parts=1",
    "central_inference:parts=2", "data_parallel",
)  # fmt: skip
APART = {("ppo", TWO_THREADS), ("dqn", "central_inference:parts=2")}
CASES = [
    # In a group, so that a single worker of pytest computes the reference.
    pytest.param(name, strategy, launch, marks=pytest.mark.xdist_group(f"hosted {name}"))
    for name in SMALL
    for strategy in STRATEGIES
    for launch in ("threads", "processes")
    if launch == "threads" or (name, strategy) in APART
]


@cache
def graph_of(algorithm: Any) -> Graph:
    """Trace with `exact`: bit for bit the same numbers if no batch size changes."""
    return trace(algorithm, NUM_ENVS, exact=True)


def executor_of(algorithm: Any, strategy: str, launch: str = "threads") -> Executor:
    made = resolve(strategy)(graph_of(algorithm), Cluster.local())
    return make_executor(replace(made, launch=quick(launch)), ITERATIONS)


def after(algorithm: Any, strategy: str, launch: str = "threads", seed: int = 3) -> Any:
    """Return the state after a few iterations."""
    executor = executor_of(algorithm, strategy, launch)
    try:
        executor.start(jax.random.key(seed))
        advance(executor, ITERATIONS)
        return executor.state()
    finally:
        executor.close()


@cache
def reference(name: str) -> Any:
    """Return the final state of the fused program, which calls back to the host."""
    executor = executor_of(SMALL[name], CALLBACK)
    executor.start(jax.random.key(3))
    first = executor.state()
    metrics = advance(executor, ITERATIONS)
    assert metrics["episode_count"].sum() > NUM_ENVS
    state = executor.state()
    assert difference(first.learner.params, state.learner.params) > 100 * TOLERANCE
    executor.close()
    return state


@pytest.mark.parametrize(("name", "strategy", "launch"), CASES)
def test_same_numbers(name: str, strategy: str, launch: str) -> None:
    if (name, strategy) == ("dqn", "data_parallel"):
        with pytest.raises(PlanError, match="cannot run as replicas: `replay"):
            executor_of(SMALL[name], strategy)
        return
    apart = difference(after(SMALL[name], strategy, launch), reference(name))
    # Replicas average what one program sums at once, so the last bit may differ.
    assert apart <= (TOLERANCE if strategy == "data_parallel" else 0.0)


@pytest.mark.xdist_group("hosted ppo")
@pytest.mark.parametrize("strategy", [CALLBACK, ONE_THREAD, TWO_THREADS])
def test_same_numbers_where_programs_cannot_call(
    strategy: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without the native library, calls go through XLA's callback, or between programs."""
    expected = reference("ppo")
    monkeypatch.setattr("hocket.runtime.host_calls.calls.PATH", tmp_path / "missing.so")
    assert difference(after(SMALL["ppo"], strategy), expected) == 0.0


def test_late_actors_repeat_bit_for_bit() -> None:
    cartpole = replace(SMALL["ppo"], env=make("gymnasium:CartPole-v1"))
    strategy = "sebulba:lag=1,actors=1,threads=2"
    first = after(cartpole, strategy)
    assert difference(after(cartpole, strategy), first) == 0.0
    assert difference(after(cartpole, strategy, "processes"), first) == 0.0
    other = after(cartpole, strategy, seed=4)
    assert difference(other.learner.params, first.learner.params) > 100 * TOLERANCE


@cache
def saved(strategy: str) -> tuple[Any, Any, Any]:
    """Return the state and the late values after three iterations, and the state after six."""
    executor = executor_of(SMALL["ppo"], strategy)
    executor.start(jax.random.key(1))
    advance(executor, 3)
    state, late = executor.state(), executor.late()
    assert late and all(name.startswith(PREFIX) for name in late)
    advance(executor, 3)
    whole = executor.state()
    executor.close()
    return state, late, whole


@pytest.mark.xdist_group("hosted snapshots")
@pytest.mark.parametrize("before", [CALLBACK, TWO_THREADS])
@pytest.mark.parametrize("then", [CALLBACK, TWO_THREADS])
def test_a_snapshot_goes_on_exactly_under_any_plan(before: str, then: str) -> None:
    state, late, whole = saved(before)
    again = executor_of(SMALL["ppo"], then)
    again.load(state, late)
    assert again.late().keys()  # it has them before anything runs
    advance(again, 1)
    again.load(again.state(), again.late())  # must leave nothing of the first `load`
    advance(again, 2)
    assert difference(again.state(), whole) == 0.0 < difference(state, whole)
    again.close()


class Seen(NamedTuple):
    actor: Any


@dataclass(frozen=True)
class Looker:
    """An algorithm that learns nothing, and reports its rollout as metrics."""

    env: Any
    num_envs: int = 4
    env_steps: int = 1000

    def init(self, key: Any, num_envs: int) -> Seen:
        return Seen(init_actor(self.env, key, num_envs))

    @fragment
    def act(self, obs: Any, memory: Any, keys: Any) -> Any:
        return (obs[:, 0] < 0).astype(jnp.int32), memory, {}

    def step(self, state: Seen) -> tuple[Seen, dict[str, Any]]:
        actor, rollout = unroll(self.env, self.act, state.actor, 5)
        kept = {name: getattr(rollout, name) for name in ("obs", "next_obs", "reward", "truncated")}
        return Seen(actor), {**kept, **rollout.episodes}

    def policy(self, state: Seen, explore: bool = False) -> Policy:
        return Policy(lambda obs, memory, key: (jnp.int32(0), memory))


def test_episodes_that_cannot_be_saved_are_cut() -> None:
    executor = executor_of(Looker(Walk(saves=False)), CALLBACK)
    executor.start(jax.random.key(0))
    advance(executor, 3)
    state = executor.state()
    assert executor.late() == {}
    executor.load(state)
    rows = advance(executor, 3)
    executor.close()
    assert rows["truncated"][0, 0].all() and (rows["reward"][0, 0] == 0).all()
    np.testing.assert_array_equal(rows["next_obs"][0, 0], np.asarray(state.actor.obs))
    assert (rows["obs"][0, 1, :, 1] == 0).all()  # the first step of the next episode
    assert not rows["truncated"][0, 1:].all() and (rows["reward"][0, 1:] > 0).all()
    assert (rows["episode_count"] >= 0).all() and rows["episode_count"][0].min() >= 1


def test_a_run_whose_episodes_were_cut_learns_on() -> None:
    ppo = replace(SMALL["ppo"], env=Walk(saves=False))
    executor = executor_of(ppo, TWO_THREADS)
    executor.start(jax.random.key(0))
    advance(executor, 2)
    state = executor.state()
    assert executor.late() == {}
    executor.close()
    again = executor_of(ppo, TWO_THREADS)
    again.load(state, {})
    metrics = advance(again, 2)
    assert metrics["episode_count"][0].min() >= 1
    assert difference(again.state().learner.params, state.learner.params) > 100 * TOLERANCE
    again.close()


FLAGS = ("ppo", "--num-envs", "8", "--length", "8", "--hidden", "8", "--minibatches", "2")
HALF, WHOLE = str(8 * 8 * 4), str(8 * 8 * 8)


def cut_and_resumed(hocket: Hocket, env: str) -> tuple[str, float]:
    """Return the output of a resumed run, and how far its result is from an uninterrupted run's."""
    flags = (*FLAGS, "--env", env, "--distribute", "sebulba:actors=1", "--env-steps", WHOLE)
    flags = (*flags, "--save-every", HALF)
    hocket.well("train", *flags, "--name", "whole", "--quiet")
    shutil.copytree("runs/whole", "runs/cut")
    shutil.rmtree("runs/cut/checkpoints/8")
    out = hocket.well("train", *flags, "--name", "cut", "--resume")
    assert f"resumed after {HALF} steps" in out
    whole, cut = library.load("runs/whole"), library.load("runs/cut")
    assert whole.iteration == cut.iteration == 8
    return out, difference(whole.state, cut.state)


def test_a_resumed_run_is_an_uninterrupted_one(hocket: Hocket) -> None:
    """Resume a run with late parameters, and with environments on the host."""
    out, apart = cut_and_resumed(hocket, "gymnasium:CartPole-v1")
    assert apart == 0.0 and "truncated" not in out


def test_a_resumed_run_says_that_episodes_were_cut(hocket: Hocket) -> None:
    out, apart = cut_and_resumed(hocket, "envpool:CartPole-v1")
    said = "envpool:CartPole-v1 cannot be saved: its episodes ended there, truncated"
    assert said in " ".join(out.split()) and apart > 0.0


GRAPH = """\
PPO: 8 environments, 64 environment steps an iteration, state 2.2 KiB
  repeat 8 times
    act (act)                            in      476 B   out       96 B
    env (env)                            in      384 B   out      528 B
  update (learn)                         in    4.0 KiB   out    1.8 KiB

"""

TEXTS = {
    CALLBACK: """\
anakin: act, env, update  on cpu:0
    memory: state 2.2 KiB, at least 5.0 KiB at once
host:Walk runs on the host: 8 calls an iteration (the compiled program stops and calls back), \
each with 384 B there and 528 B back
nothing crosses""",
    TWO_THREADS: """\
actor x2: act, env  on cpu:0
    memory of each: state 240 B, at least 1.9 KiB at once, up to 348 B in messages
learner: update  on cpu:3
    memory: state 1.8 KiB, at least 4.3 KiB at once, up to 2.2 KiB in messages
host:Walk runs on the host: 8 calls an iteration (called by the compiled program), each with \
384 B there and 528 B back
learner -> actor: 696 B an iteration in 2 messages
    learner.params (4 arrays)
    learner.moments (3 arrays)
actor -> learner: 2.2 KiB an iteration in 2 messages
    `env` (7 arrays)
    actor.obs
    `act` (3 arrays)""",
}


@pytest.mark.parametrize("strategy", TEXTS)
def test_text_of_a_plan(strategy: str) -> None:
    assert str(library.plan(SMALL["ppo"], distribute=strategy)) == GRAPH + TEXTS[strategy]


COUNTER = "gymnasium:hocket/Counter-v0"
FAULTS = {
    "raises": "raised in `step`",
    "nan": "returned an observation that is not finite",
    "shape": "returned an observation that has shape (3,)",
    "dtype": "returned an observation that has dtype <U1",
    "hangs": "did not answer within 1 s.",
}


@pytest.mark.parametrize(
    ("wrong", "strategy"), [("raises", CALLBACK), *((wrong, ONE_THREAD) for wrong in FAULTS)]
)
def test_what_an_environment_does_wrong_ends_the_run(
    hocket: Hocket, wrong: str, strategy: str
) -> None:
    env = f"{COUNTER}:wrong={wrong},timeout=1.0"
    done = hocket("train", *FLAGS, "--env", env, "--distribute", strategy, "--quiet")
    assert done.code == 1, done
    assert f"environment 0 of `{COUNTER}` {FAULTS[wrong]}" in done.err
    assert strategy == CALLBACK or done.err.startswith("hocket: the instance `actor/0` failed:")
    assert "During handling" not in done.err and "jax" not in done.err
    assert wrong != "raises" or "ZeroDivisionError: the pole is gone" in done.err


@pytest.mark.parametrize("on_death", ["fail", "restart"])
def test_a_worker_that_dies(hocket: Hocket, on_death: str) -> None:
    env = f"{COUNTER}:wrong=dies,at=6,length=9,vectorize=processes,on_death={on_death}"
    train = ("train", *FLAGS, "--env", env, "--distribute", ONE_THREAD, "--env-steps", "64")
    said = "the worker process of environments 0 to 7 of `gymnasium:hocket/Counter-v0`, which was "
    said += r"working on environment 0, is gone: process \d+ ended with code 3\."
    said += r"(?s:.*)a hole in the hull\n"
    if on_death == "fail":
        done = hocket(*train, "--quiet")
        assert done.code == 1 and re.search(said, done.err)
        assert "the instance `actor/0` failed" in done.err
        return
    with pytest.warns(
        UserWarning, match=rf"{said}It is started again, and its episodes are truncated"
    ):
        hocket.well(*train, "--name", "on", "--quiet")
    assert library.load("runs/on").iteration == 1


@dataclass(frozen=True)
class Broken(Walk):
    """A walk that breaks one rule of the contract."""

    wrong: str = ""

    def open(self, num_envs: int) -> LiveWalk:
        return LiveBroken(self, num_envs)


class LiveBroken(LiveWalk):
    def recv(self) -> HostStep:
        took, wrong = super().recv(), self.env.wrong  # pyright: ignore[reportAttributeAccessIssue]
        match wrong:
            case "shape":
                return took._replace(obs=took.obs[:, :1])
            case "dtype":
                return took._replace(reward=took.reward.astype(np.float64))
            case "list":
                return took._replace(terminated=took.terminated.tolist())
        raise KeyError(wrong)


BROKEN = {
    "shape": r"`host:Walk` returned float32\[8, 1\].*its spaces require float32\[8, 2\]",
    "dtype": r"`host:Walk` returned .*float64\[8\].*its spaces require .*float32\[8\]",
    "list": r"`host:Walk` returned .*\. Return numpy arrays with a row for each environment",
    "raises": r"`host:Walk` failed:(.|\n)*KeyError: 'raises'",
}


@pytest.mark.parametrize("wrong", BROKEN)
def test_ones_own_environment_is_named_too(wrong: str) -> None:
    ppo = replace(SMALL["ppo"], env=Broken(wrong=wrong))
    with pytest.raises(HostEnvError, match=BROKEN[wrong]):
        library.run(ppo, iterations=1, distribute=CALLBACK)
    if wrong == "raises":
        with pytest.raises(
            InstanceError, match=rf"the instance `actor/0` failed(.|\n)*{BROKEN[wrong]}"
        ):
            library.run(ppo, iterations=1, distribute=ONE_THREAD)


def test_anakin_compiles_no_host_environment(hocket: Hocket) -> None:
    done = hocket("train", *FLAGS, "--env", "gymnasium:CartPole-v1", "--distribute", "anakin")
    assert done.code == 2 and "Traceback" not in done.err
    assert "gymnasium:CartPole-v1 runs on the host, so `anakin` cannot compile it" in done.err
    assert 'distribute="sebulba"' in done.err and "anakin:callback=true" in done.err


def test_a_space_nobody_supports(hocket: Hocket) -> None:
    text: Any = partial(gymnasium_toys.Spaces, gym.spaces.Text(3), gym.spaces.Discrete(2))
    gym.register("hocket/Text-v0", text)
    done = hocket("train", "ppo", "--env", "gymnasium:hocket/Text-v0")
    gym.registry.pop("hocket/Text-v0")
    assert done.code == 2 and "`gymnasium:hocket/Text-v0`" in done.err and "Text(" in done.err


def test_what_one_jits_oneself_cannot_step_the_host() -> None:
    ppo, key = SMALL["ppo"], jax.random.key(0)
    said = "host:Walk runs on the host and keeps a state there.*use `hocket.run`"
    with pytest.raises(ValueError, match=said):
        jax.jit(library.program(ppo, iterations=1))(key)
    state = ppo.init(key, NUM_ENVS)  # only looks at the environments
    with pytest.raises(ValueError, match=said):
        jax.jit(lambda state: ppo.step(state))(state)
    with pytest.raises(ValueError, match=said):
        ppo.step(state)


def test_environments_cannot_go_back_nor_serve_two_runs() -> None:
    (stepping,) = hosts(trace(Looker(Walk()), 2))
    live, none = stepping.open(), np.zeros(2, np.int32)
    counts = [none.astype(np.float32), none, none.astype(np.float32), none, none]
    given = [np.array([3, 4], np.uint32), none, *counts, np.zeros((2, 2), np.float32), none]
    live.start(given)
    assert live.finish()[0].tolist() == [1, 1]
    with pytest.raises(
        RuntimeError, match=r"steps that host:Walk has taken differs.*serve two runs"
    ):
        live.start(given)
    live.close()


def test_a_state_that_is_loaded_twice_has_environments_of_its_own() -> None:
    state = library.run(SMALL["ppo"], iterations=2, distribute=ONE_THREAD).state
    loops = [
        library.iterate(SMALL["ppo"], iterations=2, distribute=ONE_THREAD, start_from=state)
        for _ in range(2)
    ]
    for reports in zip(*loops, strict=True):  # they take turns
        assert difference(reports[0].state, reports[1].state) == 0.0


def test_several_seeds(hocket: Hocket) -> None:
    """The fused program, which calls back, trains several seeds. Other plans refuse them."""
    both = library.run(SMALL["ppo"], seeds=2, iterations=3, distribute=CALLBACK)
    alone = library.run(SMALL["ppo"], seed=1, iterations=3, distribute=CALLBACK)
    assert difference(both.agent(1).state, alone.state) <= TOLERANCE
    assert difference(both.agent(0).state, both.agent(1).state) > 100 * TOLERANCE
    done = hocket("train", *FLAGS, "--env", "gymnasium:CartPole-v1", "--seeds", "2")
    assert done.code == 2 and 'Use `distribute="anakin:callback=true"`' in done.err
    assert not Path("runs").exists()
