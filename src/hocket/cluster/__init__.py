"""What hardware there is."""

from hocket.cluster.devices import Cluster, Device, hardware, local_cluster, share_cores

__all__ = ["Cluster", "Device", "hardware", "local_cluster", "share_cores"]
