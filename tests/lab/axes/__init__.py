"""The experiments, in the order in which they run. Each has NAME, TITLE, run(lab), and SHORT where CI runs it."""
from axes import balancing, cancellation, deadline, errors, gateway, interceptors, keepalive, proxies, retries, rollouts

AXES = [deadline, cancellation, errors, gateway, interceptors, retries, keepalive, proxies, balancing, rollouts]
