"""REST and JSON in front of a server: grpc-gateway, made by Debian's generator from the lab's contract.

Codes become HTTP statuses, Grpc-Timeout becomes the call's deadline, a server stream becomes lines of JSON. An error's details
survive only in a gateway that knows their types: without ErrorInfo's the same NOT_FOUND comes out as 500.
"""
import json
import urllib.error
import urllib.request

from harness.lab import eventually
from harness.languages import HERE, LAB_PROTO, PROTO, Absent, DoesNotBuild, need, newer, run as run_command

NAME = "gateway"
TITLE = "A JSON gateway"

# As google/rpc/code.proto maps them; CANCELLED and FAILED_PRECONDITION as this gateway's edition does (see docs/lab.md).
HTTP = {"OK": 200, "CANCELLED": 408, "UNKNOWN": 500, "INVALID_ARGUMENT": 400, "DEADLINE_EXCEEDED": 504, "NOT_FOUND": 404,
        "ALREADY_EXISTS": 409, "PERMISSION_DENIED": 403, "RESOURCE_EXHAUSTED": 429, "FAILED_PRECONDITION": 412, "ABORTED": 409,
        "OUT_OF_RANGE": 400, "UNIMPLEMENTED": 501, "INTERNAL": 500, "UNAVAILABLE": 503, "DATA_LOSS": 500, "UNAUTHENTICATED": 401}


def run(lab):
    try:
        plain, detailed = build(lab)
    except Absent as why:
        lab.absent("everything", "", str(why))
        return
    for name in lab.languages:
        server = lab.start(name)
        ways = {}
        for kind, program in (("without ErrorInfo's type", plain), ("with it", detailed)):
            process = lab.processes.start("gateway", [program, "--target", server.address])
            ways[kind] = "http://127.0.0.1:%d" % process.wait_for(lambda output: output.startswith("ready") and int(output.split()[1]))
        cases(lab, name, server, ways)
        lab.processes.stop(list(lab.processes.all))


def build(lab):
    go = lab.languages.get("go")
    if go is None:
        raise Absent("no Go")
    need(**{"protoc-gen-grpc-gateway": "golang-grpc-gateway"})
    package = go.place / "src/lab/labpb"
    rules = HERE / "peers/go/gateway.yaml"
    if not newer(package / "lab.pb.gw.go", LAB_PROTO, rules):
        run_command(["protoc", "-I", PROTO, f"--grpc-gateway_out=grpc_api_configuration={rules},import_path=labpb:{package}", LAB_PROTO])
        (package / "penstock/lab/v1/lab.pb.gw.go").replace(package / "lab.pb.gw.go")
    sources = [HERE / "peers/go/gateway.go", HERE / "peers/go/gateway_details.go"]
    try:
        return go.build("gateway", *sources), go.build("gateway-details", *sources, tags="details")
    except DoesNotBuild as why:
        if "cannot find package" in str(why):
            raise Absent(f"grpc-gateway's code (Debian package golang-github-grpc-ecosystem-grpc-gateway-dev): {why}") from None
        raise


def cases(lab, name, server, ways):
    way = ways["with it"]
    if name == "penstock":
        found = {code: post(way + "/v1/do", {"key": "code", "code": number, "message": "told"})[0] for number, code in enumerate(HTTP)}
        lab.row(f"server {name}, every code", told(HTTP), told(found))
    else:
        some = {code: HTTP[code] for code in ("OK", "INVALID_ARGUMENT", "NOT_FOUND", "UNAVAILABLE")}
        found = {code: post(way + "/v1/do", {"key": "code", "code": list(HTTP).index(code), "message": "told"})[0] for code in some}
        lab.row(f"server {name}, some codes", told(some), told(found))

    for kind, expected in (("without ErrorInfo's type", "HTTP 500, no details"), ("with it", "HTTP 404, RECORD_NOT_FOUND")):
        status, body = post(ways[kind] + "/v1/do", {"key": "details", "code": 5, "message": "no such record", "details": True})
        lab.row(f"server {name}, NOT_FOUND with ErrorInfo, a gateway {kind}", expected,
                f"HTTP {status}, {'RECORD_NOT_FOUND' if 'RECORD_NOT_FOUND' in body else 'no details'}", " ".join(body.split())[:200])

    key = lab.key()
    status, _ = post(way + "/v1/do", {"key": key, "steps": 10, "step_ms": 100}, {"Grpc-Timeout": "300m"})
    tally = eventually(lambda: (lambda t: t if t.stopped + t.completed else None)(server.count(key)), limit=10)
    lab.row(f"server {name}, Grpc-Timeout: 300m for a second's work", "HTTP 504, the server stopped",
            f"HTTP {status}, the server {'stopped' if tally and tally.stopped else 'went on'}")

    status, body = post(way + "/v1/watch", {"key": "lines", "messages": 3})
    lines = [json.loads(line) for line in body.splitlines() if line]
    lab.row(f"server {name}, a stream of 3 messages", "HTTP 200, 3 lines: 0 1 2",
            f"HTTP {status}, {len(lines)} lines: " + " ".join(str(line.get("result", {}).get("number", 0)) for line in lines))


def told(statuses):
    return ", ".join(f"{code} {status}" for code, status in statuses.items())


def post(url, body, headers=None):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"} | (headers or {}))
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=30) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
