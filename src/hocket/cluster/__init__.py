"""The hardware that there is, and how it is cut."""

from hocket.cluster.devices import Cluster, Device, Link, hardware, share_cores
from hocket.cluster.nvidia.activity import GpuActivity

__all__ = ["Cluster", "Device", "GpuActivity", "Link", "hardware", "share_cores"]
