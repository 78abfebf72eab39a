from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hocket import fragment
from hocket.core.program.fragment import Label, exact_fragments, read_label


@fragment
def act(x: Any, *, scale: Any = 1.0) -> Any:
    return x * scale


@dataclass(frozen=True)
class Holder:
    table: Any  # an array: it has no hash

    @fragment(role="act")
    def look_up(self, index: Any) -> Any:
        return self.table[index]

    @fragment
    def outer(self, index: Any) -> Any:
        return self.look_up(index) + 1


def names(fn: Any, *args: Any) -> list[str]:
    return [e.params["name"] for e in jax.make_jaxpr(fn)(*args).eqns if e.primitive.name == "jit"]


def test_functions_take_positional_and_keyword_arguments() -> None:
    assert act(2.0) == 2.0
    assert act(2.0, scale=3.0) == 6.0
    assert act(x=2.0, scale=3.0) == 6.0
    assert names(act, 2.0) == ["hocket.act.act"]


def test_methods_bind_and_never_hash_their_owner() -> None:
    holder = Holder(jnp.arange(3.0))
    assert holder.look_up(2) == 2.0
    assert names(holder.look_up, 2) == ["hocket.act.look_up"]
    assert jax.vmap(lambda t: Holder(t).look_up(0))(jnp.ones((2, 3))).shape == (2,)


def test_role_defaults_to_the_name_else_learn() -> None:
    assert read_label("hocket.learn.outer") == Label("outer", "learn")
    assert names(Holder(jnp.ones(3)).outer, 1) == ["hocket.learn.outer"]
    assert read_label("jit_something") is None


def test_a_name_of_its_own() -> None:
    called = fragment(role="env", name="world")(lambda x: x)
    assert names(called, 1.0) == ["hocket.env.world"]


def test_unknown_role() -> None:
    with pytest.raises(ValueError, match=r"unknown role `acting` of the fragment `f`.*`act`"):

        @fragment(role="acting")
        def f(x: Any) -> Any:
            return x


def test_exact_puts_barriers_at_the_edges() -> None:
    def text() -> str:
        return str(jax.make_jaxpr(lambda x: act(x, scale=2.0))(1.0))

    with exact_fragments():
        assert text().count("optimization_barrier") == 2
    assert "optimization_barrier" not in text()


def test_gradients_and_maps_pass_through() -> None:
    assert jax.grad(lambda x: act(x, scale=x))(3.0) == 6.0
    assert (jax.vmap(act)(jnp.ones(3)) == 1).all()
