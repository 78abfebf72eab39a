"""The hardware that there is, and how it is cut.

devices.py  the devices of this machine, by ids that a plan can hold
slices/     ways to cut a device, a file each
nvidia/     the drivers of NVIDIA's GPUs, and MPS
search.py   how a device is best cut, by measurement
survey.py   all of it for a person, or as JSON
"""

from hocket.cluster.devices import Cluster, Device, DeviceLink, hardware, share_cores
from hocket.cluster.nvidia.activity import GpuActivity

__all__ = ["Cluster", "Device", "DeviceLink", "GpuActivity", "hardware", "share_cores"]
