"""Pictures of environments: shapes as plain data, and how they are painted.

Coordinates are the environment's own: x points right and y points up. Colors are "#rrggbb".
"""

from __future__ import annotations

import colorsys
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw

Point: TypeAlias = tuple[float, float]
Size: TypeAlias = tuple[int, int]

BACKGROUND = "#f7f8fa"
INK = "#2e3440"
GREY = "#9aa3b2"
PALE = "#e4e8ee"
BLUE = "#3d6fb4"
ORANGE = "#e8833a"
GREEN = "#4aa271"
RED = "#d1495b"

# Colors of a grid's channels. They differ in brightness as well as hue, and stand out from PALE.
CHANNELS = (
    BLUE, ORANGE, GREEN, RED, "#8e5ea2", "#e3b23c", "#2aa8b8", "#7a5c45", "#e58fb1", "#54606f"
)  # fmt: skip

SUPERSAMPLING = 4
"""Width and height, in painted pixels, of one pixel of the result."""
CAPTION_HEIGHT = 14
IMAGE_SIDE = 32
"""A uint8 grid whose height and width are at least this large counts as an image."""


@dataclass(frozen=True)
class Stroke:
    """A path through points, with round joints and ends."""

    points: Sequence[Point]
    color: str = INK
    width: float = 0.02


@dataclass(frozen=True)
class Polygon:
    """A filled polygon, grown by `rounding` on every side, which makes its corners round."""

    points: Sequence[Point]
    color: str = INK
    rounding: float = 0.0


@dataclass(frozen=True)
class Circle:
    """A filled circle."""

    center: Point
    radius: float
    color: str = INK


@dataclass(frozen=True, eq=False)
class Cells:
    """A board of unit squares whose lower left corner is the origin.

    `colors` is uint8 `[rows, columns, 3]`. Row 0 is at the top, as in a printed array.
    """

    colors: np.ndarray


Shape: TypeAlias = Stroke | Polygon | Circle | Cells


@dataclass(frozen=True)
class Picture:
    """Shapes, painted in order, and the part of the plane to show.

    `view` is `(left, bottom, right, top)`. It is shown whole and centred; an image of another
    aspect ratio also shows what lies beside it.

        Picture(view=(-1, -1, 1, 1), shapes=[Circle((0, 0), 0.5), Stroke([(-1, 0), (1, 0)])])
    """

    view: tuple[float, float, float, float]
    shapes: Sequence[Shape]
    background: str = BACKGROUND
    caption: str = ""
    """Text for the upper left corner."""


@runtime_checkable
class Drawable(Protocol):
    """An environment that can be drawn. `state` is one of its states, as numpy arrays."""

    def draw(self, state: Any) -> Picture: ...


class NoDrawing(ValueError):
    """Raised for an environment that has no `draw` method."""


def drawn(env: Any, state: Any) -> Picture:
    """Return `env.draw(state)`, or raise `NoDrawing`. Wrappers call this with their own `env`."""
    if not isinstance(env, Drawable):
        name = type(env).__name__
        raise NoDrawing(
            f"the environment `{name}` has no drawing. Give it a method such as this (`Picture` "
            "and the shapes are in `hocket.envs`; convert numbers with `float`):\n\n"
            "    def draw(self, state):\n"
            "        return Picture((-1, -1, 1, 1), [Circle((float(state.x), 0.0), 0.1)])\n\n"
            "An environment whose observation is a grid, `[H, W]` or `[H, W, C]`, needs no `draw`, "
            "because the grid itself is shown."
        )
    return env.draw(state)


def depict(env: Any, state: Any, obs: Any) -> Picture:
    """Return the drawing of `env` in `state`, or the observation as a picture if it is a grid."""
    try:
        return drawn(env, state)
    except NoDrawing:
        if np.ndim(obs) not in (2, 3):
            raise
    return picture_of(_grid_colors(np.asarray(obs)), margin=0.25)


