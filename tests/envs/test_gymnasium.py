"""Gymnasium environments on the host: the same numbers as by hand, and every way to go wrong."""

import contextlib
import importlib
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from tests.envs import gymnasium_toys

from hocket.core.program.describe import build, describe
from hocket.envs import Box, DictSpace, Discrete, HostEnvError, LiveEnvs, MultiDiscrete, make
from hocket.system.names import read_words

COUNTER = "gymnasium:hocket/Counter-v0"
SPACES = "gymnasium:hocket/Spaces-v0"
SEEDS = np.array([3, 2**32 - 1, 5], np.uint32)
EACH = [{}, {"workers": 2}, {"vectorize": "processes", "workers": 2}]

assert gymnasium_toys  # it registers them


@contextlib.contextmanager
def opened(
    env: Any, num_envs: int = 3, seeds: np.ndarray = SEEDS, *, here: bool = False
) -> Iterator[Any]:
    live: LiveEnvs = env.open_here(num_envs) if here else env.open(num_envs)
    try:
        live.reset(seeds[:num_envs])
        yield live
    finally:
        live.close()


def step(live: LiveEnvs, actions: Any) -> Any:
    live.send(actions)
    return live.recv()


def actions_of(name: str, num_steps: int) -> np.ndarray:
    space = gym.make(name).action_space
    space.seed(0)
    return np.array([[space.sample() for _ in SEEDS] for _ in range(num_steps)])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *[("CartPole-v1", options) for options in EACH],
        ("CartPole-v1", {"here": True}),
        ("CartPole-v1", {"max_episode_steps": 15, "workers": 2}),
        ("MountainCarContinuous-v0", {"vectorize": "gymnasium"}),
        ("Pendulum-v1", {}),
        ("InvertedPendulum-v5", {}),
    ],
)
def test_steps_are_those_of_one_environment_by_hand(name: str, options: dict[str, Any]) -> None:
    theirs = {k: v for k, v in options.items() if k == "max_episode_steps"}
    hands = [gym.make(name, **theirs) for _ in SEEDS]
    firsts = [hand.reset(seed=int(seed))[0] for hand, seed in zip(hands, SEEDS, strict=True)]
    ends = 0
    env = make(f"gymnasium:{name}", **{k: v for k, v in options.items() if k != "here"})
    live = env.open_here(len(SEEDS)) if "here" in options else env.open(len(SEEDS))
    np.testing.assert_array_equal(live.reset(SEEDS), np.array(firsts, np.float32))
    for t, actions in enumerate(actions_of(name, 1_000)):
        result = step(live, actions.astype(np.float32 if actions.ndim > 1 else np.int32))
        for i, hand in enumerate(hands):
            obs, reward, terminated, truncated, _ = hand.step(actions[i])
            np.testing.assert_array_equal(result.final_obs[i], np.float32(obs))
            if terminated or truncated:
                ends += 1
                obs = hand.reset()[0]
            np.testing.assert_array_equal(result.obs[i], np.float32(obs))
            assert result.reward[i] == np.float32(reward)
            assert result.terminated[i] == terminated
            assert result.truncated[i] == (truncated and not terminated), t
    live.close()
    assert ends > 2


def test_gymnasiums_own_cartpoles_take_the_steps_of_cartpole() -> None:
    env = make("gymnasium:CartPole-v1", vectorize="gymnasium", max_episode_steps=20)
    with opened(env) as live:
        obs = live.reset(SEEDS)
        hand: Any = gym.make("CartPole-v1").unwrapped
        hand.reset(seed=0)
        lengths, ends = np.zeros(3, int), {"terminated": 0, "truncated": 0}
        for actions in actions_of("CartPole-v1", 200).astype(np.int32):
            result = step(live, actions)
            lengths += 1
            for i in range(3):
                hand.state, hand.steps_beyond_terminated = obs[i].astype(np.float64), None
                expected, reward, terminated, *_ = hand.step(int(actions[i]))
                np.testing.assert_allclose(result.final_obs[i], expected, atol=1e-5)
                assert (result.reward[i], result.terminated[i]) == (reward, terminated)
                assert result.truncated[i] == (lengths[i] == 20 and not terminated)
                if result.terminated[i] or result.truncated[i]:
                    ends["terminated" if terminated else "truncated"] += 1
                    lengths[i] = 0
                    assert abs(result.obs[i]).max() <= 0.05
            obs = result.obs
    assert all(ends.values())


