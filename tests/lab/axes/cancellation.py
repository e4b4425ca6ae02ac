"""A stream that its client cancels: how much work does the server do after that?

20 messages, 100 ms apart; the client reads three and cancels. The handler looks for the cancellation before each message, or
it does not. Work is counted at the server; nothing of it goes out any more.
"""
import time

from harness.peers import name_of

NAME = "cancellation"
TITLE = "Work after a stream was cancelled"
SHORT = True
MESSAGES = 20

CASES = (("nobody cancels", "OK after 20, worked to the end", {}, {}),
         ("it looks for the cancellation", "CANCELLED after 3, stopped", {"cancel_after": 3}, {}),
         ("it does not look", "CANCELLED after 3, worked to the end", {"cancel_after": 3}, {"unchecked": True}))


def run(lab):
    peers = lab.start_all()
    jobs = [(server, case, client) for server in peers for case in range(len(CASES)) for client in peers]
    ends = dict(zip(jobs, lab.together([lambda job=job: once(lab, peers[job[2]], peers[job[0]], *CASES[job[1]][2:]) for job in jobs], len(jobs))))
    for server in peers:
        for number, (case, expected, task, _) in enumerate(CASES):
            mine = [ends[server, number, client] for client in peers]
            # Python's handler is a generator, which grpcio asks for nothing more once it knows.
            if server == "python" and task:
                expected = "CANCELLED after 3, stopped"
            seen = sorted({end for end, _ in mine})
            counts = [after for _, after in mine]
            detail = [f"{min(counts)} to {max(counts)} messages begun after the cancellation"] if task else []
            if len(seen) > 1:
                detail += [f"{name}: {end}" for name, (end, _) in zip(peers, mine)]
            lab.row(f"server {server}, {case}: {len(mine)} clients", expected, " | ".join(seen), "; ".join(detail))
    lab.stop(*peers.values())


def once(lab, client, server, task, work):
    key = lab.key()
    outcome = client.run(server.address, {"key": key, "messages": MESSAGES, "interval_ms": 100} | work, stream=True, **task)
    tally = at_rest(server, key)
    how = "worked to the end" if tally.completed and tally.steps == MESSAGES else "stopped" if tally.steps < MESSAGES else f"{tally.steps} steps, and then?"
    # What had come already may be read after the cancellation, too.
    read = min(outcome.messages, task.get("cancel_after", MESSAGES))
    return f"{name_of(outcome.code)} after {read}, {how}", tally.steps_after_cancel


def at_rest(server, key):
    """The tally once the handler has come to an end, or has done nothing for two seconds."""
    tally, since = server.count(key), time.monotonic()
    while not tally.completed + tally.stopped and time.monotonic() - since < 2:
        time.sleep(0.2)
        now = server.count(key)
        if now.steps != tally.steps:
            since = time.monotonic()
        tally = now
    return tally
