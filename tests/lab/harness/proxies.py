"""nginx and haproxy, run for one experiment each, on ports that were free a moment ago."""
import os
import pathlib
import shutil
import socket
import time

from harness.languages import ROOT, Absent
from harness.processes import DidNotStart

TOOLS = f"{os.environ.get('PATH', '')}:/usr/sbin:{ROOT / 'build/tools'}"


def find(name, package):
    path = shutil.which(name, path=TOOLS)
    if path is None:
        raise Absent(f"there is no {name} (Debian package {package})")
    return path


def free_ports(count):
    """Each of them free; held together while they are looked for, so that they differ."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _start(lab, name, count, command_for):
    """Starts what command_for(ports) says; somebody else may have taken a port in between, so a few times."""
    for attempt in (1, 2, 3):
        ports = free_ports(count)
        process = lab.processes.start(name, command_for(ports))
        try:
            until = time.monotonic() + 10
            while not all(listens(port) for port in ports):
                if not process.alive() or time.monotonic() > until:
                    raise DidNotStart(f"{name}:\n{process.output()[-2000:]}")
                time.sleep(0.02)
            return process, [f"127.0.0.1:{port}" for port in ports]
        except DidNotStart:
            lab.processes.stop([process])
            if attempt == 3:
                raise


def nginx(lab, listeners, shutdown="3s"):
    """A listener is (layer, backends, options): 4 with options of its server block, 7 with those of its server block; returns the
    process and an address for each. An option that starts with `location:` goes into the location."""
    program = find("nginx", "nginx")
    module = next((path for path in ("/usr/lib/nginx/modules/ngx_stream_module.so", ROOT / "build/tools/ngx_stream_module.so") if os.path.exists(path)), None)
    if module is None:
        raise Absent("there is no stream module for nginx (Debian package libnginx-mod-stream)")
    place = lab.scratch / f"nginx-{lab.key()}"
    place.mkdir(parents=True, exist_ok=True)

    def command(ports):
        blocks = {4: "", 7: ""}
        for number, (port, (layer, backends, options)) in enumerate(zip(ports, listeners)):
            servers = "".join(f"server {address}; " for address in backends)
            own = "".join(f"{option}; " for option in options if not option.startswith("location:"))
            inner = "".join(f"{option[9:]}; " for option in options if option.startswith("location:"))
            if layer == 4:
                blocks[4] += f"upstream u{number} {{ {servers}}} server {{ listen 127.0.0.1:{port}; proxy_pass u{number}; {own}}}\n"
            else:
                blocks[7] += (f"upstream u{number} {{ {servers}keepalive 64; }} server {{ listen 127.0.0.1:{port} http2; {own}"
                              f"location / {{ grpc_pass grpc://u{number}; {inner}}} }}\n")
        user = "user root;" if os.geteuid() == 0 else ""
        paths = " ".join(f"{kind}_temp_path {place}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        (place / "nginx.conf").write_text(
            f"load_module {module}; daemon off; {user} worker_processes 1; worker_shutdown_timeout {shutdown};\n"
            f"pid {place}/pid; error_log stderr warn; events {{ worker_connections 1024; }}\n"
            f"stream {{\n{blocks[4]}}}\nhttp {{\naccess_log off; {paths}\n{blocks[7]}}}\n")
        return [program, "-p", place, "-e", "stderr", "-c", place / "nginx.conf"]

    return _start(lab, "nginx", len(listeners), command)


class Haproxy:
    """A frontend is (layer, backends, options); options are lines of its section, those that start with `server:` of its
    backend's. `process` is the one that runs; restart() starts another that takes over and has it leave."""

    def __init__(self, lab, frontends, hard_stop="3s"):
        self.lab, self.program = lab, find("haproxy", "haproxy")
        self.config = lab.scratch / f"haproxy-{lab.key()}.cfg"

        def command(ports):
            text = (f"global\n  maxconn 1024\n  nbthread 1\n  hard-stop-after {hard_stop}\n"
                    "defaults\n  timeout connect 2s\n  timeout client 60s\n  timeout server 60s\n")
            for number, (port, (layer, backends, options)) in enumerate(zip(ports, frontends)):
                mode, h2 = ("tcp", "") if layer == 4 else ("http", " proto h2")
                text += f"frontend f{number}\n  mode {mode}\n  bind 127.0.0.1:{port}{h2}\n  default_backend b{number}\n"
                text += "".join(f"  {option}\n" for option in options if not option.startswith("server:"))
                text += f"backend b{number}\n  mode {mode}\n  balance roundrobin\n"
                text += "".join(f"  {option[7:]}\n" for option in options if option.startswith("server:"))
                text += "".join(f"  server s{i} {address}{h2}\n" for i, address in enumerate(backends))
            pathlib.Path(self.config).write_text(text)
            return [self.program, "-db", "-f", self.config]

        self.process, self.addresses = _start(lab, "haproxy", len(frontends), command)

    def restart(self):
        """On the main thread."""
        self.process = self.lab.processes.start("haproxy", [self.program, "-db", "-f", self.config, "-sf", self.process.child.pid])