@pytest.mark.parametrize("options", [*EACH, {"vectorize": "gymnasium"}])
def test_seeds_settle_everything_and_results_stay_as_they_were(options: dict[str, Any]) -> None:
    actions = actions_of("CartPole-v1", 60).astype(np.int32)
    with opened(make("gymnasium:CartPole-v1", **options)) as live:
        once = [step(live, x).obs for x in actions]
        copies = np.array(once)
        live.reset(SEEDS)
        twice = [step(live, x).obs for x in actions]
    np.testing.assert_array_equal(once, twice)
    np.testing.assert_array_equal(once, copies)
    assert (once[10][0] != once[10][1]).any()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("CartPole-v1", {}),
        ("CartPole-v1", {"vectorize": "processes"}),
        ("Pendulum-v1", {}),
        ("Ant-v5", {}),
        ("hocket/Counter-v0", {"workers": 2}),
    ],
)
def test_a_snapshot_goes_on_bit_for_bit(name: str, options: dict[str, Any]) -> None:
    env, actions = make(f"gymnasium:{name}", **options), actions_of(name, 100)
    kind = env.action_space.spec().dtype
    actions = (actions - (5 if "Counter" in name else 0)).astype(kind)
    with opened(env) as live:
        for x in actions[:50]:
            step(live, x)
        saved = live.snapshot()
        going_on = [step(live, x) for x in actions[50:]]
    assert saved is not None and len(saved) == 3
    with opened(env, seeds=SEEDS // 2) as live:
        live.restore(saved)
        again = [step(live, x) for x in actions[50:]]
    for a, b in zip(going_on, again, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)


def test_no_snapshot_where_only_the_constructor_would_be_saved() -> None:
    class Remade(gymnasium_toys.Counter, gym.utils.EzPickle): ...

    remade: Any = Remade
    gym.register("hocket/Remade-v0", remade)
    try:
        with opened(make("gymnasium:hocket/Remade-v0")) as live:
            assert live.snapshot() is None
    finally:
        del gym.registry["hocket/Remade-v0"]
    with opened(make("gymnasium:CartPole-v1", vectorize="gymnasium")) as live:
        assert live.snapshot() is None


def spaces_env(observation: Any, action: Any, **options: Any) -> Any:
    return make(SPACES, observation=observation, action=action, **options)


def test_spaces_become_ours() -> None:
    box, two = gym.spaces.Box(-1.0, 2.0, (2,), np.float64), gym.spaces.Discrete(2)
    many = gym.spaces.MultiDiscrete([2, 3])
    seen = gym.spaces.Dict(
        choice=gym.spaces.Discrete(4, start=1), bits=gym.spaces.MultiBinary(3), many=many,
        inner=gym.spaces.Dict(image=gym.spaces.Box(0, 255, (4, 4), np.uint8), box=box),
    )  # fmt: skip
    env = spaces_env(seen, gym.spaces.Dict(box=box, bits=gym.spaces.MultiBinary(3), many=many))
    image = Box(0, 255, (4, 4), "uint8")
    assert env.observation_space == DictSpace({
        "choice": Box(0.0, 1.0, (4,)), "bits": Box(0, 1, (3,), "int8"),
        "many": MultiDiscrete((2, 3)),
        "inner": DictSpace({"image": image, "box": Box(-1.0, 2.0, (2,))}),
    })  # fmt: skip
    assert env.action_space == DictSpace({
        "box": Box(-1.0, 2.0, (2,)), "bits": MultiDiscrete((2, 2, 2)),
        "many": MultiDiscrete((2, 3)),
    })  # fmt: skip
    assert spaces_env(two, two).action_space == Discrete(2)


def test_trees_of_observations_and_actions() -> None:
    box = gym.spaces.Box(-1.0, 2.0, (2,), np.float64)
    image, choice = gym.spaces.Box(0, 255, (4, 4), np.uint8), gym.spaces.Discrete(4, start=1)
    seen = gym.spaces.Dict(choice=choice, inner=gym.spaces.Dict(image=image, box=box))
    does = gym.spaces.Dict(box=box, bits=gym.spaces.MultiBinary(3))
    given = {"box": np.zeros((3, 2), np.float32), "bits": np.ones((3, 3), np.int32)}
    for vectorize in ("threads", "processes"):
        with opened(spaces_env(seen, does, vectorize=vectorize)) as live:
            first, result = live.reset(SEEDS), step(live, given)
            for tree in (first, result.obs, result.final_obs):
                assert tree["choice"].sum(-1).tolist() == [1.0, 1.0, 1.0]
                assert tree["inner"]["image"].shape == (3, 4, 4)
                assert tree["inner"]["image"].dtype == np.uint8
                assert tree["inner"]["box"].dtype == np.float32


def test_64_bit_integers_and_bounds_that_mean_none() -> None:
    big = gym.spaces.Box(-(2**40), 2**40, (1,), np.int64)
    assert spaces_env(big, big).observation_space == Box(-(2**31), 2**31 - 1, (1,), "int32")
    top = np.finfo(np.float32).max
    assert spaces_env(gym.spaces.Box(-top, top, (1,)), big).observation_space == Box(
        -np.inf, np.inf, (1,)
    )


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.Tuple([gym.spaces.Discrete(2)]),
        gym.spaces.Text(3),
        gym.spaces.Sequence(gym.spaces.Discrete(2)),
    ],
    ids=repr,
)
def test_spaces_nobody_supports(space: Any) -> None:
    two, kind = gym.spaces.Discrete(2), type(space).__name__
    with pytest.raises(
        ValueError, match=rf"(?s)observation space .*{SPACES}` contains.*{kind} space.*FlattenO"
    ):
        spaces_env(space, two)
    with pytest.raises(
        ValueError, match=rf"(?s)action space .*{SPACES}` contains.*{kind} space.*TransformA"
    ):
        spaces_env(two, gym.spaces.Dict(x=space))


