"""Pods of a penstock server are replaced, one after the other, under plain clients of every language, with 0, 5 and 50 ms each way
between them. No call may fail: the clients do nothing but call, with 10 ms between a caller's calls. (Without a pause they starve
each other on a small machine: a Node or Java client that does not get to run within the server's handshake_window loses calls.)
"""
NAME = "rollouts"
TITLE = "Clients of every language through rollouts of penstock's server"
SHORT = True

OUTSTANDING = 16  # of each language; all call at once


def run(lab):
    clients = [name for name in ("grpc++", "python", "node", "go", "java") if name in lab.languages]
    for name, why in lab.absent_peers.items():
        if name != "penstock":
            lab.absent(f"{name} through rollouts", "0 failed", why)
    drivers = {name: lab.start(name) for name in clients}
    # To themselves, so that none is busy starting (Java compiles) when its connection is told to go away.
    lab.together([lambda driver=driver: driver.run(driver.address, duration_ms=1000) for driver in drivers.values()
                  for _ in range(OUTSTANDING)], at_once=OUTSTANDING * len(drivers))
    for delay in (5,) if lab.short else (0, 5, 50):
        # The drain covers what a client's handshake takes: three round trips of it.
        pods = lab.processes.start("rollout", [lab.build / "tests/lab/lab_rollout", delay, 50 + 6 * delay])
        port = pods.wait_for(_port)
        seconds = 4 if lab.short else 20
        tasks = [(name, driver) for name, driver in drivers.items() for _ in range(OUTSTANDING)]
        outcomes = lab.together([lambda driver=driver: driver.run(f"127.0.0.1:{port}", channel={"name": f"rollouts-{delay}"},
                                                                  deadline_ms=20_000, duration_ms=seconds * 1000, pause_ms=10)
                                 for _, driver in tasks], at_once=len(tasks))
        lab.processes.stop([pods])
        ended = [line for line in pods.output().splitlines() if line.startswith("rollouts ")]
        rollouts, abandoned = (int(word) for word in ended[0].split()[1::2]) if ended else (0, -1)
        lab.row(f"pods replaced, {delay} ms each way", "enough, none abandoned",
                "enough, none abandoned" if rollouts >= seconds // 3 and abandoned == 0 else f"{rollouts}, {abandoned} abandoned",
                f"{rollouts} rollouts")
        for name in drivers:
            own = [outcome for (of, _), outcome in zip(tasks, outcomes) if of == name]
            calls = sum(sum(outcome.codes.values()) for outcome in own)
            answered = sum(outcome.codes.get("OK", 0) for outcome in own)
            why = sorted({text for outcome in own for text in outcome.failures})[:3]
            lab.row(f"{name}, {delay} ms each way", "0 failed", f"{calls - answered} failed" if calls else "no calls",
                    f"{calls} calls" + (f": {why}" if why else ""))


def _port(output):
    for line in output.splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == "ready":
            return int(words[1])
    return None
