"""A peer that runs: where its server is, and calls made through it."""
import sys

import grpc


class Peer:
    """Made by Lab.start()."""

    def __init__(self, language, process, generated):
        if str(generated) not in sys.path:
            sys.path.insert(0, str(generated))
        from penstock.lab.v1 import lab_pb2
        self.language, self.process, self.pb = language, process, lab_pb2
        self.port, driver = process.wait_for(_ports, limit=60)
        self.address = f"127.0.0.1:{self.port}"
        # The calls that drive it are no part of any experiment.
        self.channel = grpc.insecure_channel(f"127.0.0.1:{driver}", [("grpc.enable_http_proxy", 0)])
        path = "/penstock.lab.v1.Driver/"
        self._run = self.channel.unary_unary(path + "Run", lab_pb2.Task.SerializeToString, lab_pb2.Outcome.FromString)
        self._count = self.channel.unary_unary(path + "Count", lab_pb2.Key.SerializeToString, lab_pb2.Tally.FromString)

    def run(self, to, work=None, limit=120, channel=None, **task):
        """Has the peer call `to`, an address or a list of them; work, channel and task are fields of the messages."""
        addresses = [to] if isinstance(to, str) else list(to)
        return self._run(self.pb.Task(channel=self.pb.Channel(addresses=addresses, **(channel or {})),
                                      work=self.pb.Work(**(work or {})), **task), timeout=limit)

    def count(self, key):
        return self._count(self.pb.Key(key=key), timeout=30)


def _ports(output):
    for line in output.splitlines():
        words = line.split()
        if len(words) == 3 and words[0] == "ready":
            return int(words[1]), int(words[2])
    return None


CODES = {code.value[0]: code.name for code in grpc.StatusCode}


def name_of(code):
    return CODES.get(code, str(code))
