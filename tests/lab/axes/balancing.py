"""Who serves the calls: 30 calls over one channel by each way; the readiness race of a post-mortem; limits to messages' sizes.

A channel with pick_first has one connection, and an L4 proxy gives out connections: all calls go to one backend. round_robin and
L7 proxies give out calls. In the race eight clients start while two of six pods are ready: the connections made then are what
decides, for as long as they are kept. The metrics that a Prometheus would scrape go into promtool with the alert rules of
docs/observability, a tick of the run as a minute of theirs.
"""
import collections
import os
import re
import shutil
import subprocess

from harness.languages import ROOT, Absent
from harness.peers import name_of
from harness.proxies import TOOLS, Haproxy, nginx

NAME = "balancing"
TITLE = "Balancing, the readiness race, message sizes"
SHORT = True

SPREAD, PINNED = "10, 10, 10", "30, 0, 0"
TICKS, TICK_MS, AGE_MS = 48, 250, 1_500
ALERTS = ROOT / "docs/observability/alerts.yml"


def run(lab):
    thirty_calls(lab)
    if not lab.short:
        readiness_race(lab)
    sizes(lab)


def thirty_calls(lab):
    servers = [lab.start("penstock", name=f"s{i}") for i in range(3)]
    clients = lab.start_all()
    backends = [server.address for server in servers]
    ways = [("a list of addresses, pick_first", backends, {}, PINNED), ("a list of addresses, round_robin", backends, {"round_robin": True}, SPREAD)]
    for name, start in (("nginx", lambda: nginx(lab, [(4, backends, []), (7, backends, [])])[1]),
                        ("haproxy", lambda: Haproxy(lab, [(4, backends, []), (7, backends, [])]).addresses)):
        try:
            l4, l7 = start()
            ways += [(f"{name} L4", l4, {}, PINNED), (f"{name} L7", l7, {}, SPREAD)]
        except Absent as why:
            lab.absent(f"30 calls through {name}", f"L4 {PINNED}, L7 {SPREAD}", str(why))
    for way, address, channel, expected in ways:
        seen = {}
        for client in clients.values():
            channel = channel | {"name": way}
            # Until every connection is there, calls go over those that are.
            warm = set()
            for _ in range(40):
                warm |= set(client.run(address, {"key": "warm"}, calls=3, channel=channel).servers)
                if expected == PINNED or len(warm) == 3:
                    break
            answered = client.run(address, {"key": "30"}, calls=30, channel=channel).servers
            seen[client.language] = ", ".join(str(count) for count in sorted([*answered.values(), 0, 0, 0], reverse=True)[:3])
        found = sorted(set(seen.values()))
        lab.row(f"30 calls, {way}: {len(seen)} clients", expected, " | ".join(found),
                "; ".join(f"{client}: {end}" for client, end in seen.items()) if len(found) > 1 else "")
    lab.processes.stop(list(lab.processes.all))


# Balancing, headless, connection age: what was expected.
RACES = [
    ("pick_first, one address (ClusterIP)", ("pick_first", 0, 0), "2 of 6 pods serve, PenstockLoadSkewed fires, no call failed"),
    ("pick_first, one address, connection age", ("pick_first", 0, AGE_MS), "6 of 6 pods serve, no alert fires, no call failed"),
    ("pick_first, headless", ("pick_first", 1, 0), "1 of 6 pods serves, PenstockConnectionsPinned and PenstockLoadSkewed fire, no call failed"),
    ("round_robin, headless", ("round_robin", 1, 0), "2 of 6 pods serve, PenstockLoadSkewed fires, no call failed"),
    ("round_robin, headless, connection age", ("round_robin", 1, AGE_MS), "6 of 6 pods serve, no alert fires, no call failed"),
]


def readiness_race(lab):
    program = lab.build / "tests/lab/lab_readiness_race"
    promtool = os.environ.get("PENSTOCK_PROMTOOL") or shutil.which("promtool", path=TOOLS)
    if not program.exists() or not promtool:
        lab.absent("the readiness race", "", "no promtool (Debian package prometheus)" if program.exists() else "built without prometheus-cpp")
        return
    lab.say(f"  {len(RACES)} readiness races, {TICKS * TICK_MS // 1000} s")
    races = [lab.processes.start("race", [program, *arguments, TICKS, TICK_MS]) for _, arguments, _ in RACES]
    for (case, arguments, expected), race in zip(RACES, races):
        failed = int(race.wait_for(lambda output: re.search(r"^failed (\d+)$", output, re.M), limit=90).group(1))
        series = series_of(race.output())
        shares = shares_of(series)
        serve = sum(share >= 0.02 for share in shares[-1])
        fire = fired(lab, promtool, series, "behind one address" if not arguments[1] else "")
        told = f"{serve} of 6 pods serve{'s' if serve == 1 else ''}, {' and '.join(fire) + (' fires' if len(fire) == 1 else ' fire') if fire else 'no alert fires'}"
        over_time = " -> ".join("/".join(f"{share:.0%}".rstrip("%") for share in sorted(moment, reverse=True)) for moment in shares)
        lab.row(f"eight clients, two of six pods ready: {case}", expected, f"{told}, {'no call' if not failed else failed} failed",
                f"shares of the pods in %, in four quarters of the run: {over_time}")
    lab.processes.stop(races)


