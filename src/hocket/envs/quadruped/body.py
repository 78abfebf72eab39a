"""The quadruped's body: one table of numbers, for our physics and for a MuJoCo model."""

from __future__ import annotations

import math
from dataclasses import dataclass

NUM_LEGS = 4


@dataclass(frozen=True)
class Body:
    """A ball on four legs. A leg is a thigh, level with the ball, and a shin, bent at the knee.

    The hip turns the leg around the torso's vertical axis, and the knee turns the shin up and down.
    Lengths are in metres, masses in kilograms, angles in radians. Only the feet touch the ground.
    """

    torso_mass: float = 4.0
    torso_radius: float = 0.2
    hip_distance: float = 0.2
    """Distance from the torso's centre to each hip."""
    thigh_mass: float = 0.4
    thigh_length: float = 0.3
    shin_mass: float = 0.3
    shin_length: float = 0.5
    leg_radius: float = 0.06
    """Radius of thighs, shins and feet."""
    hip_range: tuple[float, float] = (-0.6, 0.6)
    knee_range: tuple[float, float] = (0.5, 1.8)
    armature: float = 0.05
    """Inertia that a motor's rotor adds to its joint."""
    damping: float = 0.2
    """Torque against a joint's motion, per radian per second of its speed."""
    torque: float = 20.0
    """Maximum torque of a motor."""
    gravity: float = 9.81
    friction: float = 1.0
    timestep: float = 0.01
    settling: float = 0.02
    """Time constant in seconds for pushing feet out of the ground and joints back into their range.
    It is the first number of MuJoCo's `solref`. The second, the damping ratio, is 1."""
    hardness: float = 0.9
    """How strictly to enforce constraints, from 0 (not at all) to 1 (fully): MuJoCo's `solimp`."""

    @property
    def spring(self) -> tuple[float, float]:
        """Stiffness and damping of the constraints."""
        return 1 / (self.hardness * self.settling**2), 2 / (self.hardness * self.settling)

    @property
    def torso_inertia(self) -> float:
        return 0.4 * self.torso_mass * self.torso_radius**2

    @property
    def thigh_inertia(self) -> tuple[float, float]:
        """Moments of inertia around the thigh's long axis, and around an axis across it."""
        return _cylinder(self.thigh_mass, self.thigh_length, self.leg_radius)

    @property
    def shin_inertia(self) -> tuple[float, float]:
        """Moments of inertia around the shin's long axis, and around an axis across it."""
        return _cylinder(self.shin_mass, self.shin_length, self.leg_radius)


def _cylinder(mass: float, length: float, radius: float) -> tuple[float, float]:
    return mass * radius**2 / 2, mass * (length**2 / 12 + radius**2 / 4)


def mjcf(body: Body) -> str:
    """Return the body as a MuJoCo model, with joints in our order: each hip, then its knee."""
    legs = "".join(_leg(body, i, math.tau * (i + 0.5) / NUM_LEGS) for i in range(NUM_LEGS))
    motors = "".join(
        f'<motor joint="{joint}{i}" gear="{body.torque}" ctrllimited="true" ctrlrange="-1 1"/>'
        for i in range(NUM_LEGS)
        for joint in ("hip", "knee")
    )
    inertia = body.torso_inertia
    solref, solimp = f"{body.settling} 1", f"{body.hardness} {body.hardness} 0.001 0.5 2"
    return f"""
<mujoco model="quadruped">
  <compiler angle="radian" autolimits="true"/>
  <option timestep="{body.timestep}" gravity="0 0 {-body.gravity}" integrator="Euler"
          cone="pyramidal" solver="Newton" tolerance="1e-12" iterations="100">
    <flag eulerdamp="disable"/>
  </option>
  <default>
    <geom contype="0" conaffinity="0" friction="{body.friction} 0 0" condim="3"
          solref="{solref}" solimp="{solimp}"/>
    <joint armature="{body.armature}" damping="{body.damping}"
           solreflimit="{solref}" solimplimit="{solimp}"/>
  </default>
  <worldbody>
    <geom name="ground" type="plane" size="0 0 1" contype="1" conaffinity="1"/>
    <body name="torso">
      <freejoint/>
      <inertial pos="0 0 0" mass="{body.torso_mass}" diaginertia="{inertia} {inertia} {inertia}"/>
      <geom type="sphere" size="{body.torso_radius}"/>{legs}
    </body>
  </worldbody>
  <actuator>{motors}</actuator>
</mujoco>
"""


def _leg(body: Body, i: int, angle: float) -> str:
    x, y = body.hip_distance * math.cos(angle), body.hip_distance * math.sin(angle)
    thigh, shin = body.thigh_length, body.shin_length
    return f"""
      <body name="thigh{i}" pos="{x} {y} 0" axisangle="0 0 1 {angle}">
        <joint name="hip{i}" axis="0 0 1" range="{_numbers(body.hip_range)}"/>
        {_inertial(body.thigh_mass, thigh, body.thigh_inertia)}
        <geom type="capsule" fromto="0 0 0 {thigh} 0 0" size="{body.leg_radius}"/>
        <body name="shin{i}" pos="{thigh} 0 0">
          <joint name="knee{i}" axis="0 1 0" range="{_numbers(body.knee_range)}"/>
          {_inertial(body.shin_mass, shin, body.shin_inertia)}
          <geom type="capsule" fromto="0 0 0 {shin} 0 0" size="{body.leg_radius}"/>
          <geom name="foot{i}" type="sphere" pos="{shin} 0 0" size="{body.leg_radius}"
                contype="1" conaffinity="1"/>
        </body>
      </body>"""


def _inertial(mass: float, length: float, inertia: tuple[float, float]) -> str:
    along, across = inertia
    return (
        f'<inertial pos="{length / 2} 0 0" mass="{mass}" diaginertia="{along} {across} {across}"/>'
    )


def _numbers(values: tuple[float, ...]) -> str:
    return " ".join(map(str, values))
