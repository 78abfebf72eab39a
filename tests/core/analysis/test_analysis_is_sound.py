"""A property: every random program that is accepted for replicas agrees with the fused program."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from hypothesis import HealthCheck, Phase, assume, event, given, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import Mesh

from hocket import Place, Plan, PlanError, Policy, averaged, fragment, trace
from hocket.core.plan import checks
from hocket.core.plan.checks import check
from hocket.runtime.instance.replicas import map_replicas, stack, unstack
from hocket.testing import difference

NUM_ENVS = 8  # 4 in a replica, 16 in the twin trace; no other axis has such a size
STEPS, FEATURES = 5, 3


class State(NamedTuple):
    x: Any  # [N, 3]
    w: Any  # [3]
    keys: Any  # [N]
    key: Any  # []


def _halved(x: Any, least: Any) -> Any:
    """Return `x`, halved until it is small."""
    return lax.while_loop(lambda x: jnp.abs(x).sum() > 0.5 * least, lambda x: x / 2, x)


def _solved(matrix: Any, x: Any) -> Any:
    matrix = jnp.tril(matrix) + 2 * jnp.eye(FEATURES)
    return lax.linalg.triangular_solve(matrix, x, left_side=True, lower=True)


Operation = Callable[[State, Any, Any, int], Any]

OPERATIONS: dict[str, Operation] = {
    "add": lambda s, a, b, k: a + b,
    "sub": lambda s, a, b, k: a - b,
    "mul": lambda s, a, b, k: a * b,
    "div": lambda s, a, b, k: a / (1.0 + b * b),
    "tanh": lambda s, a, b, k: jnp.tanh(a),
    "square": lambda s, a, b, k: jnp.square(a),
    "mean": lambda s, a, b, k: a.mean(k % a.ndim),
    "mean of all": lambda s, a, b, k: a.mean(),
    "sum": lambda s, a, b, k: a.sum(k % a.ndim),
    "var": lambda s, a, b, k: a.var(k % a.ndim),
    "max": lambda s, a, b, k: a.max(k % a.ndim),
    "averaged": lambda s, a, b, k: averaged(a),
    "averaged mean": lambda s, a, b, k: averaged(a.mean(k % a.ndim)),
    "averaged mean of all": lambda s, a, b, k: averaged(a.mean()),
    "averaged mean of leading": lambda s, a, b, k: averaged(a.mean(tuple(range(a.ndim - 1)))),
    "centred": lambda s, a, b, k: a - averaged(a.mean()),
    "gradient": lambda s, a, b, k: jax.grad(lambda w: jnp.square(jnp.tanh(a @ w)).mean())(s.w),
    "transpose": lambda s, a, b, k: a.T,
    "flatten": lambda s, a, b, k: a.reshape(-1),
    "merge": lambda s, a, b, k: a.reshape(-1, a.shape[-1]),
    "cut": lambda s, a, b, k: a.reshape(*a.shape[:k], -1, 2, *a.shape[k + 1 :]),
    "first": lambda s, a, b, k: jnp.take(a, 0, k % a.ndim),
    "reverse": lambda s, a, b, k: jnp.flip(a, k % a.ndim),
    "cumsum": lambda s, a, b, k: jnp.cumsum(a, k % a.ndim),
    "sort": lambda s, a, b, k: jnp.sort(a, k % a.ndim),
    "stack": lambda s, a, b, k: jnp.stack([a, b], k % (a.ndim + 1)),
    "concatenate": lambda s, a, b, k: jnp.concatenate([a, b], k % a.ndim),
    "repeat": lambda s, a, b, k: jnp.broadcast_to(a, (STEPS, *a.shape)),
    "where": lambda s, a, b, k: jnp.where(a > 0, b, a),
    "matmul": lambda s, a, b, k: a @ b,
    "outer": lambda s, a, b, k: a[..., None] * jnp.ones((1,) * a.ndim + (2,)),
    "permute": lambda s, a, b, k: jax.random.permutation(s.key, a, axis=k % a.ndim),
    "roll": lambda s, a, b, k: jnp.roll(a, 1, k % a.ndim),
    "number": lambda s, a, b, k: a + jnp.arange(a.shape[0]).reshape(-1, *[1] * (a.ndim - 1)),
    "shared noise": lambda s, a, b, k: a + jax.random.normal(s.key, a.shape),
    "own noise": lambda s, a, b, k: jax.vmap(lambda q: jax.random.normal(q, (3,)))(s.keys),
    "zeros": lambda s, a, b, k: jnp.zeros_like(a),
    "pick": lambda s, a, b, k: jnp.take_along_axis(a, (b > 0).astype(int), k % a.ndim),
    "write": lambda s, a, b, k: a.at[..., 0].set(b[..., 0]),
    "add up": lambda s, a, b, k: jnp.zeros_like(s.w).at[(a > 0).astype(int)].add(a),
    "scan": lambda s, a, b, k: lax.scan(lambda c, r: (c + r, c * r), a[0], a)[1],
    "sum up": lambda s, a, b, k: lax.scan(lambda c, r: (c + r.mean(), None), 0.0, a)[0],
    "size": lambda s, a, b, k: a / min(s.x.shape[0], 8),
    "over size": lambda s, a, b, k: a.sum() / s.x.shape[0],
    "cut to size": lambda s, a, b, k: jnp.tile(s.w, 9)[: s.x.shape[0]],
    "top": lambda s, a, b, k: lax.top_k(a, 2)[0],
    "whole numbers": lambda s, a, b, k: lax.div((9 * a).astype(int).sum(), s.x.shape[0]) * 1.0,
    "averaged over size": lambda s, a, b, k: averaged(a.sum() / s.x.shape[0]),
    "branch": lambda s, a, b, k: lax.cond(s.w[0] > 0, lambda: a, lambda: b.reshape(a.shape)),
    "each until": lambda s, a, b, k: jax.vmap(lambda x, y: _halved(x, jnp.abs(y).sum()))(a, b),
    "until all": lambda s, a, b, k: _halved(a, jnp.abs(b).mean()),
    "multiply into": lambda s, a, b, k: a.at[..., jnp.array([k, 0])].multiply(b[..., :2]),
    "multiply up": lambda s, a, b, k: jnp.ones_like(s.w).at[(a > 0).astype(int)].multiply(a),
    "solve": lambda s, a, b, k: _solved(a[..., :, None] * b[..., None, :], a[..., None])[..., 0],
    "local branch": lambda s, a, b, k: lax.cond(a.mean() > 0, lambda: b, lambda: -b),
}  # fmt: skip

Instruction = tuple[str, int, int, int]


@dataclass(frozen=True)
class Random:
    """An algorithm whose step is a drawn list of operations on a growing pool of values."""

    program: tuple[Instruction, ...]
    env_steps: int = 1
    num_envs: int = NUM_ENVS

    def init(self, key: Any, num_envs: int) -> State:
        k_x, k_w, k_envs, key = jax.random.split(key, 4)
        x, w = jax.random.normal(k_x, (num_envs, FEATURES)), jax.random.normal(k_w, (FEATURES,))
        return State(x, w, jax.random.split(k_envs, num_envs), key)

    @fragment(role="learn")
    def everything(self, state: State) -> tuple[State, dict[str, Any]]:
        time = jnp.sin(jnp.arange(STEPS, dtype=jnp.float32))
        pool = [state.x, state.w, state.x[None] * time[:, None, None]]
        for name, i, j, k in self.program:
            try:
                pool.append(OPERATIONS[name](state, pool[i % len(pool)], pool[j % len(pool)], k))
            except (TypeError, ValueError, IndexError, ZeroDivisionError):
                continue  # the shapes do not fit
        x = [v for v in pool if v.shape == state.x.shape][-1]
        w = [v for v in pool if v.shape == state.w.shape][-1]
        keys = jax.vmap(lambda k: jax.random.split(k)[0])(state.keys)
        state = State(jnp.tanh(x), jnp.tanh(w), keys, jax.random.split(state.key)[0])
        return state, {"last": jnp.tanh(pool[-1])}

    def step(self, state: State) -> tuple[State, dict[str, Any]]:
        return self.everything(state)

    def policy(self, state: State, explore: bool = False) -> Policy:
        return Policy(lambda obs, memory, key: (obs, memory))


INSTRUCTIONS = st.tuples(
    st.sampled_from(list(OPERATIONS)), st.integers(0, 9), st.integers(0, 9), st.integers(0, 2)
)


@settings(
    max_examples=int(os.environ.get("HOCKET_EXAMPLES", "60")),
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
@given(st.lists(INSTRUCTIONS, min_size=1, max_size=6).map(tuple))
def test_whatever_is_accepted_agrees_with_fused(program: tuple[Instruction, ...]) -> None:
    try:
        plan = replicated(program)
    except PlanError:
        event("refused")
        assume(False)
        return
    event("accepted")
    assert disagreement(plan) < 1e-4


def replicated(program: tuple[Instruction, ...]) -> Plan:
    place = Place("all", run=("learn",), replicas=2)
    return check(Plan(trace(Random(program), NUM_ENVS), (place,)))


def disagreement(plan: Plan) -> float:
    """Return how far two iterations in replicas are from fused ones, metrics included."""
    graph, mesh = plan.graph, Mesh(jax.devices()[:1], ("devices",))
    step = map_replicas(plan, mesh)
    with jax.disable_jit():  # compiling random programs would take all the time
        fused = graph.algorithm.init(jax.random.key(1), NUM_ENVS)
        rows = stack(plan, "all", fused)
        worst = 0.0
        for _ in range(2):
            fused, expected = graph.algorithm.step(fused)
            rows, metrics = step(rows)
            both = (unstack(plan, rows), metrics), (fused, expected)
            worst = max(worst, difference(*both))
    return worst


WRONG: dict[str, tuple[Instruction, ...]] = {
    "a local mean": (("mean of all", 0, 0, 0), ("sub", 0, 3, 0)),
    "a local variance, averaged": (("var", 0, 0, 0), ("averaged", 3, 0, 0)),
    "environments in another order": (("reverse", 0, 0, 0),),
    "numbered environments": (("number", 0, 0, 0),),
    "noise from one key": (("shared noise", 0, 0, 0),),
    "running sums over environments": (("cumsum", 0, 0, 0),),
    "a loop that goes on as long for all": (("until all", 0, 0, 0),),
    "a product over environments": (("multiply up", 0, 0, 0),),
    "flattened and cut the other way": (("flatten", 2, 0, 0), ("cut", 3, 0, 0), ("mean", 4, 0, 0)),
}


RIGHT: dict[str, tuple[Instruction, ...]] = {
    "each for as long as it needs": (("each until", 0, 0, 0),),
    "a system for each": (("solve", 0, 0, 0),),
    "a factor for some of each": (("multiply into", 0, 0, 1),),
}


def test_what_robots_are_made_of_is_accepted() -> None:
    for program in RIGHT.values():
        assert disagreement(replicated(program)) < 1e-5


def test_the_property_can_fail(monkeypatch: Any) -> None:
    """Without the analysis these run as replicas and disagree, so the test above can fail."""
    monkeypatch.setattr(checks, "_check_replicas", lambda plan, place: None)
    for name in ("environments in another order", "numbered environments", "noise from one key"):
        assert disagreement(replicated(WRONG[name])) > 1e-2


def test_wrong_programs_are_refused() -> None:
    accepted = []
    for name, program in WRONG.items():
        try:
            replicated(program)
        except PlanError:
            continue
        accepted.append(name)
    assert not accepted