def series_of(output):
    """Every series' values, one a tick; `_` where it was not there: a server that was never called has none for its calls."""
    series = collections.defaultdict(lambda: ["_"] * TICKS)
    for tick, name, value in re.findall(r"^(\d+) (\S+\{.*\}) (\S+)$", output, re.M):
        series[name][int(tick)] = value
    # Which Prometheus itself adds for each process that it scrapes.
    series.update({f'up{{job="pricing",instance="pod-{pod}"}}': ["1"] * TICKS for pod in range(6)})
    return dict(series)


def shares_of(series):
    """Of each quarter of the run, each pod's share of the calls."""
    pods = [[0.0] * TICKS for _ in range(6)]
    for name, values in series.items():
        if name.startswith("rpc_server_call_duration_seconds_count"):
            pod = int(re.search(r'instance="pod-(\d)"', name).group(1))
            for tick, value in enumerate(values):
                pods[pod][tick] += float(value) if value != "_" else 0
    bounds = [0, *(TICKS * quarter // 4 - 1 for quarter in (1, 2, 3, 4))]
    served = [[pod[end] - (pod[begin] if begin else 0) for pod in pods] for begin, end in zip(bounds, bounds[1:])]
    return [[count / sum(quarter) for count in quarter] for quarter in served]


def fired(lab, promtool, series, one_address):
    """Which of the two rules fire at the end. Behind one address the peers' addresses tell nothing, as the rules say: that one is
    not asked there."""
    rules = ["PenstockLoadSkewed"] if one_address else ["PenstockConnectionsPinned", "PenstockLoadSkewed"]
    found = []
    for rule in rules:
        test = [f"rule_files: ['{ALERTS}']", "evaluation_interval: 1m", "tests:", "- interval: 1m", "  input_series:"]
        test += [f"  - {{series: '{name}', values: '{' '.join(values)}'}}" for name, values in series.items()]
        test += ["  alert_rule_test:", f"  - {{eval_time: {TICKS - 1}m, alertname: {rule}, exp_alerts: []}}"]
        file = lab.scratch / f"race-{lab.key()}.yml"
        file.write_text("\n".join(test) + "\n")
        done = subprocess.run([promtool, "test", "rules", file], capture_output=True, text=True)
        output = done.stdout + done.stderr
        if done.returncode != 0:
            if f'alertname="{rule}"' not in output:
                raise RuntimeError(f"promtool: {output[-2000:]}")
            found.append(rule)
    return found


def sizes(lab):
    clients = lab.start_all()
    server, wide = lab.start("penstock", name="s"), lab.start("penstock", name="wide", max_receive_bytes=16 << 20)
    mebibyte, raised = 1 << 20, {"max_receive_bytes": 16 << 20}
    # case, address, bytes of the answer and of the request, channel
    cases = [("an answer of 5 MiB", server.address, 5, 0, {}, "RESOURCE_EXHAUSTED"),
             ("an answer of 5 MiB, the client's limit raised", server.address, 5, 0, raised, "OK"),
             ("a request of 5 MiB", server.address, 0, 5, {}, "RESOURCE_EXHAUSTED"),
             ("a request of 5 MiB, the server's limit raised", wide.address, 0, 5, {}, "OK")]
    try:
        small, large = nginx(lab, [(7, [wide.address], []), (7, [wide.address], ["client_max_body_size 16m"])])[1]
        cases += [("a request of 2 MiB through nginx L7", small, 0, 2, {}, "UNKNOWN"),
                  ("a request of 2 MiB through nginx L7, client_max_body_size 16m", large, 0, 2, {}, "OK")]
    except Absent as why:
        lab.absent("a request of 2 MiB through nginx L7", "UNKNOWN", str(why))
    for case, address, answer, request, channel, expected in cases:
        seen = {client.language: client.run(address, {"key": "k", "reply_bytes": answer * mebibyte}, request_bytes=request * mebibyte,
                                            channel=channel | {"no_retries": True}) for client in clients.values()}
        codes = {client: name_of(outcome.code) for client, outcome in seen.items()}
        found = sorted(set(codes.values()))
        detail = ["; ".join(f"{client}: {code}" for client, code in codes.items())] if len(found) > 1 else []
        detail += sorted({outcome.message for outcome in seen.values() if outcome.message})
        lab.row(f"{case}: {len(codes)} clients", expected, " | ".join(found), "; ".join(detail))
    lab.processes.stop(list(lab.processes.all))
