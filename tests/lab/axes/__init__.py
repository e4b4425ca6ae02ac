"""The experiments, in the order in which they run. Each has NAME, TITLE, run(lab), and SHORT where CI runs it."""
from axes import deadline, rollouts

AXES = [deadline, rollouts]
