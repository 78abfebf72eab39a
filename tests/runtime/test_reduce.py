"""Which ways there are to average between processes, which is chosen, and that each gives the mean.

This file is also the program of each process.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hocket.runtime.averaging.choice
from hocket.core.plan.device_id import device_ids
from hocket.core.program.averaged import averaged, averaging
from hocket.errors import PlanError
from hocket.report.outcome import Outcome
from hocket.runtime.averaging import Members, Space
from hocket.runtime.averaging.choice import Offer, Reduction
from hocket.runtime.averaging.groups import InMemory
from hocket.runtime.averaging.known import Averaging, choices, ways
from hocket.runtime.averaging.table import choose, only
from hocket.runtime.averaging.ways import nccl
from hocket.runtime.averaging.ways.shm import OnHost
from hocket.system.native import Unavailable
from hocket.system.shared_memory import MemoryFile, pages
from hocket.training.summary import note_reductions, write_summary

SITES = [[jax.ShapeDtypeStruct((1000,), jnp.float32)], [jax.ShapeDtypeStruct((), jnp.float32)]]
TWO = [f"cpu:0/cpu:{i}of2@50%" for i in range(2)]
FOUR = [f"cpu:{d}/cpu:{i}of2@50%" for d in range(2) for i in range(2)]
APART = ["cpu:0", "cpu:1"]
MPS = [f"gpu:0/mps:{i}of2@100%" for i in range(2)]


def main(case: str, names: str, wanted: str, index: int, fd: int, nbytes: int, path: Path) -> None:
    """Run a case as one replica, and write its result to a file."""
    averaging = asked(names.split(","), wanted)
    space = Space(MemoryFile.attach(fd, nbytes), 0, nbytes)
    try:
        alone = Reduction(averaging, index, space)
        reduction = alone if not wanted else joined_alone(averaging, index, space)
        result = CASES[case](reduction, index)
    except Exception as error:  # noqa: BLE001
        result = str(error)
    path.write_bytes(pickle.dumps(result))


def asked(names: Sequence[str], wanted: str = "", *, is_exact: bool = False) -> Averaging:
    return Averaging(Members(device_ids(names)), SITES, wanted, is_exact)


def offers(averaging: Averaging, way: str, space: Space, *, is_trial: bool) -> list[Offer]:
    """Return the offers of all replicas, which this process can make for them."""
    return [
        Reduction(averaging, index, space).listen(way, is_trial=is_trial)
        for index in range(len(averaging.members))
    ]


def means(reduction: Reduction, index: int) -> Any:
    """Average a vector and a number in a loop; return both, and the number of calls."""

    def body(x: Any, _: None) -> Any:
        x = averaged(jnp.sin(x + index))
        return x, averaged(x[0] + index)

    with averaging(reduction):
        x, rows = jax.jit(lambda x: jax.lax.scan(body, x, None, 20))(jnp.arange(1000.0))
    reduction.check()
    return np.asarray(x), np.asarray(rows), reduction.counts()[0]


def trials(reduction: Reduction) -> Any:
    """Measure every way, as if all replicas had listened."""
    averaging, space = reduction._averaging, reduction._space
    assert space
    for way in averaging.choices:
        reduction.listen(way, is_trial=True)
    there = {way: offers(averaging, way, space, is_trial=True) for way in averaging.choices}
    return {way: reduction.measure(way, there[way]) for way in there}


def measured(reduction: Reduction, index: int) -> Any:
    costs, space = trials(reduction), reduction._space
    assert space
    reduction.listen("hier", is_trial=False)
    reduction.join("hier", offers(reduction._averaging, "hier", space, is_trial=False))
    return costs, means(reduction, index)


def measured_alone(reduction: Reduction, index: int) -> Any:
    """Measure alone, with a short time limit, since the other replicas never come."""
    hocket.runtime.averaging.choice.TRIAL_SECONDS = 2.0
    return trials(reduction)


def measured_and_left(reduction: Reduction, index: int) -> Any:
    """Measure alone, and close this replica meanwhile, as an interrupted run does."""
    hocket.runtime.averaging.choice.TRIAL_SECONDS = 1000.0
    threading.Timer(1.0, reduction.close).start()
    return trials(reduction)


def narrow(reduction: Reduction, index: int) -> Any:
    with averaging(reduction):
        x = jax.jit(averaged)(jnp.asarray(narrow_floats(index), jnp.bfloat16))
    return np.asarray(x.astype(jnp.float32))


def narrow_floats(index: int) -> np.ndarray:
    return np.asarray(jax.random.normal(jax.random.key(index), (1000,)))


def closed(reduction: Reduction, index: int) -> Any:
    """Average alone, and close this replica meanwhile, as a run that ends does."""
    fn = jax.jit(reduction).lower(jnp.ones(1000)).compile()
    threading.Timer(1.0, reduction.close).start()
    return fn(jnp.ones(1000))


def other_size(reduction: Reduction, index: int) -> Any:
    return jax.jit(reduction)(jnp.ones(1000 - index))


CASES: dict[str, Callable[[Reduction, int], Any]] = {
    "means": means, "measured": measured, "measured_alone": measured_alone, "closed": closed,
    "other_size": other_size, "measured_and_left": measured_and_left, "narrow": narrow,
}  # fmt: skip


class Replicas:
    """The processes of a case."""

    def __init__(
        self, case: str, names: list[str], wanted: str, folder: Path, only: tuple[int, ...] = ()
    ) -> None:
        self.file = MemoryFile.create(nbytes := asked(names, wanted).nbytes)
        self.paths = [folder / str(index) for index in only or range(len(names))]
        given = [case, ",".join(names), wanted]
        self.processes = [
            subprocess.Popen(
                [
                    sys.executable,
                    __file__,
                    *given,
                    path.name,
                    str(self.file.fd),
                    str(nbytes),
                    path,
                ],
                pass_fds=[self.file.fd],
                stdout=subprocess.PIPE,
            )
            for path in self.paths
        ]

    def results(self) -> list[Any]:
        for process in self.processes:
            process.communicate(timeout=200)
        return [pickle.loads(path.read_bytes()) for path in self.paths]


def expected(replicas: int) -> tuple[np.ndarray, np.ndarray]:
    x, rows = np.arange(1000, dtype=np.float32), []
    for _ in range(20):
        x = np.mean([np.sin(x + r) for r in range(replicas)], 0)
        rows.append(x[0] + (replicas - 1) / 2)
    return x, np.asarray(rows)


def joined_alone(averaging: Averaging, index: int, space: Space) -> Reduction:
    """Return one replica that has joined by the way that was asked for."""
    reduction, wanted = Reduction(averaging, index, space), averaging.wanted
    reduction.listen(wanted, is_trial=False)
    reduction.join(wanted, offers(averaging, wanted, space, is_trial=False))
    return reduction


@pytest.mark.parametrize(("names", "wanted"), [(FOUR, "shm"), (APART, "nccl"), (FOUR, "hier")])
def test_every_way_gives_the_mean(names: list[str], wanted: str, tmp_path: Path) -> None:
    results = Replicas("means", names, wanted, tmp_path).results()
    for one in results:
        assert not isinstance(one, str), one
        np.testing.assert_array_equal(one[0], results[0][0])  # the same bits everywhere
        np.testing.assert_array_equal(one[1], results[0][1])
        for values, right in zip(one[:2], expected(len(names)), strict=True):
            np.testing.assert_allclose(values, right, atol=1e-4)
        assert one[2] >= 40


def test_replicas_measure_every_way_and_use_the_one_they_are_told(tmp_path: Path) -> None:
    results = Replicas("measured", FOUR, "", tmp_path).results()
    for costs, (x, _, calls) in results:
        assert set(costs) == {"shm", "hier"}
        assert all(isinstance(cost, float) and cost > 0 for cost in costs.values()), costs
        np.testing.assert_allclose(x, expected(4)[0], atol=1e-4)
        assert calls >= 80, "a mean and its way back are two calls"
    table = choose(asked(FOUR), {way: [c[way] for c, *_ in results] for way in ("shm", "hier")})
    slowest = {way: max(costs[way] for costs, _ in results) for way in ("shm", "hier")}
    assert table.chosen == min(slowest, key=lambda way: slowest[way])


def test_a_measurement_without_the_others_ends(tmp_path: Path) -> None:
    (costs,) = Replicas("measured_alone", FOUR, "", tmp_path, only=(1,)).results()
    assert set(costs) == {"shm", "hier"}
    assert all("another replica has ended" in why for why in costs.values()), costs


def test_a_measurement_can_be_closed(tmp_path: Path) -> None:
    (costs,) = Replicas("measured_and_left", FOUR, "", tmp_path, only=(1,)).results()
    assert set(costs) == {"shm", "hier"}
    assert all("another replica has ended" in why for why in costs.values()), costs


def test_a_narrow_float_is_rounded_once_in_two_steps(tmp_path: Path) -> None:
    """The bits of a run do not depend on which way was the faster."""
    parts = [jnp.asarray(narrow_floats(i), jnp.bfloat16).astype(jnp.float32) for i in range(4)]
    mean = jnp.mean(jnp.stack(parts), 0).astype(jnp.bfloat16).astype(jnp.float32)
    for rounded in Replicas("narrow", FOUR, "hier", tmp_path).results():
        np.testing.assert_array_equal(rounded, mean)


def test_a_leader_without_a_second_step_keeps_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    averaging, closed = asked(FOUR, "hier"), list[OnHost]()
    space = Space(MemoryFile.create(averaging.nbytes), 0, averaging.nbytes)

    def refused() -> Any:
        raise Unavailable("there is no NCCL")

    monkeypatch.setattr(nccl.AVERAGE, "listen", lambda *_: InMemory(refused))
    monkeypatch.setattr(OnHost, "close", lambda joined: closed.append(joined))
    with pytest.raises(PlanError, match="there is no NCCL"):
        joined_alone(averaging, 0, space)
    assert len(closed) == 1


@pytest.mark.parametrize("text", ["1m", "0", "-3", "inf", "nan"])
def test_how_long_a_replica_waits_is_a_number(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_REDUCE_SECONDS", text)
    with pytest.raises(PlanError, match=f"HOCKET_REDUCE_SECONDS={text}: use a number"):
        _ = asked(MPS).nbytes


@pytest.mark.parametrize(("names", "wanted"), [(FOUR, "shm"), (FOUR, "hier")])
def test_close_ends_the_waits_of_all_steps(names: list[str], wanted: str, tmp_path: Path) -> None:
    """Replicas 0 and 1 of one device wait for the leader of the other, and for their own."""
    replicas = Replicas("closed", names, wanted, tmp_path, only=(0, 1))
    for error in replicas.results():
        assert "another replica has ended" in error


def test_other_sizes_are_an_error_in_both_steps(tmp_path: Path) -> None:
    replicas = Replicas("other_size", FOUR, "hier", tmp_path)
    errors = replicas.results()
    assert all("the replicas run different programs" in error for error in errors), errors


@pytest.mark.parametrize(
    ("names", "wanted", "why"),
    [
        (TWO, "ipc", "it is for a GPU, and these replicas are on a CPU"),
        (["gpu:0", "gpu:0"], "ipc", "run at the same time, as slices cut by `mps`"),
        (["gpu:0/shared:0of2@50%"] * 2, "ipc", "run at the same time, as slices cut by `mps`"),
        ([*MPS, "gpu:1/mps:0of1@100%"], "ipc", "for one GPU, and these replicas are on 2"),
        ([f"gpu:0/mps:{i}of17@5%" for i in range(17)], "ipc", "most 16 replicas, and these are 17"),
        (TWO, "nccl", "one process a device, and these are 2 replicas on 1"),
        (MPS, "nccl", "one process a device, and these are 2 replicas on 1"),
        (TWO, "hier", "all replicas are on one device"),
        (APART, "hier", "every replica has a device of its own"),
        ([*FOUR, "cpu:2"], "hier", "must have equally many replicas, and they have 2, 2, 1"),
    ],
)
def test_a_way_that_cannot_be_had_is_refused_by_name(
    names: list[str], wanted: str, why: str
) -> None:
    with pytest.raises(PlanError, match=f"cannot use `{wanted}` here: .*{why}"):
        choices(Members(device_ids(names)), wanted)


@pytest.mark.parametrize(
    ("names", "tried"),
    [
        (TWO, ["shm"]),
        (APART, ["shm"]),
        (FOUR, ["shm", "hier"]),
        (MPS, ["shm", "ipc"]),
        (["gpu:0", "gpu:1"], ["shm", "nccl"]),
        ([f"gpu:{d}/mps:{i}of2@100%" for d in range(2) for i in range(2)], ["shm", "hier"]),
    ],
)
def test_what_is_worth_measuring(names: list[str], tried: list[str]) -> None:
    assert choices(Members(device_ids(names))) == tried


def test_replicas_that_name_no_device_go_through_the_host() -> None:
    assert choices(Members((None, None))) == ["shm"]


def test_ways_have_an_order_of_their_own() -> None:
    assert list(ways()) == ["shm", "ipc", "nccl", "hier"]
    assert [name for name, way in ways().items() if way.name != name] == []


def test_exact_has_no_clock_choose() -> None:
    for names in (FOUR, MPS, ["gpu:0", "gpu:1"]):
        assert asked(names, is_exact=True).choices == ("shm",)
    assert asked(FOUR, "hier", is_exact=True).choices == ("hier",)
    table = only(asked(FOUR, is_exact=True))
    assert table and table.chosen == "shm" and "with exact=True no clock chooses" in str(table)


@pytest.mark.parametrize("names", [TWO, APART, FOUR, MPS])
def test_without_memory_that_all_share_no_way_of_ours_goes(names: list[str]) -> None:
    members = replace(Members(device_ids(names)), shares_memory=False)
    with pytest.raises(PlanError, match=r"no way to average between these .*here they share none"):
        choices(members)
    with pytest.raises(PlanError, match=r"cannot use `shm` here: .*they share none"):
        choices(members, "shm")


def test_a_delay_is_refused_by_who_cannot_add_one() -> None:
    members = replace(Members(device_ids(("gpu:0", "gpu:1"))), delay=0.1)
    assert choices(members) == ["shm"]
    with pytest.raises(PlanError, match="cannot use `nccl` here: it cannot make a mean take"):
        choices(members, "nccl")
    four = tuple(f"gpu:{d}/mps:{i}of2@100%" for d in range(2) for i in range(2))
    with pytest.raises(PlanError, match="one of its steps uses `nccl`: it cannot make a mean"):
        choices(replace(Members(device_ids(four)), delay=0.1), "hier")


def test_who_cannot_listen_is_told_to_all() -> None:
    """In a trial the next way follows. If the way was asked for by name, the run ends."""
    averaging = asked(TWO, "shm")
    space = Space(MemoryFile.create(averaging.nbytes), 0, averaging.nbytes)
    reduction = Reduction(averaging, 0, space)
    mine = reduction.listen("shm", is_trial=False)
    there = [mine, Offer(why_not="there is no memory")]
    assert reduction.measure("shm", there) == "there is no memory (in replica 1)"
    reduction.listen("shm", is_trial=False)
    with pytest.raises(PlanError, match=r"cannot use `shm` here: there is no memory \(in replica"):
        reduction.join("shm", there)


def test_the_cheapest_way_of_the_slowest_replica_is_chosen() -> None:
    table = choose(asked(MPS), {"shm": [3e-4, 2e-4], "ipc": [1e-5, 9e-4]})
    assert table.chosen == "shm"
    assert {row.way: row.seconds for row in table.rows} == {
        "shm": 3e-4, "ipc": 9e-4, "nccl": None, "hier": None,
    }  # fmt: skip
    table = choose(asked(MPS), {"shm": [3e-4, 2e-4], "ipc": [1e-5, 2e-5]})
    assert table.chosen == "ipc" and table.sentence.endswith(
        "`ipc` in 20 us a call, against `shm` 300 us"
    )
    lines = str(table).splitlines()
    assert lines[2].startswith("> ipc") and "20 us" in lines[2] and "MiB/s" in lines[2]
    assert "one process a device" in lines[3] and "on one device" in lines[4]


def test_a_way_that_fails_in_one_replica_is_not_chosen() -> None:
    table = choose(asked(MPS), {"shm": [3e-4, 2e-4], "ipc": [1e-5, "no NVRTC"]})
    assert table.chosen == "shm"
    assert next(row.note for row in table.rows if row.way == "ipc") == "no NVRTC (replica 1)"
    with pytest.raises(PlanError, match=r"no way to average works .*`shm`: a \(replica 0\)"):
        choose(asked(MPS), {"shm": ["a"] * 2, "ipc": ["b"] * 2})


def test_with_one_way_nothing_is_measured() -> None:
    table = only(asked(TWO))
    assert table and table.chosen == "shm" and not table.was_measured
    assert "not measured: the only way here" in str(table)
    assert only(asked(FOUR)) is None
    wanted = only(asked(FOUR, "hier"))
    assert wanted and wanted.chosen == "hier" and "`hier` was asked for" in wanted.rows[0].note


def test_a_run_says_what_was_chosen_and_keeps_the_table(tmp_path: Path) -> None:
    table = choose(asked(MPS), {"shm": [3e-4] * 2, "ipc": [1e-5] * 2})
    outcome = Outcome(tmp_path, "ppo", 1, 100, return_means=[1.0])
    for _ in range(2):  # every report has it, but it is noted once
        note_reductions(outcome, {"slice": table})
    assert outcome.notes == [f"slice: {table.sentence}"] and "`ipc` in 10 us" in outcome.notes[0]
    write_summary(outcome, 0)
    kept = json.loads((tmp_path / "summary.json").read_text())["reductions"]["slice"]
    assert kept["chosen"] == "ipc" and kept["rows"][1]["seconds"] == 1e-5
    alone = Outcome(tmp_path, "ppo", 1, 100)
    unmeasured = only(asked(TWO))
    assert unmeasured
    note_reductions(alone, {"slice": unmeasured})
    assert alone.notes == [] and alone.reductions["slice"]["chosen"] == "shm"


def test_the_memory_of_ways_begins_at_pages_and_is_nobody_elses() -> None:
    """A GPU can map only whole pages, and a trial must leave the memory of the way in use zero."""
    for names in (MPS, FOUR):
        averaging = asked(names)
        whole = Space(MemoryFile.create(averaging.nbytes), 0, averaging.nbytes)
        for used in averaging.choices:
            given = [
                averaging.part(used, whole, is_trial=False),
                *(averaging.part(way, whole, is_trial=True) for way in averaging.choices),
            ]
            end = 0
            for space in given:
                assert space and space.offset >= end and space.offset == pages(space.offset)
                end = space.offset + space.nbytes
            assert end <= averaging.nbytes


if __name__ == "__main__":
    case, names, wanted, index, fd, nbytes, path = sys.argv[1:]
    main(case, names, wanted, int(index), int(fd), int(nbytes), Path(path))
