"""The hardware of this machine, and how devices are cut into slices.

devices.py  the devices of this machine, with ids that a plan can hold
slices/     the ways to cut a device, one file each
nvidia/     NVIDIA's libraries: driver, management, MPS, compiler
search.py   measures how a device is best cut
rates.py    the measured speed of messages between nodes
survey.py   a description of all hardware, as text or JSON
node_survey.py   a program that describes the node on which it runs
hosts_file.py    the hosts file, which lists machines that are reached by ssh
ray_nodes.py     the nodes of a Ray cluster, and the connection to it
rates.py    the rates between the nodes of a cluster, as last measured
"""

from hocket.cluster.devices import Cluster, Device, DeviceLink, Node, hardware, share_cores
from hocket.cluster.nvidia.activity import GpuActivity

__all__ = ["Cluster", "Device", "DeviceLink", "GpuActivity", "Node", "hardware", "share_cores"]
