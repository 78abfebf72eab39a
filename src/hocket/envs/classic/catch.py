"""Catch, from bsuite and used in the Podracer paper: move a paddle under a falling ball."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hocket.envs.drawing import BLUE, ORANGE, Cells, Circle, Picture, Stroke
from hocket.envs.env import Step
from hocket.envs.spaces import Box, Discrete


class CatchState(NamedTuple):
    ball_row: Array
    ball_column: Array
    paddle: Array


@dataclass(frozen=True)
class Catch:
    """A ball falls one row per step; the paddle goes left (0), stays (1) or goes right (2).

    The observation is the board, float32 `(rows, columns)`, with ones at the ball and the paddle.
    An episode terminates when the ball is in the last row, after `rows - 1` steps. The reward of
    that step is 1 if the paddle is under the ball, else -1. All other rewards are 0.
    """

    rows: int = 10
    columns: int = 5

    @property
    def observation_space(self) -> Box:
        return Box(0.0, 1.0, shape=(self.rows, self.columns))

    @property
    def action_space(self) -> Discrete:
        return Discrete(3)

    def reset(self, key: Array) -> tuple[CatchState, Array]:
        column = jax.random.randint(key, (), 0, self.columns)
        state = CatchState(jnp.int32(0), column, jnp.int32(self.columns // 2))
        return state, self._observe(state)

    def step(self, state: CatchState, action: Array, key: Array) -> tuple[CatchState, Step]:
        paddle = jnp.clip(state.paddle + action - 1, 0, self.columns - 1)
        state = CatchState(state.ball_row + 1, state.ball_column, paddle)
        terminated = state.ball_row == self.rows - 1
        caught = jnp.where(paddle == state.ball_column, 1.0, -1.0)
        reward = jnp.where(terminated, caught, 0.0).astype(jnp.float32)
        return state, Step(self._observe(state), reward, terminated, jnp.bool_(False))

    def draw(self, state: CatchState) -> Picture:
        ball = (float(state.ball_column) + 0.5, self.rows - float(state.ball_row) - 0.5)
        left = float(state.paddle) + 0.15
        return Picture(
            view=(-0.5, -0.5, self.columns + 0.5, self.rows + 0.5),
            shapes=[
                Cells(np.full((self.rows, self.columns, 3), (228, 232, 238), np.uint8)),
                Stroke([(left, 0.15), (left + 0.7, 0.15)], BLUE, 0.16),
                Circle(ball, 0.27, ORANGE),
            ],
        )

    def _observe(self, state: CatchState) -> Array:
        # Uses no scatter, because comparisons fuse and need no indexing under `vmap`.
        row, column = jnp.arange(self.rows)[:, None], jnp.arange(self.columns)[None]
        ball = (row == state.ball_row) & (column == state.ball_column)
        paddle = (row == self.rows - 1) & (column == state.paddle)
        return (ball | paddle).astype(jnp.float32)
