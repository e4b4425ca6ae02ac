"""Proxies: connections that nobody uses, streams that are silent, and proxies that close connections under load.

A call, 20 s of nothing, a call, behind proxies that close what was idle for 15 s, with pings every 10 s and without. Behind
L4 a ping is traffic like any other; an L7 proxy may look at calls alone. Whether the connection lived is how many the client
opened, which a relay in front of the proxy counts. Then a stream that is silent for 20 s by the same ways.
"""
import signal
import time

from harness.languages import Absent
from harness.peers import name_of
from harness.proxies import Haproxy, nginx
from harness.tap import Taps

NAME = "proxies"
TITLE = "Proxies: idle connections, silent streams, restarts under load"
QUIET_MS = 20_000
PINGS = {"keepalive_ms": 10_000, "keepalive_without_calls": True}

# What happens to an idle connection and to a silent stream, without pings and with.
KEPT, NEW = "the same connection", "a new connection"
WHOLE, BROKEN = "OK", "broken"
PATHS = {
    "no proxy": ((KEPT, KEPT), (WHOLE, WHOLE)),
    "nginx L4, proxy_timeout": ((NEW, KEPT), (BROKEN, WHOLE)),
    "nginx L7, keepalive_timeout": ((NEW, NEW), (WHOLE, WHOLE)),
    "nginx L7, grpc_read_timeout": ((KEPT, KEPT), (BROKEN, BROKEN)),
    "haproxy L4, timeout client and server": ((NEW, KEPT), (BROKEN, WHOLE)),
    "haproxy L7, timeout client": ((NEW, KEPT), (WHOLE, WHOLE)),
    "haproxy L7, timeout server": ((KEPT, KEPT), (BROKEN, BROKEN)),
    "haproxy L7, timeout http-keep-alive": ((NEW, NEW), (WHOLE, WHOLE)),
}


def run(lab):
    quiet(lab)
    for name, experiment in (("nginx", nginx_under_load), ("haproxy", haproxy_under_load)):
        try:
            experiment(lab)
        except Absent as why:
            lab.absent(f"{name} under load", "", str(why))
            lab.processes.stop(list(lab.processes.all))


def quiet(lab):
    peers = lab.start_all()
    server = lab.start("penstock", permit_ping_ms=5_000)
    ways = {"no proxy": server.address}
    try:
        _, addresses = nginx(lab, [(4, [server.address], ["proxy_timeout 15s"]),
                                   (7, [server.address], ["keepalive_timeout 15s"]),
                                   (7, [server.address], ["location:grpc_read_timeout 15s"])])
        ways |= dict(zip([path for path in PATHS if path.startswith("nginx")], addresses))
    except Absent as why:
        lab.absent("behind nginx", "", str(why))
    try:
        proxy = Haproxy(lab, [(4, [server.address], ["timeout client 15s", "server:timeout server 15s"]),
                              (7, [server.address], ["timeout client 15s"]),
                              (7, [server.address], ["server:timeout server 15s"]),
                              (7, [server.address], ["timeout http-keep-alive 15s"])])
        ways |= dict(zip([path for path in PATHS if path.startswith("haproxy")], proxy.addresses))
    except Absent as why:
        lab.absent("behind haproxy", "", str(why))

    with Taps() as taps:
        jobs = [(client, path, pings, what) for client in peers.values() for path in ways for pings in (0, 1) for what in (idle, silent)]
        lab.say(f"  {len(jobs)} connections at once, 20 s")
        ends = lab.together([lambda job=job: job[3](taps, job[0], ways[job[1]], {"name": lab.key()} | (PINGS if job[2] else {})) for job in jobs], len(jobs))
    seen = {(client.language, path, pings, what): end for (client, path, pings, what), end in zip(jobs, ends)}
    for what, number, label in ((idle, 0, "20 s without a call"), (silent, 1, "a stream silent for 20 s")):
        for path in ways:
            for pings in (0, 1):
                mine = {client: seen[client, path, pings, what] for client in peers}
                found = sorted({end for end, _ in mine.values()})
                told = ["; ".join(f"{client}: {end}" for client, (end, _) in mine.items())] if len(found) > 1 else []
                told += sorted({message for _, message in mine.values() if message})
                lab.row(f"{label}, {path} 15 s, {'pings every 10 s' if pings else 'no pings'}: {len(mine)} clients" if path != "no proxy"
                        else f"{label}, no proxy, {'pings every 10 s' if pings else 'no pings'}: {len(mine)} clients",
                        PATHS[path][number][pings], " | ".join(found), "; ".join(told))
    lab.processes.stop(list(lab.processes.all))


