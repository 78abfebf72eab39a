"""How JAX names the kinds of devices: the one table that those have who may know of no hardware."""

HOST = "cpu"
"""The kind of the host's own processor, which every machine has."""
_KINDS = {"cuda": "gpu", "rocm": "gpu"}


def kind_of(platform: str) -> str:
    """The kind of device that a program is lowered for: `gpu` for `cuda`."""
    return _KINDS.get(platform, platform)
