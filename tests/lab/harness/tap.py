"""A TCP relay that counts: whether a client kept its connection shows in how many it opened, in every language alike."""
import asyncio
import threading


class Taps:
    """A thread with a loop for any number of taps.

        with Taps() as taps:
            tap = taps.to("127.0.0.1:7000")
            ... a client calls tap.address ...
            tap.accepted
    """

    def __enter__(self):
        self.loop = asyncio.new_event_loop()
        self.taps = []
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_):
        asyncio.run_coroutine_threadsafe(self._end(), self.loop).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()

    async def _end(self):
        for tap in self.taps:
            tap.server.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0.1)  # Closed transports say so from the loop.

    def to(self, target):
        tap = Tap(target)
        asyncio.run_coroutine_threadsafe(tap.listen(), self.loop).result(10)
        self.taps.append(tap)
        return tap


class Tap:
    def __init__(self, target):
        self.host, self.port = target.rsplit(":", 1)
        self.accepted = 0

    async def listen(self):
        self.server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        self.address = "127.0.0.1:%d" % self.server.sockets[0].getsockname()[1]

    async def _relay(self, reader, writer):
        self.accepted += 1
        onward = None
        try:
            back, onward = await asyncio.open_connection(self.host, int(self.port))
            # Whichever side ends first ends the other.
            pumps = [asyncio.ensure_future(_pump(reader, onward)), asyncio.ensure_future(_pump(back, writer))]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
        except OSError:
            pass
        finally:
            for one in (writer, onward):
                if one is not None:
                    one.close()


async def _pump(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
