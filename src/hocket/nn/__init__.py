"""Networks, as flax modules: any leading axes, features last.

    networks.py    what a network is, and the default networks
    layers.py      layers
    recurrent.py   a memory

A network in hocket is anything with `init(key, obs) -> params` and `apply(params, obs)`; nothing
here is needed to bring your own. They compose with flax's own:

    network = linen.Sequential([nature_cnn(), Dueling(num_actions=6)])
"""

from hocket.nn.layers import ACTIVATIONS, CNN, MLP, Conv, Dueling, Flatten, LogStd
from hocket.nn.networks import Network, encoder, grid_cnn, nature_cnn, network
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
    "encoder",
    "grid_cnn",
    "nature_cnn",
    "network",
    "reset_memory",
    "scan_memory",
]
