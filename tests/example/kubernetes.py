#!/usr/bin/python3
"""Reads the example's Kubernetes manifests as a cluster and the programs would: a case for each object.

    kubernetes.py PROGRAMS MANIFEST...

Checks that what they name exists: ports, volumes, labels, and variables, which the program's --help must know; that probes, a
preStop hook and a rollout without a gap are there; and that the time to end is enough.
"""
import pathlib
import re
import subprocess
import sys

import yaml

DRAIN, GRACE, MARGIN = 5, 15, 1  # seconds; the server's defaults, and V3's second


class Bad(Exception):
    pass


def require(holds, what):
    if not holds:
        raise Bad(what)


def check_deployment(deployment, programs):
    spec = deployment["spec"]
    template = spec["template"]
    require(spec["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items(), "its selector finds its pods")
    update = spec["strategy"]["rollingUpdate"]
    require(update["maxUnavailable"] == 0 and update["maxSurge"] >= 1, "no pod goes before its successor is ready")
    pod = template["spec"]
    volumes = {volume["name"] for volume in pod["volumes"]}
    for container in pod["containers"]:
        name = container["name"]
        ports = {port["containerPort"] for port in container["ports"]}
        for probe, service in (("readinessProbe", "readiness"), ("livenessProbe", "liveness"), ("startupProbe", "liveness")):
            require(container[probe]["grpc"]["port"] in ports, f"the {probe} asks a port that the container has")
            require(container[probe]["grpc"]["service"] == service, f"the {probe} asks for {service}")
        pre_stop = container["lifecycle"]["preStop"]["sleep"]["seconds"]
        require(pod["terminationGracePeriodSeconds"] > pre_stop + DRAIN + GRACE + MARGIN, "there is time for preStop, drain and grace")
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        require(set(mounts.values()) <= volumes, "what is mounted is a volume")
        known = subprocess.run([programs / name, "--help"], capture_output=True, text=True, check=True).stdout
        for variable in container["env"]:
            require("value" in variable or "secretKeyRef" in variable["valueFrom"], f"{variable['name']} has a value")
            prefix = name.upper() + "_"
            if variable["name"].startswith(prefix):
                require(f"(Env:{variable['name']})" in known, f"{name} knows {variable['name']}")
            value = variable.get("value", "")
            if value.startswith("/"):
                require(str(pathlib.Path(value).parent) in mounts, f"{value} is below a mount")
            if variable["name"] in (prefix + "ADDRESS", prefix + "HEALTH_ADDRESS"):
                require(int(re.fullmatch(r":(\d+)", value).group(1)) in ports, f"{value} is a port of the container's")


def check_service(service, deployments):
    selector = service["spec"]["selector"]
    chosen = [d for d in deployments if selector.items() <= d["spec"]["template"]["metadata"]["labels"].items()]
    require(len(chosen) == 1, "its selector finds the pods of one deployment")
    ports = {port["name"] for c in chosen[0]["spec"]["template"]["spec"]["containers"] for port in c["ports"]}
    for port in service["spec"]["ports"]:
        require(port["targetPort"] in ports, f"its pods have the port {port['targetPort']}")


def main():
    programs = pathlib.Path(sys.argv[1])
    objects = [o for path in sys.argv[2:] for o in yaml.safe_load_all(pathlib.Path(path).read_text())]
    deployments = [o for o in objects if o["kind"] == "Deployment"]
    services = [o for o in objects if o["kind"] == "Service"]
    bad = []

    def case(name, check):
        try:
            check()
        except Exception as problem:  # a key that is missing, too
            bad.append(f"TEST CASE:  {name}: not so: {problem!r}")

    for o in deployments:
        case(f"deployment {o['metadata']['name']}", lambda: check_deployment(o, programs))
    for o in services:
        case(f"service {o['metadata']['name']}", lambda: check_service(o, deployments))
    headless = {o["spec"]["selector"]["app"] for o in services if o["spec"].get("clusterIP") == "None"}
    virtual = {o["spec"]["selector"]["app"] for o in services if "clusterIP" not in o["spec"]}
    case("both kinds of service", lambda: require({"ledger"} <= headless and {"ledger", "wallet"} <= virtual,
                                                  "the ledger is headless too, and both have an address"))
    for problem in bad:
        print(problem)
    cases = len(deployments) + len(services) + 1
    print(f"{cases - len(bad)} passed, {len(bad)} failed")
    return 1 if bad or len(deployments) != 2 or len(objects) != len(deployments) + len(services) else 0


sys.exit(main())