def idle(taps, client, address, channel):
    tap = taps.to(address)
    outcome = client.run(tap.address, {"key": "k"}, calls=2, pause_ms=QUIET_MS, channel=channel)
    if outcome.codes.get("OK") != 2:
        return f"{dict(outcome.codes)}", outcome.message
    return (KEPT if tap.accepted == 1 else NEW), ""


def silent(taps, client, address, channel):
    tap = taps.to(address)
    outcome = client.run(tap.address, {"key": "k", "messages": 2, "interval_ms": QUIET_MS}, stream=True, channel=channel)
    return (WHOLE, "") if outcome.code == 0 and outcome.messages == 2 else (BROKEN, f"{client.language}: {name_of(outcome.code)} {outcome.message}")


# Under load: 16 calls at a time over one channel of each client.
NONE, SOME = "none fails", "some fail"
CLIENTS = ("penstock", "grpc++", "grpc++ without retries")


def under_load(lab, start, disturb=lambda proxy: None, **task):
    """Of each client how many calls it made, how many failed, and with what. start(backends) gives a proxy and its address;
    `disturb` is done to it on this thread while the clients call."""
    servers = [lab.start("penstock", name=f"s{i}") for i in range(3)]
    clients = {label: lab.start(label.split()[0]) for label in CLIENTS}
    proxy, address = start([server.address for server in servers])
    with lab.threads(16 * len(clients)) as pool:
        futures = {label: [pool.submit(client.run, address, {"key": "load"}, **task,
                                       channel={"name": "load", "no_retries": label.endswith("without retries")}) for _ in range(16)]
                   for label, client in clients.items()}
        disturb(proxy)
        outcomes = {label: [future.result() for future in mine] for label, mine in futures.items()}
    lab.processes.stop(list(lab.processes.all))
    ends = {}
    for label, mine in outcomes.items():
        made = sum(sum(outcome.codes.values()) for outcome in mine)
        failed = made - sum(outcome.codes.get("OK", 0) for outcome in mine)
        ends[label] = made, failed, ", ".join(sorted({message for outcome in mine for message in outcome.failures}))[:300]
    return ends


def tell(lab, case, expected, ends):
    """A row for each client; `expected` None: chance, which goes with the others' details."""
    chance = "".join(f"; {label}: {ends[label][1]} of {ends[label][0]}" for label, wanted in zip(CLIENTS, expected) if wanted is None)
    for label, wanted in zip(CLIENTS, expected):
        made, failed, messages = ends[label]
        if wanted is not None:
            lab.row(f"{case}: {label}", wanted, SOME if failed else NONE, f"{failed} of {made}" + (f": {messages}" if messages else "") + chance)


def five_times(disturb):
    def again(proxy):
        for _ in range(5):
            time.sleep(1)
            disturb(proxy)
    return again


def nginx_under_load(lab):
    def start(layer, *options):
        def started(backends):
            process, (address,) = nginx(lab, [(layer, backends, options)], shutdown="500ms")
            return process, address
        return started

    tell(lab, "nginx closes each connection after 100 requests, 1,008 calls", (NONE, NONE, SOME),
         under_load(lab, start(7, "keepalive_requests 100"), calls=63))
    # With 10 the next attempt may meet the next GOAWAY, and so may the one after it.
    ends = under_load(lab, start(7, "keepalive_requests 10"), calls=63)
    lost = [ends[label][1] for label in CLIENTS]
    lab.row("nginx closes each connection after 10 requests, 1,008 calls", "the more attempts, the fewer calls fail",
            "the more attempts, the fewer calls fail" if lost[0] < lost[1] < lost[2] else "not so",
            ", ".join(f"{label}: {ends[label][1]} of {ends[label][0]}" for label in CLIENTS))
    for layer, expected in ((7, (NONE, NONE, SOME)), (4, (NONE, SOME, SOME))):
        tell(lab, f"nginx L{layer} is reloaded five times, 6 s of calls", expected,
             under_load(lab, start(layer), five_times(lambda process: process.signal(signal.SIGHUP)), duration_ms=6_000))


def haproxy_under_load(lab):
    # At L7 it lets the calls that it has end; whether one meets the GOAWAY all the same is chance.
    for layer, expected in ((7, (NONE, NONE, None)), (4, (NONE, SOME, SOME))):
        def start(backends, layer=layer):
            proxy = Haproxy(lab, [(layer, backends, [])], hard_stop="500ms")
            return proxy, proxy.addresses[0]
        tell(lab, f"haproxy L{layer} is replaced five times (soft stop), 6 s of calls", expected,
             under_load(lab, start, five_times(Haproxy.restart), duration_ms=6_000))
