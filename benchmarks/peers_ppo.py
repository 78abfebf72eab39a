"""Train PPO of stable-baselines3 or of sbx on host environments, for `sebulba.py`.

    python -m venv peers && peers/bin/pip install stable-baselines3 sbx-rl envpool gymnasium
    peers/bin/python benchmarks/peers_ppo.py sb3 envpool --threads 1 --seconds 10
    peers/bin/python benchmarks/peers_ppo.py sbx gymnasium --vector subproc --until 475

Imports nothing of hocket. Prints one JSON line per training: environment steps, the seconds of
stepping and learning together, and a curve with a point at the end of each iteration: (seconds,
environment steps, mean return of the last 100 episodes, or null before there are as many). The
clock starts when everything is imported, made and compiled: before that, one rollout is gathered
and learned from, and then networks, optimizers and environments are reset.
With `--serve` it reads a JSON object of options from each input line, and trains with them.

EnvPool by itself resets an ended environment in the next step, and ignores the action of that step.
Here ended environments are reset at once, all in one call, as in EnvPool's own example.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from typing import Any

ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


def main() -> None:
    options = parse()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    os.environ["JAX_PLATFORMS"] = "cpu"
    if options.threads == 1:
        os.environ["XLA_FLAGS"] = ONE_THREAD
        os.environ["PJRT_NPROC"] = "1"
    if not options.serve:
        print(json.dumps(train(options)), flush=True)
        return
    for line in sys.stdin:
        turn = argparse.Namespace(**{**vars(options), **json.loads(line)})
        with contextlib.redirect_stdout(sys.stderr):
            result = train(turn)
        print(json.dumps(result), flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("peer", choices=["sb3", "sbx"])
    parser.add_argument("env", choices=["envpool", "gymnasium"])
    parser.add_argument("--vector", choices=["dummy", "subproc"], default="dummy")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch, or of XLA")
    parser.add_argument("--pool-threads", type=int, default=0, help="EnvPool's; 0: its default")
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--minibatches", type=int, default=8)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--entropy", type=float, default=0.01)
    parser.add_argument("--normalize", action="store_true", help="use VecNormalize")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=500_000, help="the learning rate falls to 0")
    parser.add_argument("--seconds", type=float, default=1e9, help="end after about this time")
    parser.add_argument("--until", type=float, default=1e9, help="or at this mean return")
    parser.add_argument("--serve", action="store_true", help="train for each input line")
    return parser.parse_args()


def train(options: argparse.Namespace) -> dict[str, Any]:
    env = make_envs(options)  # before anything of jax or torch starts: `subproc` forks
    model = make_model(options, env)
    learned = networks(model, options.peer)
    model.learn(options.num_envs * options.length)
    set_back(model, options.peer, learned)
    curve: list[tuple[float, int, float | None]] = []
    model.learn(options.steps, callback=watch(curve, options), log_interval=10**9)
    env.close()
    return {"steps": curve[-1][1], "seconds": curve[-1][0], "curve": curve}


def make_envs(options: argparse.Namespace) -> Any:
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize

    if options.env == "envpool":
        env = envpool_envs(options)
    elif options.vector == "dummy":
        env = make_vec_env("CartPole-v1", options.num_envs, options.seed, vec_env_cls=DummyVecEnv)
    else:
        env = make_vec_env(
            "CartPole-v1", options.num_envs, options.seed, vec_env_cls=SubprocVecEnv,
            vec_env_kwargs={"start_method": "fork"},
        )  # fmt: skip
    return VecNormalize(env, norm_reward=False) if options.normalize else env


def envpool_envs(options: argparse.Namespace) -> Any:
    import envpool
    import numpy as np
    from stable_baselines3.common.vec_env import VecEnv

    class FromEnvPool(VecEnv):
        """EnvPool's environments with the interface of stable-baselines3."""

        def __init__(self) -> None:
            self.pool = envpool.make_gymnasium(
                "CartPole-v1", num_envs=options.num_envs, seed=options.seed,
                num_threads=options.pool_threads,
            )  # fmt: skip
            super().__init__(options.num_envs, self.pool.observation_space, self.pool.action_space)
            self.returns = np.zeros(options.num_envs)
            self.lengths = np.zeros(options.num_envs, int)
            self.nothing: dict[str, Any] = {}

        def reset(self) -> Any:
            self.returns[:], self.lengths[:] = 0, 0
            return self.pool.reset()[0].copy()

        def step_async(self, actions: Any) -> None:
            self.actions = actions

        def step_wait(self) -> Any:
            obs, reward, terminated, truncated, _ = self.pool.step(self.actions)
            done = terminated | truncated
            self.returns += reward
            self.lengths += 1
            infos = [self.nothing] * self.num_envs
            if done.any():
                obs, ended = obs.copy(), np.flatnonzero(done)
                for i in ended:
                    infos[i] = {
                        "terminal_observation": obs[i].copy(),
                        "TimeLimit.truncated": bool(truncated[i] and not terminated[i]),
                        "episode": {"r": self.returns[i], "l": self.lengths[i]},
                    }
                obs[ended] = self.pool.reset(ended.astype(np.int32))[0]
                self.returns[ended], self.lengths[ended] = 0, 0
            return obs, reward, done, infos

        def close(self) -> None:
            self.pool.close()

        def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
            return [getattr(self.pool, attr_name)] * self.num_envs

        def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
            raise NotImplementedError

        def env_method(self, method_name: str, *args: Any, **kwargs: Any) -> list[Any]:
            raise NotImplementedError

        def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
            return [False] * self.num_envs

    return FromEnvPool()


