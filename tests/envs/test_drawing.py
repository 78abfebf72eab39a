"""Drawings: an environment shows its own drawing or its grid, or the error says what to write."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pytest
from jax import Array

from hocket.envs import (
    Acrobot,
    Box,
    CartPole,
    Catch,
    Cells,
    Circle,
    Discrete,
    Drawable,
    Env,
    Masked,
    MountainCar,
    Pendulum,
    Picture,
    Polygon,
    Quadruped,
    Step,
    Stroke,
    TimeLimit,
    depict,
    make,
    paint,
)
from hocket.envs.drawing import BACKGROUND, CHANNELS, PALE, NoDrawing

KEY = jax.random.key(0)
SIZE = (60, 40)
OURS: list[Env] = [CartPole(), Pendulum(), Acrobot(), MountainCar(), Catch(), Quadruped()]


@dataclass(frozen=True)
class Undrawn:
    """An environment without a drawing, which observes zeros of a given shape."""

    shape: tuple[int, ...] = (3,)

    @property
    def observation_space(self) -> Box:
        return Box(0.0, 1.0, shape=self.shape)

    @property
    def action_space(self) -> Discrete:
        return Discrete(2)

    def reset(self, key: Array) -> tuple[Array, Array]:
        return self.observation_space.zeros(), self.observation_space.zeros()

    def step(self, state: Array, action: Array, key: Array) -> tuple[Array, Step]:
        raise NotImplementedError


def rgb(color: str) -> list[int]:
    return [*bytes.fromhex(color.removeprefix("#"))]


def stepped(env: Env, num_steps: int) -> Any:
    """Return a state some steps after a reset, and its observation."""
    state, obs = jax.jit(env.reset)(KEY)
    move = jax.jit(env.step)  # step by step, a robot is thousands of small programs
    for key in jax.random.split(KEY, num_steps):
        state, step = move(state, env.action_space.sample(KEY), key)
        obs = step.obs
    return jax.device_get((state, obs))


def painted(shapes: Sequence[Any], size: tuple[int, int] = SIZE) -> np.ndarray:
    return paint(Picture((-3, -2, 3, 2), shapes), size)


@pytest.mark.parametrize("env", OURS, ids=lambda env: type(env).__name__)
def test_every_environment_draws_what_its_state_is(env: Env) -> None:
    assert isinstance(env, Drawable)
    before, after = (paint(depict(env, *stepped(env, n)), SIZE) for n in (0, 8))
    for image in (before, after):
        assert image.shape == (40, 60, 3) and image.dtype == np.uint8
        assert 0.01 < (image != rgb(BACKGROUND)).any(-1).mean() < 0.9
    assert (before != after).any()


def test_wrappers_show_what_is_inside() -> None:
    env = Masked(TimeLimit(CartPole(), 10), keep=(0, 2))
    (state, obs), (inner, _) = stepped(env, 2), stepped(CartPole(), 2)
    np.testing.assert_array_equal(
        paint(depict(env, state, obs), SIZE), paint(CartPole().draw(inner), SIZE)
    )


def test_angles_are_those_of_gymnasium() -> None:
    """Positive angles lean a pole to the right, and turn a pendulum counter-clockwise."""
    state = CartPole().draw(jax.device_get(CartPole().reset(KEY)[0])._replace(theta=0.2))
    pole = max((s for s in state.shapes if isinstance(s, Stroke)), key=lambda s: s.points[1][1])
    assert pole.points[1][0] > pole.points[0][0]
    state = jax.device_get(Pendulum().reset(KEY)[0])._replace(theta=np.pi / 2)
    rod = Pendulum().draw(state).shapes[-2]
    assert isinstance(rod, Stroke)
    np.testing.assert_allclose(rod.points[1], (-1, 0), atol=1e-6)


def test_shapes_land_where_they_should() -> None:
    image = painted([Circle((2, 1), 0.5, "#ff0000")])
    np.testing.assert_array_equal(image[10, 50], (255, 0, 0))
    assert (image[20:] == rgb(BACKGROUND)).all()
    image = painted([Polygon([(-3, -2), (0, -2), (0, 2), (-3, 2)], "#00ff00")])
    assert (image[:, :29] == (0, 255, 0)).all() and (image[:, 31:] == rgb(BACKGROUND)).all()
    image = painted([Stroke([(-3, 0), (3, 0)], "#0000ff", 0.4)])
    assert (image[19:21] == (0, 0, 255)).all() and (image[:16] == rgb(BACKGROUND)).all()
    image = painted([Cells(np.full((2, 3, 3), 7, np.uint8))])
    assert image[15, 35].tolist() == [7, 7, 7]


def test_the_whole_view_is_shown_in_any_aspect() -> None:
    for size in [(90, 30), (30, 90)]:
        image = painted([Circle((0, 0), 1, "#ff0000")], size)
        rows, columns = np.nonzero((image == (255, 0, 0)).all(-1))
        assert abs(np.ptp(rows) - np.ptp(columns)) <= 1
        assert abs(rows.mean() + 0.5 - size[1] / 2) < 0.5
        assert abs(columns.mean() + 0.5 - size[0] / 2) < 0.5


def test_a_circle_too_small_to_see_is_a_dot() -> None:
    assert (painted([Circle((0, 0), 1e-6)]) != rgb(BACKGROUND)).any()


def test_a_caption_is_written_in_the_corner() -> None:
    plain, noted = (paint(Picture((0, 0, 1, 1), [], caption=c), (120, 80)) for c in ("", "step 3"))
    changed = (plain != noted).any(-1)
    assert changed[:30, :70].any() and not changed[30:].any()


def test_an_environment_without_a_drawing_shows_its_grid() -> None:
    """Test wrappers too, which have a `draw` even if their inner environment has none."""
    grid = np.zeros((4, 6, 12), np.float32)
    grid[0, 0, 0] = grid[3, 5, 11] = 1
    for env, state in [
        (Undrawn(), None),
        (TimeLimit(Undrawn(), 9), stepped(make("CartPole-v1"), 0)[0]),
    ]:
        (cells,) = depict(env, state, grid).shapes
        assert isinstance(cells, Cells)
        assert cells.colors[0, 0].tolist() == rgb(CHANNELS[0])
        assert cells.colors[1, 1].tolist() == rgb(PALE)
        assert len(np.unique(cells.colors.reshape(-1, 3), axis=0)) == 3


def test_gymnax_grids_are_shown() -> None:
    env = make("gymnax:Breakout-MinAtar")
    before, after = (paint(depict(env, *stepped(env, n)), SIZE) for n in (1, 3))
    assert (before != after).any()


@pytest.mark.parametrize(
    ("grid", "colors"),
    [
        (np.array([[0, 1, 2]]), [PALE, CHANNELS[0], CHANNELS[1]]),
        (np.array([[False, True]]), [PALE, CHANNELS[0]]),
        (np.array([[0.0, 1.0]]), [PALE, CHANNELS[0]]),
        (np.array([[0.0, -8.0]]), [PALE, CHANNELS[0]]),
    ],
)
def test_a_plain_grid(grid: np.ndarray, colors: list[str]) -> None:
    (cells,) = depict(Undrawn(), None, grid).shapes
    assert isinstance(cells, Cells)
    assert cells.colors[0].tolist() == [rgb(color) for color in colors]


def test_an_image_is_shown_as_it_is() -> None:
    image = np.random.default_rng(0).integers(0, 256, (40, 32, 3), np.uint8)
    (cells,) = depict(Undrawn(), None, image).shapes
    assert isinstance(cells, Cells)
    np.testing.assert_array_equal(cells.colors, image)


@pytest.mark.parametrize("env", [Undrawn(), TimeLimit(Undrawn(), 5), Masked(Undrawn(), keep=(0,))])
def test_an_environment_that_cannot_be_drawn_says_what_to_write(env: Env) -> None:
    with pytest.raises(NoDrawing, match=r"`Undrawn` has no drawing(.|\n)*def draw\(self, state\):"):
        depict(env, *stepped(env, 0))


def test_empty_pictures_are_refused() -> None:
    with pytest.raises(ValueError, match="0 x 5 pixels"):
        paint(Picture((0, 0, 1, 1), []), (0, 5))
    with pytest.raises(ValueError, match=r"\(1, 0, 0, 1\) is empty"):
        paint(Picture((1, 0, 0, 1), []), SIZE)


def test_without_pillow_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"pip install 'hocket\[video\]'"):
        paint(Picture((0, 0, 1, 1), []), SIZE)
