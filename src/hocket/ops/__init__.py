"""The maths of reinforcement learning: pure functions with the time axis first, and their papers.

returns.py        returns and advantages
losses.py         losses of single elements
distributions.py  distributions over actions
moments.py        running means and variances
optimizers.py     optimizers that leave the learning rate to the caller
initializers.py   orthogonal initial weights
shuffles.py       shuffles into minibatches, the same for environments split among replicas
dense.py          a small dense network as one GPU kernel
convolution.py    a convolution with a faster gradient on a CPU
elementwise.py    an elementwise function as one GPU kernel
"""

from hocket.ops.distributions import Categorical, Distribution, MultiCategorical, Normal, TanhNormal
from hocket.ops.losses import clipped_surrogate, clipped_value_loss, double_q, huber
from hocket.ops.moments import Moments, standardize
from hocket.ops.optimizers import calm_adam, clipped_adam, descend
from hocket.ops.returns import NStep, gae, lambda_returns, n_step, take_steps, vtrace
from hocket.ops.shuffles import shuffle_envs, shuffle_time, shuffle_time_each

__all__ = [
    "Categorical",
    "Distribution",
    "Moments",
    "MultiCategorical",
    "NStep",
    "Normal",
    "TanhNormal",
    "calm_adam",
    "clipped_adam",
    "clipped_surrogate",
    "clipped_value_loss",
    "descend",
    "double_q",
    "gae",
    "huber",
    "lambda_returns",
    "n_step",
    "shuffle_envs",
    "shuffle_time",
    "shuffle_time_each",
    "standardize",
    "take_steps",
    "vtrace",
]
