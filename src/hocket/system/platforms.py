"""JAX's names for the kinds of devices. All other knowledge of hardware is in `cluster`."""

HOST = "cpu"
"""The kind of device that every machine has, its own processor."""
_KINDS = {"cuda": "gpu", "rocm": "gpu"}


def kind_of(platform: str) -> str:
    """Return the kind of device of a platform for which JAX lowers programs: `gpu` for `cuda`."""
    return _KINDS.get(platform, platform)
