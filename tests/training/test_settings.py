"""The settings of a kept run, in the form in which the configuration records them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hocket.training.settings import Settings


@pytest.mark.parametrize("ship", ["code", Path("code"), ["code"], (Path("code"),)])
def test_code_to_send_is_recorded_as_text(ship: Any) -> None:
    assert Settings(ship=ship).ship == ("code",)
    assert json.dumps(Settings(ship=ship).ship) == '["code"]'
