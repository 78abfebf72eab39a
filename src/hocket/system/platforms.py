"""JAX's names for the kinds of devices. All other knowledge of hardware is in `cluster`."""

HOST = "cpu"
"""The kind of device that every machine has, its own processor."""
_KINDS = {"cuda": "gpu", "rocm": "gpu"}


def kind_of(platform: str) -> str:
    """Convert the name of a JAX platform to a kind of device: `cuda` to `gpu`, `cpu` to `cpu`."""
    return _KINDS.get(platform, platform)
