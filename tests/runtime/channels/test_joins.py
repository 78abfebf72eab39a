"""How parts become a value: one after another by environment, or the first of equal ones."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from hocket.core.graph.trace import ValueId
from hocket.runtime.channels.joins import FIRST, Assembly, Concat, Part, assemblies

X, Y, W = map(ValueId, (7, 3, 5))


def test_parts_of_the_environments_follow_each_other() -> None:
    whole = jnp.arange(24.0).reshape(2, 6, 2)
    parts = [whole[:, :2], whole[:, 2:3], whole[:, 3:]]
    np.testing.assert_array_equal(Concat(1)(parts), whole)


def test_a_value_that_is_here_whole_is_not_copied() -> None:
    one, other = jnp.ones(3), jnp.ones(3)
    assert Concat(0)([one]) is one
    assert FIRST([one, other]) is one


def test_each_value_is_found_in_every_message_that_has_a_part_of_it() -> None:
    """The second message has no `W`, so what follows has another number there."""
    recipes = assemblies([[X, W, Y], [X, Y]], {Y: 0, W: None, X: 2})
    assert recipes == (
        Assembly(Concat(0), (Part(0, 2), Part(1, 1))),
        Assembly(FIRST, (Part(0, 1),)),
        Assembly(Concat(2), (Part(0, 0), Part(1, 0))),
    )
