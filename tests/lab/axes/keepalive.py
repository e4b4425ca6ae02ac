"""Pings that a server finds too many: a client that pings every 10 s on a stream that is silent for 50.

gRPC's servers permit a ping every 5 minutes unless they are told otherwise, and answer the third too many with GOAWAY
(ENHANCE_YOUR_CALM, too_many_pings). penstock's client refuses less than 10 s, and its server permits that: the pair never
meets. What a client makes of the GOAWAY depends on its language.
"""
from harness.peers import name_of

NAME = "keepalive"
TITLE = "too_many_pings"
PING_MS, SILENCE_MS = 10_000, 50_000

# Servers that permit it: penstock's by its default, Node's because it counts no pings.
PERMIT = ("penstock", "node")
C_CORE = ("grpc++", "python")


def called(client, server):
    """What the client makes of it. Java and Node read the GOAWAY's code; but the C core's server ends the stream itself with
    UNAVAILABLE, `Too many pings`, which Java believes."""
    if client == "node" or (client == "java" and server not in C_CORE):
        return "RESOURCE_EXHAUSTED"
    return "UNAVAILABLE"


def run(lab):
    clients = lab.start_all()
    strict = lab.start_all()
    lenient = lab.start_all(permit_ping_ms=5_000)
    jobs = [(client, server) for client in clients.values() for server in [*strict.values(), *lenient.values()]]
    lab.say(f"  {len(jobs)} streams at once, 50 s")
    ends = dict(zip(jobs, lab.together([lambda job=job: once(*job) for job in jobs], len(jobs))))

    for client in clients.values():
        for name, server in strict.items():
            expected = "OK after 2 messages" if name in PERMIT else f"broken: {called(client.language, name)}"
            lab.row(f"client {client.language} pings every 10 s, server {name} with its default", expected, *ends[client, server])
        mine = {name: ends[client, server][0] for name, server in lenient.items()}
        seen = sorted(set(mine.values()))
        lab.row(f"client {client.language} pings every 10 s, servers that permit 5 s: {len(mine)} servers", "OK after 2 messages", " | ".join(seen),
                "; ".join(f"{name}: {end}" for name, end in mine.items()) if len(seen) > 1 else "")

    refused = clients["penstock"].run(strict["penstock"].address, {"key": "k"}, channel={"keepalive_ms": 9_999})
    lab.row("client penstock with pings every 9.999 s", "refused by its settings",
            "refused by its settings" if "refuses these settings" in refused.message else name_of(refused.code))
    lab.stop(*clients.values(), *strict.values(), *lenient.values())


def once(client, server):
    outcome = client.run(server.address, {"key": "k", "messages": 2, "interval_ms": SILENCE_MS}, stream=True,
                         channel={"keepalive_ms": PING_MS, "keepalive_without_calls": True, "no_retries": True})
    if outcome.code == 0:
        return f"OK after {outcome.messages} messages", ""
    return f"broken: {name_of(outcome.code)}", outcome.message
