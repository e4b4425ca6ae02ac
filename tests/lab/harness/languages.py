"""The languages whose gRPC the lab has a peer for: whether their tools are here, and how their peer is built and started."""
import os
import pathlib
import shutil
import subprocess

HERE = pathlib.Path(__file__).resolve().parent.parent
ROOT = HERE.parent.parent
PROTO = ROOT / "proto"
LAB_PROTO = PROTO / "penstock/lab/v1/lab.proto"
ERROR_PROTO = PROTO / "google/rpc/error_info.proto"
GO_CODE = pathlib.Path("/usr/share/gocode/src")
JAVA_CODE = pathlib.Path("/usr/share/java")


class Absent(Exception):
    """The peer cannot be had here; the text says what is missing."""


class DoesNotBuild(Exception):
    """Everything that it needs is here, and it does not build: a fault of the lab's."""


def run(command, folder=None, environment=None):
    done = subprocess.run([str(part) for part in command], cwd=folder, env=os.environ | (environment or {}),
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    if done.returncode != 0:
        raise DoesNotBuild(f"{' '.join(str(part) for part in command)}: exit code {done.returncode}\n{done.stdout[-3000:]}")
    return done.stdout


def newer(target, *sources):
    """Whether `target` is there and younger than its sources."""
    target = pathlib.Path(target)
    return target.exists() and all(target.stat().st_mtime >= pathlib.Path(source).stat().st_mtime for source in sources)


def need(**what):
    """need(go='golang-go'): the command, or the file, and the package that brings it."""
    for path, package in what.items():
        if shutil.which(path) is None:
            raise Absent(f"there is no {path} (Debian package {package})")


def python_protos(folder):
    """What protoc makes for Python; for the peer and for the lab itself."""
    if not newer(folder / "penstock/lab/v1/lab_pb2.py", LAB_PROTO, ERROR_PROTO):
        folder.mkdir(parents=True, exist_ok=True)
        run(["protoc", "-I", PROTO, f"--python_out={folder}", LAB_PROTO, ERROR_PROTO])
    return folder


class Cpp:
    def __init__(self, name, program):
        self.name, self.program = name, program

    def prepare(self, build, _scratch):
        self.path = build / "tests/lab" / self.program
        if not self.path.exists():
            raise Absent(f"{self.path} is not built")

    def command(self):
        return [self.path]


class Python:
    name = "python"

    def prepare(self, _build, scratch):
        self.generated = python_protos(scratch / "python")

    def command(self):
        return ["/usr/bin/python3", HERE / "peers/python/peer.py", "--generated", self.generated]


class Go:
    """grpc-go 1.33 of Debian, which has no modules: GOPATH is the scratch folder, then Debian's code."""
    name = "go"
    # Its retries are off without the variable (gRFC A6 was young).
    environment = {"GO111MODULE": "off", "GOFLAGS": "", "GRPC_GO_RETRY": "on"}

    def prepare(self, _build, scratch):
        need(go="golang-go", **{"protoc-gen-go": "golang-goprotobuf-dev"})
        if not (GO_CODE / "google.golang.org/grpc").exists():
            raise Absent("there is no grpc-go (Debian package golang-google-grpc-dev)")
        self.place = scratch / "go"
        self.generate()
        self.path = self.build("peer", HERE / "peers/go/peer.go")

    def generate(self):
        package = self.place / "src/lab/labpb"
        if newer(package / "lab.pb.go", LAB_PROTO):
            return
        package.mkdir(parents=True, exist_ok=True)
        run(["protoc", "-I", PROTO, f"--go_out=plugins=grpc,import_path=labpb:{package}", LAB_PROTO])
        (package / "penstock/lab/v1/lab.pb.go").replace(package / "lab.pb.go")
        shutil.rmtree(package / "penstock")

    def build(self, name, *sources, tags=""):
        """The program `name` of these sources, which stand in one folder."""
        program = self.place / name
        if not newer(program, *sources, LAB_PROTO):
            folder = self.place / "src/lab" / name
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            for source in sources:
                shutil.copy(source, folder)
            run(["go", "build", "-tags", tags, "-o", program, f"lab/{name}"], folder=self.place,
                environment=self.environment | {"GOPATH": f"{self.place}:{GO_CODE.parent}", "GOCACHE": str(self.place / "cache")})
        return program

    def command(self):
        return [self.path]


class Node:
    """@grpc/grpc-js from npm, in a folder of the build."""
    name = "node"

    def prepare(self, _build, scratch):
        need(node="nodejs", npm="npm")
        self.place = scratch / "node"
        if not newer(self.place / "installed", *(HERE / "peers/node" / name for name in ("package.json", "package-lock.json"))):
            self.place.mkdir(parents=True, exist_ok=True)
            for name in ("package.json", "package-lock.json"):
                shutil.copy(HERE / "peers/node" / name, self.place)
            try:
                run(["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"], folder=self.place)
            except DoesNotBuild as why:
                raise Absent(f"npm has no @grpc/grpc-js for us: {why}") from None
            (self.place / "installed").touch()
        self.environment = {"NODE_PATH": str(self.place / "node_modules"), "LAB_PROTO_PATH": str(PROTO)}

    def command(self):
        return ["node", HERE / "peers/node/peer.js"]


class Java:
    """libgrpc-java 1.41 of Debian; its jars do not name what they need, so they are listed here."""
    name = "java"
    JARS = {
        "libgrpc-java": ["grpc-api", "grpc-core", "grpc-context", "grpc-netty", "grpc-protobuf", "grpc-protobuf-lite", "grpc-stub"],
        "libprotobuf-java": ["protobuf"],
        "libguava-java": ["guava"],
        "libnetty-java": ["netty-buffer", "netty-codec", "netty-codec-http", "netty-codec-http2", "netty-codec-socks", "netty-common",
                          "netty-handler", "netty-handler-proxy", "netty-resolver", "netty-transport", "netty-transport-native-epoll",
                          "netty-transport-native-unix-common"],
        "libperfmark-java": ["perfmark-api"],
        "libopencensus-java": ["opencensus-api"],
    }

    def prepare(self, _build, scratch):
        need(java="default-jdk-headless", javac="default-jdk-headless")
        jars = []
        for package, names in self.JARS.items():
            for name in names:
                if not (JAVA_CODE / f"{name}.jar").exists():
                    raise Absent(f"there is no {name}.jar (Debian package {package})")
                jars.append(str(JAVA_CODE / f"{name}.jar"))
        place = scratch / "java"
        classes = place / "classes"
        self.path = ":".join([str(classes), *jars])
        sources = sorted((HERE / "peers/java").glob("*.java"))
        if newer(classes / "Peer.class", *sources, LAB_PROTO, ERROR_PROTO):
            return
        shutil.rmtree(place, ignore_errors=True)
        classes.mkdir(parents=True)
        run(["protoc", "-I", PROTO, f"--java_out={place}", LAB_PROTO, ERROR_PROTO])
        run(["javac", "-nowarn", "-d", classes, "-cp", self.path, *sources, *place.rglob("*.java")])

    def command(self):
        return ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", self.path, "Peer"]


ALL = [Cpp("penstock", "lab_penstock"), Cpp("grpc++", "lab_plain"), Python(), Node(), Go(), Java()]
