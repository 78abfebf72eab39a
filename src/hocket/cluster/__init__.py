"""What hardware there is, and how it is cut."""

from hocket.cluster.devices import Cluster, Device, hardware, share_cores

__all__ = ["Cluster", "Device", "hardware", "share_cores"]
