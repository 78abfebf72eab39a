"""Questions to an NVIDIA driver, here one with the structures of the real one (`driver.c`)."""

from __future__ import annotations

from typing import Any

from tests.cluster.driver import GPUS, MIGS, on_gpus

BEGIN = """
import json, os, subprocess, sys
from contextlib import closing
from hocket.cluster import Device, GpuActivity; from hocket.cluster.nvidia import nvml
from hocket.cluster.nvidia.cuda import gpu_uuid, instance_uuid, multiprocessors
from hocket.cluster.slices import Slices, changed, slice_backends, split
from hocket.core.plan.device_id import DeviceId
from hocket.errors import PlanError

one, other = (Device(DeviceId("gpu", i), "NVIDIA H200") for i in range(2))

def tell(*answers):
    print(json.dumps(answers))

def refusal(*arguments):
    try:
        split(*arguments)
    except PlanError as error:
        return str(error)
"""


def answers(code: str, machine: str = "", **environment: str) -> Any:
    return on_gpus(BEGIN + code, machine, **environment)


def test_gpus_are_known_by_their_uuid() -> None:
    """Whichever of them CUDA_VISIBLE_DEVICES shows to this process."""
    asked = "tell(gpu_uuid(0), gpu_uuid(1), gpu_uuid(2), multiprocessors(0), instance_uuid(0))"
    assert answers(asked) == [*GPUS, None, 132, None]
    assert answers(asked, CUDA_VISIBLE_DEVICES=GPUS[1]) == [GPUS[1], None, None, 132, None]
    assert answers(asked, CUDA_VISIBLE_DEVICES=MIGS[1]) == [GPUS[0], None, None, 132, MIGS[1]]


def test_what_the_driver_says() -> None:
    gpu, version, free, link = answers("""
uuid = gpu_uuid(0)
tell(vars(nvml.gpu(uuid)), nvml.driver_version(), nvml.free_part(uuid),
     nvml.link(uuid, gpu_uuid(1)))
""")
    assert gpu == {
        "uuid": GPUS[0], "name": "NVIDIA H200", "memory": 150754820096, "used": 37688705024,
        "compute_mode": "default", "mig": False,
    }  # fmt: skip
    assert version == "580.159.03" and free == 0.75 and link == "NVLink"
    assert answers("tell(nvml.link(gpu_uuid(0), gpu_uuid(1)))", "pcie") == ["one NUMA node"]


def test_how_busy_a_gpu_was() -> None:
    """A counter that the driver lacks is left out. A GPU without any says so."""
    code = """
with GpuActivity("gpu:0") as activity:
    pass
tell(activity.report(), activity.why, str(activity))
"""
    numbers = {"sm_active": 20.0, "sm_occupancy": 31.0, "dram": 103.0, "fp32": 124.0}
    assert answers(code)[:2] == [numbers, ""]
    assert answers(code, "old")[:2] == [
        {},
        "NVIDIA H200 has no GPM counters: they need Hopper or newer.",
    ]
    why = "gpu:0 is no GPU that the CUDA driver knows."
    assert answers(code, CUDA_VISIBLE_DEVICES="") == [{}, why, f"unknown: {why}"]


def test_without_a_driver_nothing_fails() -> None:
    from hocket.cluster import GpuActivity

    with GpuActivity("gpu:0") as activity:
        pass
    assert activity.report() == {} and "unknown: " in str(activity)


def test_mig_instances_are_found_and_never_made() -> None:
    names, envs, few, shares, why = answers(
        """
parts = split(one, 2, None, "mig")
with closing(Slices(part.id for part in parts)) as slices:
    envs = [slices.env(part.id) for part in parts]
tell([str(part) for part in parts], envs, refusal(one, 3, None, "mig"),
     refusal(one, 2, 50, "mig"), refusal(one, 2, None, "mps"))
""",
        "mig",
    )
    assert names == ["gpu:0/mig:0of2@100%", "gpu:0/mig:1of2@100%"]
    assert [env["CUDA_VISIBLE_DEVICES"] for env in envs] == [*MIGS]
    assert "was to be cut into 3 slices, but has 2 MIG instances: NVIDIA H200 MIG 3g.71gb" in few
    assert "is fixed, so it cannot be 50 %" in shares
    assert "it is cut into MIG instances: use `cut=mig`." in why
    (off,) = answers('tell(slice_backends()["mig"].probe(one))')
    assert "gpu:0 has no MIG instances, and hocket makes none. An administrator can" in off
    assert "nvidia-smi mig -lgip" in off


def test_a_compute_mode_that_forbids_it_is_told() -> None:
    mps, shared = answers(
        'tell(refusal(one, 2, None, "mps"), refusal(one, 2, None, "shared"))', "exclusive"
    )
    for said in (mps, shared):
        assert "its compute mode is `exclusive process`, which hocket never changes" in said


