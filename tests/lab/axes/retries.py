"""Retries: which codes, how many attempts, until when; gRPC's own policy in five languages beside penstock's retries.

Attempts are counted at the server. gRPC marks those of its own with grpc-previous-rpc-attempts; to penstock each attempt is an
RPC of its own. The same numbers go into both: attempts, first backoff.
"""
import time

from harness.peers import name_of

NAME = "retries"
TITLE = "Retries, gRPC's policy beside penstock's"
SHORT = True
UNAVAILABLE, INTERNAL = 14, 13


def run(lab):
    peers = lab.start_all()
    policy = {"max_attempts": 4, "initial_backoff_ms": 20, "codes": ["UNAVAILABLE"]}
    fails_twice = {"code": UNAVAILABLE, "message": "down", "fail_first": 2}
    down = {"code": UNAVAILABLE, "message": "down"}
    stream = {"stream": True}

    # case, work, channel, task, what gRPC's clients should do, what penstock's should
    cases = [
        ("no policy; the server fails twice with UNAVAILABLE", fails_twice, {}, {},
         "1 attempt: UNAVAILABLE", "3 attempts: OK"),
        ("retries off", fails_twice, {"no_retries": True}, {},
         "1 attempt: UNAVAILABLE", "1 attempt: UNAVAILABLE"),
        ("4 attempts; it fails twice with UNAVAILABLE", fails_twice, {"retry": policy}, {},
         "3 attempts, marked 1 2: OK", "3 attempts: OK"),
        ("4 attempts; it fails with INTERNAL", {"code": INTERNAL, "message": "wrong"}, {"retry": policy}, {},
         "1 attempt: INTERNAL", "1 attempt: INTERNAL"),
        ("10 attempts; it fails always", down, {"retry": policy | {"max_attempts": 10}, "no_breaker": True}, {},
         "5 attempts, marked 1 2 3 4: UNAVAILABLE", "10 attempts: UNAVAILABLE"),
        ("a backoff of up to 11 days in 1.5 s", down, {"retry": policy | {"initial_backoff_ms": 1_000_000_000}}, {"deadline_ms": 1_500},
         "1 attempt: DEADLINE_EXCEEDED at the deadline", "1 attempt: UNAVAILABLE at once"),
        ("a stream that ends UNAVAILABLE without headers, twice", fails_twice | {"messages": 0}, {"retry": policy}, stream,
         "3 attempts, marked 1 2: OK", "1 attempt: UNAVAILABLE"),
        ("a stream that ends UNAVAILABLE after its headers", down | {"headers_first": True, "interval_ms": 100}, {"retry": policy}, stream,
         "1 attempt: UNAVAILABLE", "1 attempt: UNAVAILABLE"),
        ("a stream that ends UNAVAILABLE after a message", down | {"messages": 1}, {"retry": policy}, stream,
         "1 attempt: UNAVAILABLE", "1 attempt: UNAVAILABLE"),
    ]
    pairs = [(client, server) for client in peers for server in peers]
    for case, work, channel, task, grpcs, penstocks in cases:
        ends = dict(zip(pairs, lab.together([lambda pair=pair: once(lab, *(peers[name] for name in pair), work, channel, task) for pair in pairs])))
        for client in peers:
            mine = {server: ends[client, server] for server in peers}
            seen = sorted(set(mine.values()))
            lab.row(f"client {client}, {case}: {len(mine)} servers", penstocks if client == "penstock" else grpcs,
                    " | ".join(seen), "; ".join(f"{server}: {end}" for server, end in mine.items()) if len(seen) > 1 else "")
    lab.stop(*peers.values())


def once(lab, client, server, work, channel, task):
    key = lab.key()
    # Connected first: what a connect takes is no part of it.
    channel = {"name": key} | channel
    client.run(server.address, {"key": "warm"}, channel=channel)
    began = time.monotonic()
    outcome = client.run(server.address, {"key": key} | work, channel=channel, **task)
    took = time.monotonic() - began
    tally = server.count(key)
    marked = " ".join(str(number) for number in sorted(tally.previous_attempts))
    end = name_of(outcome.code)
    if "deadline_ms" in task:
        end += " at the deadline" if took >= 0.9 * task["deadline_ms"] / 1000 else " at once"
    return f"{tally.calls} attempt{'s' if tally.calls != 1 else ''}{', marked ' + marked if marked else ''}: {end}"
