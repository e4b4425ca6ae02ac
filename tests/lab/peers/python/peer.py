"""The lab's peer on Python's grpcio: proto/penstock/lab/v1/lab.proto, a server and a client.

    peer.py --generated FOLDER --name NAME [--permit-ping-ms N] [--layers auth,metrics,log]

FOLDER holds what protoc made of the protos.
"""
import argparse
import concurrent.futures
import sys
import threading
import time

import grpc

parser = argparse.ArgumentParser()
parser.add_argument("--generated", required=True)
parser.add_argument("--name", default="")
parser.add_argument("--permit-ping-ms", type=int, default=0)
parser.add_argument("--connection-age-ms", type=int, default=0)
parser.add_argument("--max-receive-bytes", type=int, default=0)
parser.add_argument("--token", default="")
parser.add_argument("--layers", default="")
options = parser.parse_args()
sys.path.insert(0, options.generated)

from google.rpc import error_info_pb2  # noqa: E402
from penstock.lab.v1 import lab_pb2  # noqa: E402

LAB = "/penstock.lab.v1.Lab/"
CODES = {code.value[0]: code for code in grpc.StatusCode}


class Memory:
    """What the server remembers: a Tally for each key, and what the layers saw."""

    def __init__(self):
        self.lock = threading.Lock()
        self.tallies = {}
        self.seen = {}

    def change(self, key, **more):
        with self.lock:
            tally = self.tallies.setdefault(key, lab_pb2.Tally())
            before = tally.calls
            for name, count in more.items():
                setattr(tally, name, getattr(tally, name) + count)
            return before

    def saw(self, layer, code):
        with self.lock:
            name = f"{layer}:{code.name}"
            self.seen[name] = self.seen.get(name, 0) + 1

    def count(self, key, _context):
        with self.lock:
            tally = lab_pb2.Tally()
            tally.CopyFrom(self.tallies.get(key.key, tally))
            tally.seen.update(self.seen)
            return tally


class Channels:
    def __init__(self):
        self.lock = threading.Lock()
        self.channels = {}

    def of(self, wanted):
        with self.lock:
            if not wanted.name or wanted.name not in self.channels:
                self.channels[wanted.name] = self.make(wanted)
            return self.channels[wanted.name]

    @staticmethod
    def make(wanted):
        arguments = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]
        if wanted.keepalive_ms:
            arguments += [("grpc.keepalive_time_ms", wanted.keepalive_ms), ("grpc.http2.max_pings_without_data", 0)]
        arguments.append(("grpc.keepalive_permit_without_calls", int(wanted.keepalive_without_calls)))
        if wanted.max_receive_bytes:
            arguments.append(("grpc.max_receive_message_length", wanted.max_receive_bytes))
        if wanted.no_retries:
            arguments.append(("grpc.enable_retries", 0))
        if wanted.round_robin:
            arguments.append(("grpc.lb_policy_name", "round_robin"))
        if wanted.HasField("retry"):
            codes = ",".join(f'"{code}"' for code in wanted.retry.codes)
            arguments.append(("grpc.service_config",
                              '{"methodConfig":[{"name":[{}],"retryPolicy":{"maxAttempts":%d,"initialBackoff":"%ss",'
                              '"maxBackoff":"%ss","backoffMultiplier":1,"retryableStatusCodes":[%s]}}]}'
                              % (wanted.retry.max_attempts, *2 * (wanted.retry.initial_backoff_ms / 1000,), codes)))
        target = wanted.addresses[0] if len(wanted.addresses) == 1 else "ipv4:" + ",".join(wanted.addresses)
        return grpc.insecure_channel(target, arguments)


memory = Memory()
channels = Channels()


def begin(work, context):
    before = memory.change(work.key, calls=1)
    for key, value in context.invocation_metadata():
        if key == "grpc-previous-rpc-attempts":
            with memory.lock:
                memory.tallies[work.key].previous_attempts.append(int(value))
    return before


def end(work, before, context):
    if work.code == 0 or 0 < work.fail_first <= before:
        return
    if work.details:
        status = error_info_pb2.Status(code=work.code, message=work.message)
        status.details.add().Pack(error_info_pb2.ErrorInfo(reason="RECORD_NOT_FOUND", domain="lab.penstock"))
        context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(CODES[work.code], work.message)


def steps(work, count, context):
    """Yields before each step, and ends early where it sees the cancellation."""
    for number in range(count):
        gone = not context.is_active()
        if gone and not work.unchecked:
            memory.change(work.key, stopped=1)
            return
        memory.change(work.key, steps=1, steps_after_cancel=int(gone))
        yield number
    memory.change(work.key, completed=1)


def do(work, context):
    if work.next:
        return relay(work, context)
    before = begin(work, context)
    if work.fault != lab_pb2.Work.NO_FAULT:
        raise RuntimeError("a secret of the handler's")
    for _ in steps(work, work.steps, context):
        time.sleep(work.step_ms / 1000)
    end(work, before, context)
    return lab_pb2.Answer(server=options.name, payload=b"x" * work.reply_bytes)


def relay(work, context):
    channel = channels.of(lab_pb2.Channel(name=work.next, addresses=[work.next]))
    rest = lab_pb2.Work()
    rest.CopyFrom(work)
    rest.next = ""
    # grpcio hands nothing down by itself: the deadline and the cancellation are the handler's to pass on.
    call = method(channel, False).future(rest, timeout=None if work.detached else context.time_remaining())
    if not work.detached:
        context.add_callback(call.cancel)
    try:
        return call.result()
    except grpc.FutureCancelledError:
        context.abort(grpc.StatusCode.CANCELLED, "cancelled")
    except grpc.RpcError as error:
        context.abort(error.code(), error.details())