def picture_of(colors: np.ndarray, margin: float = 0) -> Picture:
    """Return a picture of `colors`, uint8 `[rows, columns, 3]`, with a `margin` given in cells."""
    rows, columns, _ = colors.shape
    return Picture((-margin, -margin, columns + margin, rows + margin), [Cells(colors)])


def box(left: float, bottom: float, right: float, top: float) -> list[Point]:
    """Return the corners of a rectangle."""
    return [(left, bottom), (right, bottom), (right, top), (left, top)]


def posed(points: Sequence[Point], at: Point, angle: float = 0.0) -> list[Point]:
    """Turn `points` counter-clockwise around the origin by `angle`, then move them by `at`."""
    sin, cos = math.sin(angle), math.cos(angle)
    return [(at[0] + x * cos - y * sin, at[1] + x * sin + y * cos) for x, y in points]


def paint(picture: Picture, size: Size = (480, 320)) -> np.ndarray:
    """Paint a picture as uint8 `[H, W, 3]`, for a `size` of `(W, H)` pixels.

    Needs `pip install 'hocket[video]'`.
    """
    if min(size) < 1:
        raise ValueError(
            f"a picture of {size[0]} x {size[1]} pixels is empty. Use a size such as (480, 320)."
        )
    try:
        from PIL import Image, ImageDraw
    except ImportError as error:
        raise ImportError(
            "drawing needs the package pillow. Run: pip install 'hocket[video]'"
        ) from error
    large = (size[0] * SUPERSAMPLING, size[1] * SUPERSAMPLING)
    image = Image.new("RGB", large, picture.background)
    canvas = _canvas(image, ImageDraw.Draw(image), picture)
    for shape in picture.shapes:
        _paint_shape(canvas, shape)
    if picture.caption:
        _paint_caption(canvas, picture.caption)
    return np.asarray(image.reduce(SUPERSAMPLING))


class _Canvas(NamedTuple):
    """An image being painted: the point `(x, y)` lies at the pixel `origin + scale * (x, -y)`."""

    image: Image
    draw: ImageDraw
    background: str
    origin: Point
    scale: float

    def pixel(self, point: Point) -> Point:
        x, y = point
        return self.origin[0] + self.scale * float(x), self.origin[1] - self.scale * float(y)


def _canvas(image: Image, draw: ImageDraw, picture: Picture) -> _Canvas:
    left, bottom, right, top = picture.view
    if right <= left or top <= bottom:
        raise ValueError(
            f"the view {picture.view} is empty. A view is (left, bottom, right, top) with left < "
            "right and bottom < top."
        )
    scale = min(image.width / (right - left), image.height / (top - bottom))
    x = image.width / 2 - scale * (left + right) / 2
    y = image.height / 2 + scale * (bottom + top) / 2
    return _Canvas(image, draw, picture.background, (x, y), scale)


def _paint_shape(canvas: _Canvas, shape: Shape) -> None:
    match shape:
        case Circle():
            _paint_circle(canvas, shape)
        case Stroke():
            _paint_stroke(canvas, shape)
        case Polygon():
            canvas.draw.polygon([canvas.pixel(p) for p in shape.points], shape.color)
            if shape.rounding:
                around = [*shape.points, shape.points[0]]
                _paint_stroke(canvas, Stroke(around, shape.color, 2 * shape.rounding))
        case Cells():
            _paint_cells(canvas, shape)


def _paint_circle(canvas: _Canvas, circle: Circle) -> None:
    (x, y), r = canvas.pixel(circle.center), max(1.0, canvas.scale * circle.radius)
    # Pillow includes the last pixel, hence the `- 1`.
    canvas.draw.ellipse((x - r, y - r, x + r - 1, y + r - 1), circle.color)


