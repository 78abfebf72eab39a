"""Loads rlax before the tests do: its dependencies warn on import, and warnings are errors here."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import rlax  # noqa: F401
