"""Networks, as flax modules. They take any leading axes, with features last.

    networks.py    what a network is, the default networks, and a policy's beside a value's
    layers.py      layers
    recurrent.py   a memory, and networks around it

A network is anything with `init(key, obs) -> params` and `apply(params, obs)`, so you can bring
your own. These compose with flax's:

    network = linen.Sequential([nature_cnn(), Dueling(num_actions=6)])
"""

from hocket.nn.layers import ACTIVATIONS, CNN, MLP, Conv, Dueling, Flatten, LogStd
from hocket.nn.networks import Network, Separate, encoder, grid_cnn, nature_cnn, network
from hocket.nn.recurrent import GRU, Recurrent, reset_memory, scan_memory

__all__ = [
    "ACTIVATIONS",
    "CNN",
    "GRU",
    "MLP",
    "Conv",
    "Dueling",
    "Flatten",
    "LogStd",
    "Network",
    "Recurrent",
    "Separate",
    "encoder",
    "grid_cnn",
    "nature_cnn",
    "network",
    "reset_memory",
    "scan_memory",
]
