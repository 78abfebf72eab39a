"""Networks, as flax modules. They take any leading axes, with features last.

    networks.py    the protocol of networks, the default ones, and a separate policy and value
    layers.py      layers
    recurrent.py   a recurrent core, and networks around it

A network is anything with `init(key, obs) -> params` and `apply(params, obs)`, so you can bring
your own. The modules here compose with modules of flax:

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
