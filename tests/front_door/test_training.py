from __future__ import annotations

import itertools
import re
import signal
import threading
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.toys import Toy, ToyState

import hocket
from hocket import Place, Plan
from hocket.algorithms import PPO
from hocket.strategies import strategies
from hocket.testing import check_algorithm, difference


def test_run_spends_the_budget() -> None:
    result = hocket.run(Toy(env_steps=100), seed=3)
    assert result.env_steps == 120  # 24 an iteration, so five of them
    assert result.metrics["loss"].shape == (5,)
    assert result.metrics["x"].shape == (5, 8)
    assert np.isnan(result.return_mean)
    action, memory = result.policy(jnp.ones(4))
    assert action.shape == () and memory is None


def test_a_result_is_printed_in_a_line() -> None:
    time = r"\d+\.\d s tracing, \d+\.\d s compiling, \d+\.\d s running"
    text = str(hocket.run(Toy(), iterations=5))
    assert re.fullmatch(
        f"<Result of Toy: no episode ended after 120 steps in 5 iterations; {time}>", text
    ), text
    ppo = PPO(
        env=hocket.make("CartPole-v1"), num_envs=4, length=64, minibatches=1, hidden=(4,),
        epochs=1,
    )  # fmt: skip
    result = hocket.run(ppo, iterations=2, seeds=2)
    start = f"<Result of PPO: return {result.return_mean:.1f} after 512 steps by each of 2 agents"
    assert repr(result).startswith(f"{start} in 2 iterations; ")


def test_the_same_seed_gives_the_same_run() -> None:
    states = [hocket.run(Toy(), seed=s, iterations=4).state for s in (1, 1, 2)]
    assert difference(states[0], states[1]) == 0.0
    assert difference(states[0], states[2]) > 0.0


def test_iterate_leaves_the_loop_to_you() -> None:
    reports = list(itertools.islice(hocket.iterate(Toy(), iterations=50), 3))
    assert [r.iteration for r in reports] == sorted(r.iteration for r in reports)
    assert reports[-1].env_steps == 24 * reports[-1].iteration
    assert reports[-1].state.w.shape == (4,)


def test_going_on_from_a_state() -> None:
    whole = hocket.run(Toy(), iterations=6).state
    half = hocket.run(Toy(), iterations=3).state
    assert difference(hocket.run(Toy(), iterations=3, start_from=half).state, whole) == 0.0


@hocket.strategy
def apart(graph: Any, cluster: Any, *, actors: int = 1) -> Plan:
    """Place actors and a learner separately."""
    return Plan(graph, (Place("actor", ("env", "act"), replicas=actors), Place("l", ("learn",))))


def test_a_strategy_of_ones_own_by_value_and_by_name() -> None:
    fused = hocket.run(Toy(), iterations=3).state
    for distribute in (apart(), apart(actors=2), "apart"):
        result = hocket.run(Toy(), iterations=3, distribute=distribute)
        assert len(result.plan.places) == 2
        assert difference(result.state, fused) < 1e-5
    assert "actor x2" in str(hocket.plan(Toy(), distribute=apart(actors=2)))


def test_unknown_strategies_and_options() -> None:
    with pytest.raises(ValueError, match=r"unknown strategy `anakinn`. Did you mean `anakin`\?"):
        hocket.run(Toy(), distribute="anakinn")
    with pytest.raises(
        ValueError, match=r"unknown option `actor` of the strategy `apart`.*`actors`"
    ):
        strategies()["apart"](actor=3)
    with pytest.raises(ValueError, match="asked for 9 devices"):
        hocket.run(Toy(), distribute=strategies()["anakin"](devices=9))


def test_program_is_a_pure_function_of_the_key() -> None:
    train = hocket.program(Toy(), iterations=4)
    state, metrics = jax.jit(train)(jax.random.key(5))
    assert difference(state, hocket.run(Toy(), seed=5, iterations=4).state) < 1e-6
    assert metrics["loss"].shape == (4,)
    seeds = jax.random.split(jax.random.key(0), 3)
    states, _ = jax.jit(jax.vmap(train))(seeds)
    one, _ = jax.jit(train)(seeds[1])
    assert difference(jax.tree.map(lambda x: x[1], states), one) < 1e-5


