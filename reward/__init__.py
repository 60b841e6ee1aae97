"""Judging one candidate: sandbox, protocols, verdicts, shaping, and the reward function for trainers."""
