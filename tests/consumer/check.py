#!/usr/bin/env python3
"""Builds and runs programs that use penstock as its users do: a case each, and 'N passed, N failed' at the end.

    check.py --source TREE --build BUILD --scratch DIR [CASE ...]

BUILD is a build folder of the tree that is compiled already; it is installed into the scratch folder for the cases that
use an installation. Everything is built with ccache where it is there.
"""
import argparse
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import time

HERE = pathlib.Path(__file__).resolve().parent
# -O0 and no debug information: it is the building that is tested.
MESON = ["-Dbuildtype=plain", "-Dwarning_level=0"]


class Failed(Exception):
    pass


def run(command, environment=None, **options):
    result = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | (environment or {}),
        **options,
    )
    if result.returncode != 0:
        raise Failed(f"{' '.join(str(part) for part in command)}\nexit code {result.returncode}\n{result.stdout[-6000:]}")
    return result.stdout


def libraries_of(program):
    return run(["ldd", program])


class Cases:
    def __init__(self, source, build, scratch):
        self.source, self.build, self.scratch = source, build, scratch
        self.installed = None

    def link(self, subprojects):
        """penstock as a symlink to the tree."""
        (subprojects / "penstock").symlink_to(self.source)

    def wrap(self, subprojects):
        """penstock by a wrap, of an archive that needs no network."""
        archive = subprojects / "packagefiles" / "penstock-0.tar.gz"
        archive.parent.mkdir()
        wanted = ("include", "meson.build", "meson_options.txt", "proto", "src", "subprojects", "tests/support/check_layers.py",
                  "README.md", "CHANGELOG.md", "LICENSE", "docs")
        with tarfile.open(archive, "w:gz") as tar:
            for name in wanted:
                tar.add(self.source / name, f"penstock-0/{name}")
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        (subprojects / "penstock.wrap").write_text(
            f"[wrap-file]\ndirectory = penstock-0\nsource_filename = {archive.name}\nsource_hash = {digest}\n\n"
            "[provide]\npenstock = penstock_dep\npenstock_core = penstock_core_dep\n")

    def subproject(self, project, name, options, place=None):
        """The consumer in HERE/project, with penstock in its subprojects folder: a symlink, or as `place` puts it there."""
        tree = self.scratch / name
        shutil.rmtree(tree, ignore_errors=True)
        shutil.copytree(HERE / project, tree)
        (tree / "subprojects").mkdir()
        (place or self.link)(tree / "subprojects")
        run(["meson", "setup", tree / "build", tree] + MESON + options)
        run(["ninja", "-C", tree / "build"])
        run([tree / "build" / "consumer"])
        unused = [path.name for part in ("testing", "otel", "prometheus") for path in (tree / "build").rglob(f"libpenstock-{part}*")
                  if path.is_file()]  # Not the links that meson makes to a library before it is there.
        if unused:
            raise Failed(f"built, and not used: {unused}")
        run(["meson", "install", "-C", tree / "build", "--no-rebuild", "--destdir", tree / "installed"])
        return tree / "build" / "consumer"

    def prefix(self):
        if self.installed is None:
            destination = self.scratch / "installed"
            shutil.rmtree(destination, ignore_errors=True)
            run(["meson", "install", "-C", self.build, "--no-rebuild", "--destdir", destination])
            self.installed = destination / "usr" / "local"
        return self.installed

    def pkg_config_path(self):
        return {"PKG_CONFIG_PATH": ":".join(str(path) for path in self.prefix().rglob("pkgconfig"))}

    def case_core_without_grpc(self):
        """penstock_core_dep alone, in a project without gRPC"""
        program = self.subproject("core", "core", [])
        for library in ("grpc", "protobuf", "libuv"):
            if library in libraries_of(program):
                raise Failed(f"{program} needs {library}")

    def case_core_shared(self):
        """penstock_core_dep as a shared library whose soname carries the minor version"""
        program = self.subproject("core", "core-shared", ["-Ddefault_library=shared"])
        version = run(["meson", "introspect", "--projectinfo", self.source / "meson.build"])
        minor = ".".join(version.split('"version": "')[1].split('"')[0].split(".")[:2])
        if f"libpenstock-core.so.{minor} " not in libraries_of(program):
            raise Failed(f"no libpenstock-core.so.{minor} among\n{libraries_of(program)}")

    def case_core_by_wrap(self):
        """penstock_core_dep by a wrap, its symbols visible in a static program that hides its own"""
        self.subproject("core", "core-wrap", ["-Dcpp_args=-fvisibility=hidden"], self.wrap)

    def case_core_installed(self):
        """the installed penstock-core by pkg-config"""
        flags = run(["pkg-config", "--cflags", "--libs", "--static", "penstock-core"], self.pkg_config_path()).split()
        program = self.scratch / "core-installed"
        run(["c++", "-std=c++20", HERE / "core" / "main.cpp", "-o", program] + flags)
        run([program])

    def case_service_static(self):
        """a service with penstock as a static subproject"""
        program = self.subproject("service", "service-static", ["-Ddefault_library=static"])
        if "libpenstock" in libraries_of(program):
            raise Failed(f"{program} needs a shared penstock")

    def case_service_shared_hidden(self):
        """a service with penstock as a shared subproject by a wrap, its own symbols hidden"""
        options = ["-Ddefault_library=shared", "-Dcpp_args=-fvisibility=hidden -fvisibility-inlines-hidden",
                   "-Dpenstock:otel=disabled", "-Dpenstock:prometheus=disabled"]
        program = self.subproject("service", "service-shared-hidden", options, self.wrap)
        if "libpenstock-client" not in libraries_of(program):
            raise Failed(f"{program} does not use a shared penstock")
        runtime = re.search(r"libpenstock-runtime\S* => (\S+)", libraries_of(program)).group(1)
        if "NODELETE" not in run(["readelf", "-d", runtime]):
            raise Failed(f"{runtime} may be unloaded, though its thread never ends")

    def case_layout(self):
        """the installation has every public header, library, module and document, and nothing else"""
        prefix = self.prefix()
        installed = {str(path.relative_to(prefix)) for path in prefix.rglob("*") if not path.is_dir()}
        headers = {f"include/penstock/{path.relative_to(self.source / 'include/penstock')}"
                   for path in (self.source / "include/penstock").rglob("*.h")}
        documents = {f"share/doc/penstock/{name}" for name in ("README.md", "CHANGELOG.md", "LICENSE")}
        documents |= {f"share/doc/penstock/docs/{path.relative_to(self.source / 'docs')}" for path in (self.source / "docs").rglob("*")
                      if path.is_file() and "docs/example/" not in path.as_posix()}
        rest = sorted(installed - headers - documents)
        missing = sorted((headers | documents) - installed)
        if missing:
            raise Failed(f"not installed: {missing}")
        allowed = re.compile(r"lib(64)?/([^/]+/)?(libpenstock-[a-z-]+\.(a|so(\.[0-9.]+)?)|pkgconfig/penstock(-[a-z]+)*\.pc|"
                             r"cmake/penstock/penstockConfig(Version)?\.cmake)|share/penstock/proto/penstock/options\.proto|"
                             r"include/(penstock/options|grpc/health/v1/health)(\.grpc)?\.pb\.h")
        strange = [name for name in rest if not allowed.fullmatch(name)]
        if strange:
            raise Failed(f"installed, and nobody knows why: {strange}")
        for module in ("penstock", "penstock-core", "penstock-health-proto", "penstock-testing"):
            if not any(name.endswith(f"pkgconfig/{module}.pc") for name in rest):
                raise Failed(f"no {module}.pc among {rest}")
            run(["pkg-config", "--validate", module], self.pkg_config_path())

    def case_service_installed(self):
        """a service with the installed penstock by pkg-config"""
        tree = self.scratch / "service-installed"
        shutil.rmtree(tree, ignore_errors=True)
        command = ["meson", "setup", "--wrap-mode=nofallback", tree, HERE / "service"]
        run(command + MESON + ["-Dprefer_static=false"], self.pkg_config_path())
        run(["ninja", "-C", tree])
        run([tree / "consumer"])

    def case_service_cmake(self):
        """a service with the installed penstock by CMake's find_package"""
        tree = self.scratch / "service-cmake"
        shutil.rmtree(tree, ignore_errors=True)
        run(["cmake", "-G", "Ninja", "-S", HERE / "service", "-B", tree, f"-DCMAKE_PREFIX_PATH={self.prefix()}"])
        run(["ninja", "-C", tree])
        run([tree / "consumer"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--scratch", type=pathlib.Path, required=True)
    parser.add_argument("cases", nargs="*")
    arguments = parser.parse_args()
    scratch = arguments.scratch.resolve()
    scratch.mkdir(parents=True, exist_ok=True)
    cases = Cases(arguments.source.resolve(), arguments.build.resolve(), scratch)

    wanted = [name for name in dir(cases) if name.startswith("case_")]
    if arguments.cases:
        wanted = [name for name in wanted if name.removeprefix("case_") in arguments.cases]
    failed = 0
    for name in wanted:
        case = getattr(cases, name)
        started = time.monotonic()
        try:
            case()
            print(f"ok    {case.__doc__} ({time.monotonic() - started:.1f} s)", flush=True)
        except Failed as problem:
            failed += 1
            print(f"TEST CASE:  {case.__doc__}\n{problem}", flush=True)
    print(f"{len(wanted) - failed} passed, {failed} failed")
    return 1 if failed or not wanted else 0


sys.exit(main())
