"""The mechanism: fragments, the traced graph, plans, projection. No RL, no hardware."""