WRONG = {
    "raises": r"raised in `step`:(?s:.*)ZeroDivisionError: the pole is gone",
    "nan": r"observation that is not finite.*nan.*check=False",
    "shape": r"observation that has shape \(3,\), but its space says \(2,\)",
    "dtype": r"observation that has dtype <U1, but its space says float32",
    "reward nan": r"returned the reward nan",
    "reward": r"returned the reward array.*one number",
    "terminated": r"`terminated` = None, which is neither True nor False",
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("workers", [1, 3])
def test_what_an_environment_does_wrong_is_told_with_its_number(wrong: str, workers: int) -> None:
    env = make(COUNTER, wrong=wrong, workers=workers)
    with opened(env) as live:
        for _ in range(2):
            step(live, np.zeros(3, np.int32))
        with pytest.raises(HostEnvError, match=rf"^environment 0 of `{COUNTER}` .*{WRONG[wrong]}"):
            step(live, np.zeros(3, np.int32))
        with pytest.raises(HostEnvError, match=WRONG[wrong]):  # it stays so
            live.send(np.zeros(3, np.int32))


def test_numbers_that_are_not_finite_pass_where_they_may() -> None:
    with opened(make(COUNTER, wrong="nan", check=False)) as live:
        assert np.isnan([step(live, np.zeros(3, np.int32)) for _ in range(3)][-1].obs[0, 0])


def test_the_last_observation_is_checked_too() -> None:
    env, said = make(COUNTER, wrong="nan", max_episode_steps=3), r"environment 0 .*not finite"
    with opened(env) as live, pytest.raises(HostEnvError, match=said):
        [step(live, np.zeros(3, np.int32)) for _ in range(3)]


def test_an_environment_that_fails_in_a_process_tells_its_traceback() -> None:
    env = make(COUNTER, wrong="raises", vectorize="processes")
    said = r"environment 0 of(?s:.*)gymnasium_toys(?s:.*)pole"
    with opened(env) as live, pytest.raises(HostEnvError, match=said):
        [step(live, np.zeros(3, np.int32)) for _ in range(3)]


def test_a_thread_that_hangs() -> None:
    env = make(COUNTER, wrong="hangs", at=1, timeout=0.3, workers=3)
    said = rf"environment 0 of `{COUNTER}` did not answer within 0.3 s"
    with opened(env) as live, pytest.raises(HostEnvError, match=said):
        step(live, np.zeros(3, np.int32))


def test_in_the_callers_thread_somebody_else_sees_that_one_hangs() -> None:
    env, none = make(COUNTER, wrong="hangs", at=1, timeout=0.3), np.zeros(3, np.int32)
    live = env.open_here(3)
    live.reset(SEEDS)

    def work() -> None:
        with contextlib.suppress(HostEnvError):  # when it wakes up, in the middle of other tests
            live.send(none)

    threading.Thread(target=work, daemon=True).start()
    assert live.overdue() is None
    time.sleep(0.5)
    said = f"environment 0 of `{COUNTER}` did not answer within 0.3 s."
    assert str(live.overdue()) == said
    live.close()  # and does not wait for it


@pytest.mark.parametrize("options", [{"workers": 2}, {"vectorize": "processes"}])
def test_what_runs_elsewhere_is_not_opened_here(options: dict[str, Any]) -> None:
    assert make(COUNTER, **options).open_here(4) is None


def test_one_that_failed_in_the_callers_thread_stays_failed() -> None:
    none = np.zeros(3, np.int32)
    with opened(make(COUNTER, wrong="raises"), here=True) as live:
        with pytest.raises(HostEnvError, match=r"environment 0 of(?s:.*)pole is gone"):
            [step(live, none) for _ in range(3)]
        with pytest.raises(HostEnvError, match="pole is gone"):
            live.send(none)
    with opened(make(COUNTER), here=True) as live:
        live.close()
        with pytest.raises(HostEnvError, match="is closed"):
            live.send(none)


def test_a_process_that_hangs_is_killed_and_named() -> None:
    env = make(COUNTER, wrong="hangs", at=1, timeout=0.5, vectorize="processes", workers=2)
    with opened(env) as live:
        pids = [process.child.pid for process in live._processes]
        said = r"worker process of environment 0 .*did not answer within 0.5 s"
        with pytest.raises(HostEnvError, match=said):
            step(live, np.zeros(3, np.int32))
        assert not any(map(is_running, pids))


def test_a_process_that_dies_is_named_with_what_killed_it() -> None:
    with opened(make(COUNTER, vectorize="processes", workers=2)) as live:
        step(live, np.zeros(3, np.int32))
        os.kill(live._processes[1].child.pid, signal.SIGKILL)
        with pytest.raises(HostEnvError, match=r"environments 1 to 2 of .* was killed by SIGKILL"):
            step(live, np.zeros(3, np.int32))


def test_the_last_words_of_a_process_are_told() -> None:
    env = make(COUNTER, wrong="dies", at=1, vectorize="processes", workers=2)
    said = (
        r"environment 0 of .*, which was working on environment 0, is gone: "
        r"process \d+ ended with code 3\.\n(?s:.*)a hole in the hull"
    )
    with opened(env) as live, pytest.raises(HostEnvError, match=said):
        step(live, np.zeros(3, np.int32))


def test_a_process_that_is_gone_is_noticed_though_its_socket_is_held_open() -> None:
    env = make(COUNTER, wrong="forks and dies", at=1, vectorize="processes", timeout=15.0)
    with opened(env) as live, pytest.raises(HostEnvError, match=r"is gone: .* ended with code 3"):
        step(live, np.zeros(3, np.int32))


def test_what_environments_in_processes_print_is_seen(capsys: pytest.CaptureFixture[str]) -> None:
    env = make(COUNTER, wrong="speaks", at=1, vectorize="processes")
    with opened(env) as live:
        step(live, np.zeros(3, np.int32))
        child = live._processes[0].child
    assert child.poll()[0] == f"process {child.pid} ended with code 0"
    assert capsys.readouterr().out == "the first line\nthe second line\n" * 3


def test_a_worker_survives_sigterm_and_what_it_starts_does_not() -> None:
    """A scheduler sends SIGTERM to all processes of a job. Only the run itself reacts to it."""
    env = make(COUNTER, wrong="ends its helper", at=2, vectorize="processes", timeout=20.0)
    with opened(env) as live:
        step(live, np.zeros(3, np.int32))
        for process in live._processes:
            os.kill(process.child.pid, signal.SIGTERM)
        step(live, np.zeros(3, np.int32))


def test_a_process_that_dies_is_started_again() -> None:
    env = make(COUNTER, vectorize="processes", workers=2, on_death="restart", length=9)
    with opened(env) as live:
        before = step(live, np.zeros(3, np.int32))
        os.kill(live._processes[1].child.pid, signal.SIGKILL)
        with pytest.warns(UserWarning, match=r"environments 1 to 2 .* SIGKILL(?s:.*)started again"):
            result = step(live, np.zeros(3, np.int32))
        assert live.restarts == 1
        assert result.truncated.tolist() == [False, True, True]
        assert not result.terminated.any()
        assert result.reward.tolist() == [5.0, 0.0, 0.0]
        np.testing.assert_array_equal(result.final_obs[1:], before.obs[1:])
        assert result.obs[:, 0].tolist() == [2.0, 0.0, 0.0]
        assert step(live, np.zeros(3, np.int32)).obs[:, 0].tolist() == [3.0, 1.0, 1.0]


def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    """Kill a script while it waits. It has no main guard, and registers its own environment."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import sys, time
        import gymnasium as gym, numpy as np
        from hocket.envs import make

        class Slow(gym.Env):
            observation_space = gym.spaces.Box(0.0, 1.0, (1,))
            action_space = gym.spaces.Discrete(2)
            def reset(self, *, seed=None, options=None):
                super().reset(seed=seed)
                return np.zeros(1, np.float32), {}
            def step(self, action):
                time.sleep(600.0)

        gym.register("Slow-v0", Slow)
        live = make("gymnasium:Slow-v0", vectorize="processes").open(1)
        live.reset(np.zeros(1, np.uint32))
        live.send(np.zeros(1, np.int32))
        print(live._processes[0].child.pid, flush=True)
        live.recv()
        """)
    )
    names = {path.name for path in Path("/dev/shm").iterdir()}
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        assert is_running(worker)
        process.kill()
    deadline = time.monotonic() + 10.0
    while is_running(worker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(worker)
    assert {path.name for path in Path("/dev/shm").iterdir()} <= names


def is_running(pid: int) -> bool:
    """Return True if the process exists and is not a zombie."""
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def test_closing_ends_the_workers() -> None:
    live = make(COUNTER, vectorize="processes").open(3)
    pids = [process.child.pid for process in live._processes]
    live.close()
    assert not any(map(is_running, pids))
    with pytest.raises(HostEnvError, match="is closed"):
        live.send(np.zeros(3, np.int32))


def test_names_and_options() -> None:
    env = make("gymnasium:CartPole-v1", sutton_barto_reward=True, workers=2)
    assert env.name == "gymnasium:CartPole-v1"
    assert hash(env) == hash(pickle.loads(pickle.dumps(env))) and env == build(describe(env))
    name, options = read_words("gymnasium:CartPole-v1:workers=2,vectorize=processes")
    assert make(name, **options).vectorize == "processes"
    for options, said in [
        (
            {"gravty": 1},
            r"`gymnasium:CartPole-v1` cannot be made with gravty=1.*keyword",
        ),
        ({"workers": 0}, "must be greater than 0"),
        ({"workers": "two"}, "`workers` of `gymnasium:CartPole-v1`"),
        ({"vectorize": "thread"}, "mean `threads`"),
        ({"on_death": "retry"}, "unknown on_death `retry`"),
    ]:
        with pytest.raises(ValueError, match=said):
            make("gymnasium:CartPole-v1", **options)
    with pytest.raises(ValueError, match=r"`CartPol-v1`.*mean `CartPole-v1`"):
        make("gymnasium:CartPol-v1")


def test_a_description_takes_along_what_a_script_registered() -> None:
    packed = pickle.dumps(make(COUNTER))
    spec = gym.registry.pop("hocket/Counter-v0")
    try:
        assert pickle.loads(packed).open(1).reset(SEEDS[:1]).shape == (1, 2)
    finally:
        gym.registry["hocket/Counter-v0"] = spec


@pytest.mark.parametrize(
    ("package", "module", "extra"),
    [("gymnasium", "adapters.gymnasium", "gymnasium"), ("ale_py", "gymnasium.atari", "atari")],
)
def test_without_the_package_the_error_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, package: str, module: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"hocket.envs.{module}", raising=False)
    with pytest.raises(ImportError, match=rf"pip install 'hocket\[{extra}\]'"):
        importlib.import_module(f"hocket.envs.{module}")


def test_without_mujoco_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [x for x in sys.modules if x.startswith("gymnasium.envs.mujoco")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(ImportError, match=r"`gymnasium:Hopper-v5`.*pip install 'hocket\[mujoco\]'"):
        make("gymnasium:Hopper-v5")