def watch(work, context):
    before = begin(work, context)
    if work.headers_first:
        context.send_initial_metadata(())
        time.sleep(work.interval_ms / 1000)
    for number in steps(work, work.messages, context):
        yield lab_pb2.Answer(server=options.name, number=number)
        if number + 1 < work.messages:
            time.sleep(work.interval_ms / 1000)
    end(work, before, context)


def method(channel, stream):
    make = channel.unary_stream if stream else channel.unary_unary
    return make(LAB + ("Watch" if stream else "Do"), lab_pb2.Work.SerializeToString, lab_pb2.Answer.FromString)


def reason_of(error):
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for detail in error_info_pb2.Status.FromString(value).details:
                info = error_info_pb2.ErrorInfo()
                if detail.Unpack(info):
                    return info.reason
    return ""


def call_once(task, outcome):
    channel = channels.of(task.channel)
    timeout = task.deadline_ms / 1000 or None
    metadata = tuple(task.metadata.items())
    outcome.messages, server, error = 0, "", None
    try:
        if task.stream:
            stream = method(channel, True)(task.work, timeout=timeout, metadata=metadata)
            for answer in stream:
                server = answer.server
                outcome.messages += 1
                if outcome.messages == task.cancel_after:
                    stream.cancel()
        else:
            server = method(channel, False)(task.work, timeout=timeout, metadata=metadata).server
            outcome.messages = 1
    except grpc.RpcError as thrown:
        error = thrown
    code = error.code() if error else grpc.StatusCode.OK
    outcome.code, outcome.message = code.value[0], (error.details() or "") if error else ""
    outcome.reason = reason_of(error) if error else ""
    outcome.codes[code.name] += 1
    if server:
        outcome.servers[server] += 1
    if error and len(outcome.failures) < 10 and outcome.message not in outcome.failures:
        outcome.failures.append(outcome.message)


def run(task, _context):
    outcome = lab_pb2.Outcome()
    task.work.payload = b"x" * task.request_bytes
    until = time.monotonic() + task.duration_ms / 1000
    made = 0
    while time.monotonic() < until if task.duration_ms else made < max(1, task.calls):
        if made:
            time.sleep(task.pause_ms / 1000)
        call_once(task, outcome)
        made += 1
    outcome.attempts = made
    return outcome


class Layer(grpc.ServerInterceptor):
    """One of auth, metrics, log and barrier around unary handlers."""

    def __init__(self, kind):
        self.kind = kind

    def intercept_service(self, continuation, details):
        handler = continuation(details)
        if handler is None or handler.response_streaming:
            return handler
        if self.kind == "auth":
            if ("authorization", "Bearer " + options.token) in details.invocation_metadata:
                return handler
            return grpc.unary_unary_rpc_method_handler(
                lambda _request, context: context.abort(grpc.StatusCode.UNAUTHENTICATED, "no token"),
                handler.request_deserializer, handler.response_serializer)
        inner = handler.unary_unary

        def layered(request, context):
            if self.kind == "barrier":
                try:
                    return inner(request, context)
                except Exception:
                    # An abort() is an exception too, without a type of its own; it has set its code.
                    if context.code() is not None:
                        raise
                    context.abort(grpc.StatusCode.INTERNAL, "the handler failed")
            # As such layers are usually written: what passes by as an exception they do not count.
            try:
                answer = inner(request, context)
            except Exception:
                if context.code() is not None:
                    memory.saw(self.kind, CODES[context.code().value[0]])
                raise
            memory.saw(self.kind, grpc.StatusCode.OK)
            return answer

        return grpc.unary_unary_rpc_method_handler(layered, handler.request_deserializer, handler.response_serializer)


def serve(name, handlers, arguments=(), interceptors=()):
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(max_workers=200), interceptors=interceptors,
                         options=[("grpc.so_reuseport", 0), *arguments])
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("penstock.lab.v1." + name, handlers)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, port


arguments = []
if options.permit_ping_ms:
    arguments += [("grpc.http2.min_ping_interval_without_data_ms", options.permit_ping_ms),
                  ("grpc.keepalive_permit_without_calls", 1)]
if options.connection_age_ms:
    arguments.append(("grpc.max_connection_age_ms", options.connection_age_ms))
if options.max_receive_bytes:
    arguments.append(("grpc.max_receive_message_length", options.max_receive_bytes))
lab, lab_port = serve("Lab", {
    "Do": grpc.unary_unary_rpc_method_handler(do, lab_pb2.Work.FromString, lab_pb2.Answer.SerializeToString),
    "Watch": grpc.unary_stream_rpc_method_handler(watch, lab_pb2.Work.FromString, lab_pb2.Answer.SerializeToString),
}, arguments, [Layer(kind) for kind in options.layers.split(",") if kind])
driver, driver_port = serve("Driver", {
    "Run": grpc.unary_unary_rpc_method_handler(run, lab_pb2.Task.FromString, lab_pb2.Outcome.SerializeToString),
    "Count": grpc.unary_unary_rpc_method_handler(memory.count, lab_pb2.Key.FromString, lab_pb2.Tally.SerializeToString),
})
print("ready", lab_port, driver_port, flush=True)
lab.wait_for_termination()