def test_program_maps_over_hyper_parameters() -> None:
    def tune(rate: Any) -> Any:
        algorithm = PPO(
            env=hocket.make("CartPole-v1"), length=4, epochs=1, minibatches=1, hidden=(4,),
            learning_rate=rate,
        )  # fmt: skip
        return hocket.program(algorithm, num_envs=2, iterations=2)(jax.random.key(0))[0]

    rates = jnp.array([0.0, 1e-2])
    states = jax.jit(jax.vmap(tune))(rates)
    kernel = jax.tree.leaves(states.learner.params)[-1]
    assert not np.array_equal(kernel[0], kernel[1])


def test_no_iterations() -> None:
    with pytest.raises(ValueError, match="iterations must be at least 1"):
        hocket.run(Toy(), iterations=0)


class NoEnv(Toy):
    def step(self, state: ToyState) -> Any:
        w, key, loss = self.update(state.w, state.key, state.x[None])
        return state._replace(w=w, key=key), {"loss": loss}


def test_steps_that_cannot_be_counted() -> None:
    with pytest.raises(ValueError, match=r"NoEnv has no fragment of role `env`.*give `iterations`"):
        hocket.run(NoEnv())
    assert hocket.run(NoEnv(), iterations=2).metrics["loss"].shape == (2,)


def test_interruption_keeps_what_there_is() -> None:
    def interrupt(report: Any) -> None:
        if report.iteration >= 2:
            raise KeyboardInterrupt

    result = hocket.run(Toy(), iterations=1000, watch=interrupt)
    assert 2 <= len(result.metrics["loss"]) < 1000


def test_ctrl_c_finishes_the_block() -> None:
    """The returned state and the returned metrics are of the same iteration."""

    def press(report: Any) -> None:
        if report.iteration == 1:
            threading.Timer(0.05, signal.raise_signal, [signal.SIGINT]).start()

    def slow(report: Any) -> None:
        press(report)
        time.sleep(0.01)

    result = hocket.run(Toy(), iterations=2_000_000, watch=slow)
    done = len(result.metrics["loss"])
    assert done < 2_000_000
    assert difference(result.state, hocket.run(Toy(), iterations=done).state) == 0.0


def test_a_state_of_another_run() -> None:
    state = hocket.run(Toy(), iterations=1).state
    with pytest.raises(
        ValueError, match=r"does not fit Toy with 4 environments: `x` is float32\[8, 4\]"
    ):
        hocket.run(Toy(), iterations=1, num_envs=4, start_from=state)
    with pytest.raises(ValueError, match="it has another structure"):
        hocket.run(Toy(), iterations=1, start_from={"x": state.x})
    with pytest.raises(ValueError, match="num_envs must be at least 1"):
        hocket.run(Toy(), iterations=1, num_envs=0)


def test_check_algorithm() -> None:
    check = check_algorithm(Toy())
    assert set(check.differences) == {
        "two replicas of the whole loop", "each fragment alone", "actor | learner",
        "two actors | learner",
    }  # fmt: skip
    assert max(check.differences.values()) < 1e-5
    assert "ok: 4 plans agree" in str(check)


class Sums(Toy):
    """A Toy whose loss is correct in one program, but not with a share of the environments."""

    def loss(self, w: Any, xs: Any) -> Any:
        return jnp.square(xs @ w).sum() * 1e-3


def test_check_algorithm_names_what_is_refused() -> None:
    check = check_algorithm(Sums())
    assert "a sum over environments" in check.refused["two replicas of the whole loop"]


class Still(Toy):
    def step(self, state: ToyState) -> Any:
        return state, {"act": self.act(state.w, state.x)}


class FromConfiguration(Toy):
    def noise(self, x: Any, keys: Any) -> Any:
        return x + jnp.ones((self.num_envs, 4))


def test_check_algorithm_finds_broken_contracts() -> None:
    with pytest.raises(hocket.ContractError, match="changed nothing"):
        check_algorithm(Still())
    with pytest.raises(
        hocket.ContractError, match=r"with 8 .* and not with 16: read sizes from arrays"
    ):
        check_algorithm(FromConfiguration())
