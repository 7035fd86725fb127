"""A pooler for tests: in front of a PostgreSQL server it gives each transaction another server connection.

It speaks as much of the protocol as it takes: a client's startup is answered from that of a server connection, with a
cancel key of the pooler's own, and what a client sends goes to one server connection until the server says that no
transaction is open. Then it goes to the next one, whose session knows nothing of what that client has set or prepared.
"""

from __future__ import annotations

import secrets
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SERVERS = 3
SSL, GSS = 80877103, 80877104
READY, KEY = b"Z", b"K"
ENDS = (b"X",)


class Pipe:
    """One end of the protocol."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self._file = end.makefile("rb")

    def message(self) -> tuple[bytes, bytes]:
        """The next message: its kind, and all of its bytes. EOFError at the end."""
        kind = self._exactly(1)
        length = self._exactly(4)
        return kind, kind + length + self._exactly(struct.unpack("!I", length)[0] - 4)

    def startup(self) -> bytes:
        """The client's first message, whose kind is not written."""
        length = self._exactly(4)
        return length + self._exactly(struct.unpack("!I", length)[0] - 4)

    def send(self, data: bytes) -> None:
        self.end.sendall(data)

    def close(self) -> None:
        self._file.close()
        self.end.close()

    def _exactly(self, count: int) -> bytes:
        data = self._file.read(count)
        if len(data) < count:
            raise EOFError
        return data


class Pooler:
    """`port` of 127.0.0.1 leads to the server that listens at the socket `server`."""

    def __init__(self, server: Path) -> None:
        self._server = server
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._free: list[Pipe] = []
        self._greeting = b""
        self._changed = threading.Condition()
        self._open: list[Pipe] = []
        self.transactions = 0
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def close(self) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for pipe in list(self._open):
            with suppress(OSError):
                pipe.end.shutdown(socket.SHUT_RDWR)
        self._accepting.join()

    def _accept(self) -> None:
        clients = []
        while True:
            try:
                end, _ = self._listening.accept()
            except OSError:
                break
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else each answer waits 40 ms
            client = threading.Thread(target=self._serve, args=(Pipe(end),), daemon=True)
            client.start()
            clients.append(client)
        for client in clients:
            client.join()
        for pipe in self._open:
            pipe.close()

    def _serve(self, client: Pipe) -> None:
        self._open.append(client)
        with suppress(EOFError, OSError):
            startup = client.startup()
            while struct.unpack("!I", startup[4:8])[0] in (SSL, GSS):
                client.send(b"N")
                startup = client.startup()
            with self._changed:
                if not self._greeting:
                    self._free = [self._connected(startup) for _ in range(SERVERS)]
            client.send(self._greeting)
            while True:
                self._transaction(client)
        with suppress(OSError):
            client.end.shutdown(socket.SHUT_RDWR)

    def _connected(self, startup: bytes) -> Pipe:
        end = socket.socket(socket.AF_UNIX)
        end.connect(str(self._server))
        pipe = Pipe(end)
        self._open.append(pipe)
        pipe.send(startup)
        greeting = b""
        kind = b""
        while kind != READY:
            kind, data = pipe.message()
            # Its process number and key: a cancel has to come to the pooler, so that these are the pooler's own.
            greeting += KEY + struct.pack("!I", 12) + secrets.token_bytes(8) if kind == KEY else data
        self._greeting = greeting
        return pipe

    def _transaction(self, client: Pipe) -> None:
        kind, data = client.message()
        if kind in ENDS:
            raise EOFError
        with self._changed:
            self._changed.wait_for(lambda: bool(self._free))
            server = self._free.pop(0)
            self.transactions += 1
        ended = False
        try:
            server.send(data)
            while not ended:
                # What a client sends up to Sync or Query is answered up to ReadyForQuery.
                while kind not in (b"S", b"Q", b"F"):
                    kind, data = client.message()
                    server.send(data)
                answer = b""
                while answer != READY:
                    answer, data = server.message()
                    client.send(data)
                ended = data[-1:] == b"I"
                if not ended:
                    kind, data = client.message()
                    server.send(data)
        finally:
            if ended:
                with self._changed:
                    self._free.append(server)
                    self._changed.notify()


@contextmanager
def pooled(url: str) -> Iterator[tuple[Pooler, str]]:
    """A pooler in front of the server of `url`, and the URL of the same database by way of it."""
    from sqlalchemy.engine import make_url

    direct = make_url(url)
    folder = direct.query["host"]
    pooler = Pooler(Path(str(folder)) / ".s.PGSQL.5432")
    through = direct.difference_update_query(["host"]).set(host="127.0.0.1", port=pooler.port)
    try:
        yield pooler, through.render_as_string(hide_password=False)
    finally:
        pooler.close()
