"""The digest of a program: equal for what is computed alike, whoever traced it and how."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from hocket import trace
from hocket.core.graph.digest import digest_of
from tests.toys import Toy


def test_digest_knows_what_was_closed_over() -> None:
    def made(last: float) -> str:
        class Closing(Toy):
            def seen(self, xs: Any) -> Any:
                return xs * jnp.array([[[1.0, 2.0, 3.0, last]]])

        return trace(Closing(), 8).digest

    assert made(4.0) == made(4.0) != made(5.0)


def test_digest() -> None:
    assert trace(Toy(), 8).digest == trace(Toy(), 8).digest
    assert (
        len({trace(Toy(), 8).digest, trace(Toy(), 4).digest, trace(Toy(length=2), 8).digest}) == 3
    )


def test_digest_is_of_what_is_computed_whoever_shares_a_function() -> None:
    """Two calls may or may not share one traced function, by what jax has traced before."""

    def made() -> Any:
        def twice(x: Any) -> Any:
            return x + x

        return jax.jit(twice)

    shared = made()
    one = jax.make_jaxpr(lambda x: shared(shared(x)))(1.0)
    other = jax.make_jaxpr(lambda x: made()(made()(x)))(1.0)
    assert str(one) != str(other)
    assert digest_of(one, ["x"]) == digest_of(other, ["x"]) != digest_of(other, ["y"])


def test_digest_knows_who_reads_what() -> None:
    def made(i: int, j: int) -> str:
        def program(*xs: Any) -> Any:
            ys = [x * 2 for x in xs]
            return [y * 3 for y in ys][i] + ys[j]

        return digest_of(jax.make_jaxpr(program)(*[1.0] * 5), [])

    assert len({made(i, j) for i in range(5) for j in range(5)}) == 25
