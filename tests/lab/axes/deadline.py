"""A deadline through three links: the client, a server A that asks a server B in its stead, and B, which works in ten steps.

With the call's own deadline and cancellation handed down, B hears when the client's time is up and stops. A link that detaches
its call has B do all of it for nobody. The client cannot tell the two apart. (penstock's breaker is off for this: five calls
in a row that run out of time open it, and the sixth would not be made; the last case shows that.)
"""
import itertools

from harness.lab import eventually
from harness.peers import name_of

NAME = "deadline"
TITLE = "A deadline through three links"
SHORT = True
STEPS = 10


def run(lab):
    peers = lab.start_all()
    names = list(peers)
    for middle in names:
        orders = list(itertools.product(names, [middle], names))
        # Warm: each connection is made, each class loaded.
        controls = lab.together([lambda order=order: once(lab, peers, order, False, 60_000, 5) for order in orders], 12)
        lab.row(f"through {middle}, a deadline longer than the work: {len(orders)} orders", "all: OK, B did all its work",
                *told(orders, controls))
        for detached, mode, expected in ((False, "handed down", "all: DEADLINE_EXCEEDED, B stopped"),
                                         (True, "detached", "all: DEADLINE_EXCEEDED, B did all its work")):
            ends = lab.together([lambda order=order: patiently(lab, peers, order, detached) for order in orders], 12)
            lab.row(f"through {middle}, 300 ms for a second's work, {mode}: {len(orders)} orders", expected, *told(orders, ends))
    # Calls that run out of time are failures of the dependency to a breaker, which is off above.
    client, server = peers["penstock"], peers["python"]
    codes = []
    for _ in range(7):
        outcome = client.run(server.address, {"key": lab.key(), "steps": 1, "step_ms": 2_000}, channel={"name": "with a breaker"}, deadline_ms=50)
        codes.append(name_of(outcome.code) + (" (circuit open)" if "circuit open" in outcome.message else ""))
    lab.row("7 calls that run out of time, one after the other, of a penstock client with its breaker",
            "5 x DEADLINE_EXCEEDED, 2 x UNAVAILABLE (circuit open)",
            ", ".join(f"{codes.count(code)} x {code}" for code in dict.fromkeys(codes)))
    lab.stop(*peers.values())


def patiently(lab, peers, order, detached):
    """On a machine that is busy the time can be up before B is reached, which says nothing: then with more of it."""
    for deadline in (300, 900, 2700):
        end = once(lab, peers, order, detached, deadline, deadline // 3)
        if "never reached" not in end:
            return end
    return end


def once(lab, peers, order, detached, deadline_ms, step_ms):
    client, a, b = (peers[name] for name in order)
    key = lab.key()
    outcome = client.run(a.address, {"key": key, "steps": STEPS, "step_ms": step_ms, "next": b.address, "detached": detached},
                         channel={"name": "to " + a.address, "no_breaker": True}, deadline_ms=deadline_ms)
    begun = eventually(lambda: b.count(key).calls, limit=1)
    if not begun:
        return f"{name_of(outcome.code)}, B was never reached"
    tally = eventually(lambda: (lambda t: t if t.completed + t.stopped else None)(b.count(key)))
    code = name_of(outcome.code)
    # Java's server ends a call at its deadline too; to a client whose own timer is late that is CANCELLED. Node's is late at times.
    if code == "CANCELLED" and order[:2] == ("node", "java"):
        code = "DEADLINE_EXCEEDED"
    return f"{code}, B {'never ended' if not tally else 'stopped' if tally.stopped else 'did all its work'}"


def told(orders, ends):
    """What all of them saw, or the orders that saw something else than most."""
    most = max(set(ends), key=ends.count)
    others = [f"{' -> '.join(order)}: {end}" for order, end in zip(orders, ends) if end != most]
    return (f"all: {most}" if not others else f"{len(ends) - len(others)} of {len(ends)}: {most}"), "; ".join(others)
