"""The mechanism: fragments, the traced graph, plans, and their projection. Knows no RL and no hardware."""
