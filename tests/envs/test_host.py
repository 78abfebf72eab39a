"""Host environments through the front door: names, evaluation, recordings."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.envs import gymnasium_toys
from tests.front import Hocket

from hocket.core.program.algorithm import Policy
from hocket.envs import Env, HostEnv, evaluate, make, name_of, record
from hocket.training.load import Evaluator

assert gymnasium_toys  # it registers them

KEY = jax.random.key(0)
COUNTER = "gymnasium:hocket/Counter-v0"
GAINS = np.array([0.2, 0.5, 3.0, 1.0], np.float32)
LEAN = Policy(lambda obs, memory, key: ((obs @ GAINS > 0).astype(jnp.int32), memory))
FIRST = Policy(lambda obs, memory, key: (jnp.int32(0), memory))


@pytest.mark.parametrize("name", [COUNTER, "envpool:CartPole-v1", "gymnasium:ALE/Pong-v5"])
def test_an_environment_is_pure_or_of_the_host(name: str) -> None:
    env = make(name)
    assert isinstance(env, HostEnv) and not isinstance(env, Env)
    assert name_of(env) == env.name == name
    assert isinstance(make("Catch"), Env) and not isinstance(make("Catch"), HostEnv)


@pytest.mark.parametrize(
    "name", ["gymnasium:CartPole-v1", "envpool:CartPole-v1", "gymnasium:CartPole-v1:vector"]
)
def test_evaluation_plays_as_in_a_pure_environment(name: str) -> None:
    options = {"vectorize": "gymnasium"} if name.endswith("vector") else {}
    name = name.removesuffix(":vector")
    good = evaluate(make(name, **options), LEAN, KEY, episodes=8)
    assert good.returns.tolist() == [500.0] * 8 == good.lengths.tolist()
    assert good.ended.all()
    result = evaluate(make(name, **options), FIRST, KEY, episodes=32)
    pure = evaluate(make("CartPole-v1"), FIRST, KEY, episodes=32)
    assert [x.dtype for x in result] == [x.dtype for x in pure]
    np.testing.assert_array_equal(result.returns, result.lengths)
    assert abs(result.returns.mean() - pure.returns.mean()) < 0.5


def test_an_episode_counts_once_and_is_cut_where_it_must_be() -> None:
    env = make(COUNTER, length=5)
    result = evaluate(env, FIRST, KEY, episodes=3)
    assert (result.returns.tolist(), result.lengths.tolist()) == ([25.0] * 3, [5] * 3)
    result = evaluate(env, FIRST, KEY, episodes=3, max_steps=4)
    assert (result.returns.tolist(), result.ended.tolist()) == ([20.0] * 3, [False] * 3)


def test_a_memory_is_one_for_each_episode() -> None:
    def act(obs: jax.Array, memory: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        return memory % 3, memory + 1

    result = evaluate(make(COUNTER, length=3), Policy(act, jnp.int32(0)), KEY, episodes=2)
    assert result.returns.tolist() == [18.0, 18.0]


def test_a_film_shows_what_the_environment_renders() -> None:
    env = make(COUNTER, length=3)
    film = record(env, FIRST, KEY, episodes=2, size=(30, 20), caption=False)
    assert film.frames.shape == (8, 20, 30, 3)
    assert film.frames[:, 10, 15, 0].tolist() == [0, 10, 20, 30] * 2
    assert film.returns == [15.0, 15.0]
    assert record(env, FIRST, KEY, max_steps=2, size=(30, 20)).frames.shape[0] == 3


def test_a_film_of_what_observes_images_shows_those() -> None:
    env = make("gymnasium:ALE/Pong-v5", noop_max=0)
    film = record(env, FIRST, KEY, max_steps=3, size=(84, 84), caption=False)
    assert film.frames.shape == (4, 84, 84, 3)
    live = env.open(1)
    image = live.reset(np.zeros(1, np.uint32))[0, ..., -1]
    live.close()
    assert abs(film.frames[0, ..., 0].astype(int) - image).mean() < 2.0


def test_without_pictures_there_is_no_film() -> None:
    with pytest.raises(ValueError, match=r"`envpool:CartPole-v1` cannot be recorded.*gymnasium:"):
        record(make("envpool:CartPole-v1"), FIRST, KEY)


def test_what_an_environment_needs_to_draw_itself_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pygame", None)
    with pytest.raises(ImportError, match=r"`gymnasium:CartPole-v1` cannot be drawn: pygame"):
        record(make("gymnasium:CartPole-v1"), FIRST, KEY)


def test_the_evaluator_of_a_run_compiles_the_policy_and_plays_on_the_host() -> None:
    class Fixed:
        env = make(COUNTER, length=2)

        def policy(self, state: jax.Array, explore: bool = False) -> Policy:
            return Policy(lambda obs, memory, key: (state, memory))

    evaluator = Evaluator(Fixed(), episodes=3)
    for action in (0, 2):
        result = evaluator(jnp.int32(action))
        assert result.returns.tolist() == [2.0 * (5 + action)] * 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("gymnasium:CartPol-v1", "mean `CartPole-v1`"),
        ("gymnasium:CartPole-v1:workers=none", "`workers` of `gymnasium:CartPole-v1`"),
        ("gymnasium:ALE/Pong-v5:noop_max=x", "`noop_max` of `gymnasium:ALE/Pong-v5`"),
        ("envpool:CartPol-v1", "mean `CartPole-v1`"),
    ],
)
def test_mistakes_on_the_command_line(hocket: Hocket, words: str, said: str) -> None:
    done = hocket("graph", "ppo", "--env", words)
    assert done.code != 0 and said in " ".join(done.err.split())


def test_the_list_of_environments_names_the_packages(hocket: Hocket) -> None:
    listed = hocket.well("envs")
    assert "\ngymnasium:NAME " in listed and "\nenvpool:NAME " in listed
