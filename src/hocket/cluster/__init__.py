"""What hardware there is."""

from hocket.cluster.devices import Cluster, Device, local_cluster

__all__ = ["Cluster", "Device", "local_cluster"]
