"""What a handler's failure looks like at the client: the language's plain error, a status, a status with ErrorInfo, an exception;
and whether the server lives on."""
import grpc

from harness.peers import name_of

NAME = "errors"
TITLE = "Errors, for each server and client"
SHORT = True
SECRET = "a secret of the handler's"

# A handler's failure that is no status: by server, the code and whether the failure's text goes out.
ERRORS = {"penstock": "INTERNAL, text kept, lives", "grpc++": "UNIMPLEMENTED, text kept, lives", "python": "UNKNOWN, text told, lives",
          "node": "UNKNOWN, text told, lives", "go": "UNKNOWN, text told, lives", "java": "UNKNOWN, text kept, lives"}
# C++ and Python have one kind of it. Nobody catches a panic of Go's: the process ends.
EXCEPTIONS = ERRORS | {"node": "UNKNOWN, text kept, lives", "go": "UNAVAILABLE, text kept, dies"}


def run(lab):
    clients = lab.start_all()
    servers = lab.start_all()
    for name, server in servers.items():
        for case, expected, work in (
                ("a plain error", ERRORS[name], {"fault": 1}),
                ("a status", "NOT_FOUND 'no such record', lives", {"code": 5, "message": "no such record"}),
                ("a status with ErrorInfo", "NOT_FOUND 'no such record', RECORD_NOT_FOUND, lives", {"code": 5, "message": "no such record", "details": True}),
                ("an exception", EXCEPTIONS[name], {"fault": 2})):
            if expected.endswith("dies"):
                # A server for each client.
                ends = {}
                for client in clients.values():
                    server = server if server.process.alive() else lab.start(name)
                    ends[client.language] = once(lab, client, server, work) + fate(server)
            else:
                told = lab.together([lambda client=client: once(lab, client, server, work) for client in clients.values()])
                lived = fate(server)
                ends = {client: end + lived for client, end in zip(clients, told)}
            seen = sorted(set(ends.values()))
            lab.row(f"server {name}, {case}: {len(ends)} clients", expected, " | ".join(seen),
                    "; ".join(f"{client}: {end}" for client, end in ends.items()) if len(seen) > 1 else "")
    lab.processes.stop(list(lab.processes.all))


def once(lab, client, server, work):
    outcome = client.run(server.address, {"key": lab.key()} | work)
    if "code" in work:
        return f"{name_of(outcome.code)} '{outcome.message}'" + (f", {outcome.reason}" if outcome.reason else "")
    return name_of(outcome.code) + (", text told" if SECRET in outcome.message else ", text kept")


def fate(server):
    """Whether it serves another call."""
    try:
        lives = not server.process.wait(0.2) and server.run(server.address, {"key": "alive"}).code == 0
    except grpc.RpcError:
        server.process.wait(5)
        lives = False
    return ", lives" if lives else ", dies"
