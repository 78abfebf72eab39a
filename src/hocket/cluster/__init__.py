"""What hardware there is, and how it is cut."""

from hocket.cluster.activity import GpuActivity
from hocket.cluster.devices import Cluster, Device, Link, hardware, share_cores

__all__ = ["Cluster", "Device", "GpuActivity", "Link", "hardware", "share_cores"]
