"""Foreign processes: clients of the job's ports, and servers where it expects its store."""
import contextlib
import os
import socket
import struct
import threading

_VALIDATE, _SET, _DELETE, _LIST = 0, 1, 8, 17  # from LibTorch's TCPStore
_MAGIC = 0x3C85F7CE


def _text(text):
    return struct.pack("<Q", len(text)) + text


def _greeting():
    return bytes([_VALIDATE]) + struct.pack("<I", _MAGIC)


_MESSAGES = {
    "garbage": os.urandom(65536),
    "text": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "zeros": bytes(65536),
    "huge length": _greeting() + bytes([_SET]) + struct.pack("<Q", 1 << 62) + b"x" * 1024,
    "a half message": _greeting() + bytes([_SET]) + struct.pack("<Q", 1000) + b"x",
    "keys set": _greeting() + b"".join(bytes([_SET]) + _text(b"stranger%d" % i) + _text(b"x" * 100) for i in range(1000)),
    "keys deleted": _greeting() + b"".join(bytes([_DELETE]) + _text(b"stranger%d" % i) for i in range(1000)),
}


def visit(kind, port):
    """Connects; its result is closed at the end of the case."""
    guests = contextlib.ExitStack()
    _visit(kind, port, guests)
    return guests


def _visit(kind, port, guests):
    if kind == "many connections":
        for _ in range(200):
            _connect(guests, port)
        return
    if kind == "reset":
        one = socket.create_connection(("127.0.0.1", port), 2)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.sendall(b"x")
        one.close()
        return
    one = _connect(guests, port)
    if kind == "half-open":
        return
    if kind == "slowloris":
        done = threading.Event()
        guests.callback(done.set)
        threading.Thread(target=_drip, args=(one, done), daemon=True).start()
        return
    with contextlib.suppress(OSError, struct.error):  # the server may close it before the end
        if kind.startswith("every key"):
            _spoil_keys(one, kind)
        else:
            one.sendall(_MESSAGES[kind])


def _spoil_keys(one, kind):
    """Spoils all keys of the store."""
    one.sendall(_greeting() + bytes([_LIST]))
    answer = one.makefile("rb")
    for _ in range(_number(answer)):
        key = answer.read(_number(answer))
        one.sendall(bytes([_DELETE]) + _text(key) if kind == "every key deleted" else bytes([_SET]) + _text(key) + _text(b"spoilt"))


def _number(answer):
    return struct.unpack("<Q", answer.read(8))[0]


def _connect(guests, port):
    one = guests.enter_context(socket.create_connection(("127.0.0.1", port), 2))
    one.settimeout(2)
    return one


def _drip(one, done):
    with contextlib.suppress(OSError):
        for byte in _greeting() + bytes(10**6):
            one.sendall(bytes([byte]))
            if done.wait(0.1):
                return


def listen(kind, port):
    """Starts a server that is not the store: "mute" never answers, "garbage" answers at once, "closing" hangs up."""
    server = socket.create_server(("127.0.0.1", port))
    held = []

    def serve():
        with contextlib.suppress(OSError):
            while True:
                guest, _ = server.accept()
                if kind == "closing":
                    guest.close()
                    continue
                held.append(guest)
                if kind == "garbage":
                    guest.sendall(os.urandom(4096))

    threading.Thread(target=serve, daemon=True).start()

    def close():
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        server.close()
        for guest in held:
            guest.close()

    closing = contextlib.ExitStack()
    closing.callback(close)
    return closing
