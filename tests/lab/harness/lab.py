"""What an experiment works with: peers to start, things to do at once, rows to tell."""
import concurrent.futures
import contextlib
import itertools
import threading
import time

from harness.languages import ALL, Absent, DoesNotBuild, python_protos
from harness.peers import Peer


class Row:
    """One line of the table: what was expected before the run, and what was seen."""

    def __init__(self, axis, case, expected, seen, detail=""):
        self.axis, self.case, self.expected, self.seen, self.detail = axis, case, expected, seen, detail

    @property
    def same(self):
        if self.seen is None:
            return "absent"
        return "yes" if self.expected == self.seen else "NO"

    def as_json(self):
        return {"axis": self.axis, "case": self.case, "expected": self.expected, "seen": self.seen, "detail": self.detail, "same": self.same}


class Lab:
    """Threads: rows and keys may come from several threads; peers are started from any."""

    def __init__(self, processes, build, scratch, short):
        self.processes, self.build, self.scratch, self.short = processes, build, scratch, short
        self.rows, self.absent_peers = [], {}
        self.axis = "peers"
        self.lock = threading.Lock()
        self.generated = python_protos(scratch / "python")
        self.languages = {}
        self._keys = itertools.count(1)

    def prepare(self):
        """Builds the peers; those that cannot be had are remembered as absent."""
        for language in ALL:
            if self.short and language.name not in ("penstock", "grpc++", "python"):
                continue
            try:
                began = time.monotonic()
                language.prepare(self.build, self.scratch)
                self.languages[language.name] = language
                self.say(f"peer {language.name}: ready in {time.monotonic() - began:.0f} s")
            except Absent as why:
                self.absent_peers[language.name] = str(why)
                self.say(f"peer {language.name}: absent: {why}")
            except DoesNotBuild as why:
                self.row(f"the peer in {language.name} builds", "yes", str(why))

    def say(self, text):
        with self.lock:
            print(text, flush=True)

    def key(self):
        """A key that no other call uses."""
        with self.lock:
            return f"k{next(self._keys)}"

    def start(self, language, name=None, **flags):
        """A peer. flags: permit_ping_ms=5000 becomes --permit-ping-ms 5000."""
        return Peer(language, self._launch(language, name or language, flags), self.generated)

    def start_many(self, wanted):
        """A peer for each (language, flags), all at once."""
        processes = [(language, self._launch(language, language, flags)) for language, flags in wanted]
        return self.together([lambda one=one: Peer(*one, self.generated) for one in processes])

    def start_all(self, **flags):
        """A peer of each language that is there, by name."""
        return dict(zip(self.languages, self.start_many([(name, flags) for name in self.languages])))

    def _launch(self, language, name, flags):
        made = self.languages[language]
        words = [word for flag, value in flags.items() for word in ("--" + flag.replace("_", "-"), value)]
        return self.processes.start(name, [*made.command(), "--name", name, *words], environment=getattr(made, "environment", None))

    def stop(self, *peers):
        self.processes.stop([peer.process for peer in peers])

    @contextlib.contextmanager
    def threads(self, count):
        """A pool, which has ended all of its work at the end. ^C ends the peers first, so that nothing waits for them."""
        with concurrent.futures.ThreadPoolExecutor(count) as pool:
            try:
                yield pool
            except (KeyboardInterrupt, SystemExit):
                pool.shutdown(wait=False, cancel_futures=True)
                self.processes.stop(list(self.processes.all))
                raise

    def together(self, functions, at_once=32):
        """Their results, in their order; the first exception is raised after all have ended."""
        with self.threads(at_once) as pool:
            return [future.result() for future in [pool.submit(function) for function in functions]]

    def row(self, case, expected, seen, detail=""):
        row = Row(self.axis, case, expected, seen, detail)
        with self.lock:
            self.rows.append(row)
            mark = {"yes": "same", "NO": "DIFFERENT", "absent": "absent"}[row.same]
            print(f"  {mark:9} {case}: {seen if seen is not None else detail}"
                  + (f" (expected: {expected})" if row.same == "NO" else "") + (f" [{detail}]" if detail and seen is not None else ""), flush=True)

    def absent(self, case, expected, why):
        self.row(case, expected, None, why)


def eventually(condition, limit=30, every=0.02):
    """What the condition gives once it is true; its last value where it never was."""
    until = time.monotonic() + limit
    while True:
        value = condition()
        if value or time.monotonic() > until:
            return value
        time.sleep(every)