def test_each_whole_gpu_has_a_process_that_sees_no_other() -> None:
    envs, right, wrong, on_mig = answers("""
(first,), (second,) = split(one, 1), split(other, 1)
whole = slice_backends()["whole"].open([first, second])
seen = {"device": "gpu:0", "uuid": gpu_uuid(1), "instance": None}
mig = {"device": "gpu:0", "uuid": gpu_uuid(0), "instance": "MIG-1"}
tell([whole.env(part) for part in (first, second)], whole.verify(second, seen),
     whole.verify(first, seen), whole.verify(first, mig))
""")
    assert envs == [{"CUDA_VISIBLE_DEVICES": uuid} for uuid in GPUS]
    assert right == on_mig == ""
    assert wrong == f"its process is on {GPUS[1]}, not on {GPUS[0]}."
    asked = """
(part,) = split(one, 1)
tell(slice_backends()["whole"].open([part]).env(part))
"""
    for only in (GPUS[1], MIGS[1]):  # which the slice's process sees as this one does
        assert answers(asked, CUDA_VISIBLE_DEVICES=only) == [{}]


def test_processes_that_take_turns() -> None:
    (env,) = answers("""
os.environ["CUDA_MPS_PIPE_DIRECTORY"] = "/somebody/elses"
parts = split(other, 3, None, "shared")
tell(Slices(part.id for part in parts).env(parts[2].id))
""")
    assert env == {
        "CUDA_MPS_PIPE_DIRECTORY": None, "CUDA_VISIBLE_DEVICES": GPUS[1],
        "XLA_PYTHON_CLIENT_MEM_FRACTION": None, "XLA_CLIENT_MEM_FRACTION": "0.2250",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }  # fmt: skip


SEE = """
import json, os, sys
from hocket.cluster.nvidia.cuda import gpu_uuid, multiprocessors
seen = {"pid": os.getpid(), "uuid": gpu_uuid(0), "multiprocessors": multiprocessors(0)}
print(json.dumps(seen), flush=True)
sys.stdin.read()
"""


def test_slices_under_mps_are_verified() -> None:
    """Four processes on two GPUs use one daemon. A process that was not told is found out."""
    envs, seen, limited, wide, whole, untold = answers(
        f"SEE = {SEE!r}"
        + """
def start(env):
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    child = subprocess.Popen([sys.executable, "-c", SEE], env=changed(os.environ, env), **pipes)
    return child, json.loads(child.stdout.readline())

def verify(slices, name, seen):
    try:
        slices.verify(name, seen)
    except PlanError as error:
        return str(error)
    return ""

def end(children):
    for child, _ in children:
        child.communicate()

os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = "0.6"
parts = [part.id for gpu in (one, other) for part in split(gpu, 2, 25)]
with closing(Slices(parts)) as slices:
    envs = [slices.env(name) for name in parts]
    children = [start(env) for env in envs]
    limited = [verify(slices, name, seen) for name, (_, seen) in zip(parts, children)]
    seen = {str(device): x for device, x in slices.seen.items()}
    children.append(start({**envs[0], "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": None}))
    wide = verify(slices, parts[0], children[-1][1])
    end(children)
parts = [part.id for part in split(one, 2)]
with closing(Slices(parts)) as slices:
    children = [start(slices.env(parts[0]))]
    whole = verify(slices, parts[0], children[0][1])
    children.append(start({"CUDA_VISIBLE_DEVICES": gpu_uuid(0)}))
    untold = verify(slices, parts[1], children[1][1])
    end(children)
tell(envs, seen, limited, wide, whole, untold)
"""
    )
    assert len({env["CUDA_MPS_PIPE_DIRECTORY"] for env in envs}) == 1
    assert [env["CUDA_VISIBLE_DEVICES"] for env in envs] == [GPUS[0], GPUS[0], GPUS[1], GPUS[1]]
    assert {env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] for env in envs} == {"25"}
    assert {env["XLA_CLIENT_MEM_FRACTION"] for env in envs} == {"0.3000"}
    assert {env["XLA_PYTHON_CLIENT_MEM_FRACTION"] for env in envs} == {None}
    assert limited == [""] * 4 and len(seen) == 4
    assert all(s["verified"] and s["multiprocessors"] == 33 for s in seen.values())
    assert "sees 132 of 132 multiprocessors" in wide  # a client, but without its share
    assert whole == ""  # a client with all multiprocessors, as it should be
    assert "was not set up as planned: its process" in untold
    assert "sees 132 of 132 multiprocessors, and the MPS server has the clients [" in untold
