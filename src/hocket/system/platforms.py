"""JAX's names for the kinds of devices: all that packages except `cluster` know of hardware."""

HOST = "cpu"
"""The kind of the host's own processor."""
_KINDS = {"cuda": "gpu", "rocm": "gpu"}


def kind_of(platform: str) -> str:
    """Return the kind of device for a platform that a program is lowered for: `gpu` for `cuda`."""
    return _KINDS.get(platform, platform)