def _paint_stroke(canvas: _Canvas, line: Stroke) -> None:
    """Paint each segment as a polygon, because Pillow rounds line widths to whole pixels."""
    # At least one pixel of the result wide, because a thinner line would flicker as it moves.
    half = max(line.width / 2, SUPERSAMPLING / 2 / canvas.scale)
    for (x0, y0), (x1, y1) in zip(line.points, line.points[1:], strict=False):
        length, angle = math.hypot(x1 - x0, y1 - y0), math.atan2(y1 - y0, x1 - x0)
        segment = posed(box(0.0, -half, length, half), (x0, y0), angle)
        canvas.draw.polygon([canvas.pixel(p) for p in segment], line.color)
    for point in line.points:
        _paint_circle(canvas, Circle(point, half, line.color))


def _paint_cells(canvas: _Canvas, cells: Cells) -> None:
    from PIL import Image

    rows, columns, _ = cells.colors.shape
    size = (round(columns * canvas.scale), round(rows * canvas.scale))
    board = Image.fromarray(cells.colors).resize(size, Image.Resampling.NEAREST)
    left, top = canvas.pixel((0, rows))
    canvas.image.paste(board, (round(left), round(top)))
    # Lines between cells help to count them, but would hide cells of only a few pixels.
    if canvas.scale >= 8 * SUPERSAMPLING:
        upright = [[(x, 0), (x, rows)] for x in range(columns + 1)]
        level = [[(0, y), (columns, y)] for y in range(rows + 1)]
        for ends in upright + level:
            _paint_stroke(canvas, Stroke(ends, canvas.background, 0.06))


def _paint_caption(canvas: _Canvas, caption: str) -> None:
    from PIL import ImageFont

    height = SUPERSAMPLING * CAPTION_HEIGHT
    font = ImageFont.load_default(height)
    corner = (height * 0.7, height * 0.6)
    # The halo keeps the text readable on top of shapes.
    canvas.draw.text(
        corner, caption, INK, font, stroke_width=height // 10, stroke_fill=canvas.background
    )


def _grid_colors(grid: np.ndarray) -> np.ndarray:
    """Return the colors of a grid `[H, W]` or `[H, W, C]`, as uint8 `[H, W, 3]`.

    A large uint8 grid is an image, shown as it is. In another grid of integers `[H, W]`, each
    number has its own color, and zero is an empty cell. In any other grid a cell gets the color of
    its strongest channel, and the channel's value is the intensity of the color.
    """
    image = grid.dtype == np.uint8 and min(grid.shape[:2]) >= IMAGE_SIDE
    if image and (grid.ndim == 2 or grid.shape[2] in (1, 3)):
        return np.broadcast_to(grid.reshape(*grid.shape[:2], -1), (*grid.shape[:2], 3))
    if grid.ndim == 2 and not np.issubdtype(grid.dtype, np.floating):
        return _rgb([PALE, *map(_channel_color, range(int(grid.max())))])[grid.astype(int).clip(0)]
    strength = np.abs(np.nan_to_num(grid.reshape(*grid.shape[:2], -1).astype(float)))
    strength = strength / max(1.0, strength.max())
    full = _rgb([_channel_color(i) for i in range(strength.shape[-1])])[strength.argmax(-1)]
    pale, most = _rgb([PALE])[0], strength.max(-1, keepdims=True)
    return (pale + (full.astype(float) - pale) * most).round().astype(np.uint8)


def _channel_color(index: int) -> str:
    if index < len(CHANNELS):
        return CHANNELS[index]
    # Golden-ratio steps around the color wheel never give two channels the same hue.
    rgb = colorsys.hsv_to_rgb(index * 0.618 % 1, 0.6, 0.75)
    return "#" + "".join(f"{round(255 * x):02x}" for x in rgb)


def _rgb(colors: Sequence[str]) -> np.ndarray:
    """Return colors as uint8 `[len(colors), 3]`."""
    return np.array([[*bytes.fromhex(color.removeprefix("#"))] for color in colors], np.uint8)
