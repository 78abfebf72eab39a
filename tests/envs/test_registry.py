"""Environments by name, and the errors for wrong names."""

import pytest

from hocket.envs import CartPole, Catch, Quadruped, TimeLimit, make, names


def test_names_make_environments_with_gymnasiums_limits() -> None:
    assert make("CartPole-v1") == TimeLimit(CartPole(), 500)
    assert make("Catch") == Catch()
    assert {"Acrobot-v1", "CartPole-v1", "Catch", "MountainCar-v0", "Pendulum-v1"} <= {*names()}
    assert make("Quadruped-v1") == TimeLimit(Quadruped(), 1000)


def test_options_change_parameters_and_the_limit() -> None:
    assert make("CartPole-v1", gravity=1.6, max_steps=7) == TimeLimit(CartPole(gravity=1.6), 7)
    assert make("CartPole-v1", max_steps=None) == CartPole()
    assert make("Catch", max_steps=3) == TimeLimit(Catch(), 3)


def test_an_unknown_name_gets_a_suggestion_and_the_list() -> None:
    with pytest.raises(ValueError, match=r"`Cartpole-v0`.*mean `CartPole-v1`\?.*gymnax:<name>"):
        make("Cartpole-v0")


def test_an_unknown_option_gets_a_suggestion_and_the_list() -> None:
    with pytest.raises(ValueError, match=r"`gravty` of `CartPole-v1`.*mean `gravity`\?.*max_steps"):
        make("CartPole-v1", gravty=1.0)