def make_model(options: argparse.Namespace, env: Any) -> Any:
    """Make PPO with two networks of 2 x 64 tanh, the default of both peers."""
    import torch

    torch.set_num_threads(options.threads)
    more: dict[str, Any] = {}
    if options.peer == "sb3":
        from stable_baselines3 import PPO

        more["device"] = "cpu"
    else:
        from sbx import PPO
    return PPO(
        "MlpPolicy", env, seed=options.seed, n_steps=options.length, n_epochs=options.epochs,
        batch_size=options.num_envs * options.length // options.minibatches,
        learning_rate=lambda remaining: options.learning_rate * remaining,
        gamma=0.99, gae_lambda=0.95, clip_range=0.2, ent_coef=options.entropy, vf_coef=0.5,
        max_grad_norm=0.5, policy_kwargs={"net_arch": {"pi": [64, 64], "vf": [64, 64]}}, **more,
    )  # fmt: skip


def networks(model: Any, peer: str) -> Any:
    """Copy the parameters and the state of their optimizers, for `set_back`."""
    import copy

    if peer == "sbx":  # an update replaces these objects; it sets the learning rate anyway
        return model.policy.actor_state, model.policy.vf_state
    policy = model.policy
    return copy.deepcopy((policy.state_dict(), policy.optimizer.state_dict()))


def set_back(model: Any, peer: str, learned: Any) -> None:
    if peer == "sbx":
        model.policy.actor_state, model.policy.vf_state = learned
    else:
        model.policy.load_state_dict(learned[0])
        model.policy.optimizer.load_state_dict(learned[1])


def watch(curve: list[Any], options: argparse.Namespace) -> Any:
    """Make a callback that adds a point whenever a rollout begins, when the last is learned from.

    It ends the training in the first step of a rollout; that rollout is not counted.
    """
    from stable_baselines3.common.callbacks import BaseCallback

    class Watch(BaseCallback):
        def _on_training_start(self) -> None:
            self.begun, self.enough = time.perf_counter(), False

        def _on_rollout_start(self) -> None:
            seconds, episodes = time.perf_counter() - self.begun, self.model.ep_info_buffer
            mean = sum(float(e["r"]) for e in episodes) / 100 if len(episodes) == 100 else None
            curve.append((seconds, self.num_timesteps, mean))
            self.enough = seconds >= options.seconds or (mean or 0.0) >= options.until

        def _on_step(self) -> bool:
            return not self.enough

        def _on_training_end(self) -> None:
            if not self.enough:
                self._on_rollout_start()

    return Watch()


if __name__ == "__main__":
    main()
