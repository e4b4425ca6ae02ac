"""The order of the layers around a handler: what metrics and a log see of calls that are refused, and of exceptions.

Ten calls without a token and ten with one; then one that throws and one that does not. penstock's order is fixed: metrics and
the log outside, then authentication, the barrier against exceptions next to the handler. The others' is the program's choice.
"""
from harness.lab import eventually

NAME = "interceptors"
TITLE = "What the layers around a handler see"
SHORT = True
TOKEN = {"authorization": "Bearer lab"}

ALL_SEEN = "metrics OK:10 UNAUTHENTICATED:10, log OK:10 UNAUTHENTICATED:10, handler 10"
ONLY_ADMITTED = "metrics OK:10, log OK:10, handler 10"
# In Node an interceptor is no function around the handler: the library turns the exception into a status itself, and its
# sending passes through them.
CAUGHT_BY_NODE = "metrics OK:1 UNKNOWN:1"


def run(lab):
    refused, threw = "10 calls without a token, 10 with one", "one call that throws, one that does not"
    cases = [("penstock", "", f"its own order: {refused}", ALL_SEEN, refusals),
             ("penstock", "", f"its own order: {threw}", "metrics INTERNAL:1 OK:1", exceptions),
             ("penstock", "", "its own order: 3 streams without a token, 3 with one",
              "metrics OK:3 UNAUTHENTICATED:3, log OK:3 UNAUTHENTICATED:3, handler 3", streams)]
    for name in ("python", "node", "go", "java"):
        cases += [(name, "metrics,log,auth", f"metrics outside: {refused}", ALL_SEEN, refusals),
                  (name, "auth,metrics,log", f"authentication outside: {refused}", ONLY_ADMITTED, refusals)]
    for name in ("python", "go", "java"):
        cases += [(name, "metrics,barrier", f"the barrier inside: {threw}", "metrics INTERNAL:1 OK:1", exceptions),
                  (name, "barrier,metrics", f"the barrier outside: {threw}", "metrics OK:1", exceptions)]
    cases.append(("node", "metrics", f"no barrier can be had: {threw}", CAUGHT_BY_NODE, exceptions))

    there = [case for case in cases if case[0] in lab.languages]
    servers = lab.start_many([(name, ({"layers": layers} if layers else {}) | ({} if experiment is exceptions else {"token": "lab"}))
                              for name, layers, _, _, experiment in there])
    seen = dict(zip(there, lab.together([lambda server=server, case=case: observe(server, case) for server, case in zip(servers, there)])))
    for case in cases:
        name, _, what, expected, _ = case
        if case in seen:
            lab.row(f"server {name}, {what}", expected, seen[case])
        elif not lab.short:
            lab.absent(f"server {name}, {what}", expected, f"no {name}")
    lab.stop(*servers)


def observe(server, case):
    """Layers may see a call's end after its client does: what they have seen once it is as expected, or after five seconds."""
    _, _, _, expected, experiment = case
    layers, handled = experiment(server)
    seen = ""

    def as_expected():
        nonlocal seen
        tally = server.count("k")
        seen = ", ".join(layer + "".join(f" {what.split(':')[1]}:{count}" for what, count in sorted(tally.seen.items()) if what.startswith(layer + ":"))
                         for layer in layers) + (f", handler {getattr(tally, handled)}" if handled else "")
        return seen == expected

    eventually(as_expected, limit=5, every=0.1)
    return seen


def call(server, work, **task):
    server.run(server.address, {"key": "k"} | work, channel={"name": "c", "no_retries": True}, **task)


# Each gives the layers to ask, and which of the tally's numbers counts the handlers.
def refusals(server):
    call(server, {}, calls=10)
    call(server, {}, calls=10, metadata=TOKEN)
    return ("metrics", "log"), "calls"


def streams(server):
    call(server, {"messages": 2}, stream=True, calls=3)
    call(server, {"messages": 2}, stream=True, calls=3, metadata=TOKEN)
    return ("metrics", "log"), "completed"


def exceptions(server):
    call(server, {"fault": 2})
    call(server, {})
    return ("metrics",), None
