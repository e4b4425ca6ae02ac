"""The lab's own processes: started, waited for, and all of them gone at the end, also after ^C or a killed runner."""
import ctypes
import os
import pathlib
import signal
import subprocess
import threading
import time

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class DidNotStart(Exception):
    pass


class Process:
    """One child. It leads a process group of its own, so that what it starts goes with it."""

    def __init__(self, command, log, environment, folder):
        self.command, self.log = [str(part) for part in command], log
        with open(log, "wb") as output:
            self.child = subprocess.Popen(self.command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                          env=environment, cwd=folder, start_new_session=True, preexec_fn=_die_with_runner)

    def alive(self):
        return self.child.poll() is None

    def output(self):
        return pathlib.Path(self.log).read_text(encoding="utf-8", errors="replace")

    def wait_for(self, condition, limit=30):
        """What condition(output) gives once it is true."""
        until = time.monotonic() + limit
        while True:
            found = condition(self.output())
            if found:
                return found
            if not self.alive() or time.monotonic() > until:
                what = "ended" if not self.alive() else f"was not ready after {limit} s"
                raise DidNotStart(f"{' '.join(self.command)} {what}:\n{self.output()[-2000:]}")
            time.sleep(0.01)

    def signal(self, number):
        if self.alive():
            self.child.send_signal(number)

    def wait(self, limit):
        """Whether it has ended by itself."""
        try:
            self.child.wait(limit)
            return True
        except subprocess.TimeoutExpired:
            return False

    def stop(self):
        """SIGTERM, and SIGKILL to what is left of its group after two seconds."""
        self.signal(signal.SIGTERM)
        self.wait(2)
        try:
            os.killpg(self.child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.child.wait()


def _die_with_runner():
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Processes:
    """Starts processes on the thread that made it, and on no other: a child dies with the thread that started it."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.thread = threading.current_thread()
        self.all = []
        self.count = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop(list(self.all))

    def start(self, name, command, environment=None, folder=None):
        assert threading.current_thread() is self.thread
        self.count += 1
        process = Process(command, self.folder / f"{self.count:03}-{name}.log", os.environ | (environment or {}), folder)
        self.all.append(process)
        return process

    def stop(self, processes):
        """All at once, so that none is waited for twice."""
        for process in processes:
            process.signal(signal.SIGTERM)
        for process in processes:
            process.stop()
            if process in self.all:
                self.all.remove(process)
