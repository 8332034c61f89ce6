"""A real Milvus server that is reachable from this machine's guarded processes only.

PyPI's `milvus` is a server that listens on all interfaces, whatever its settings say. So it runs,
and its client too, in a network namespace that has nothing but a loopback of its own: `unshare
--net`. All processes of the namespace end with the first of them (`--pid --kill-child`).

    python tests/milvus_server.py COMMAND...    run a command in such a namespace
"""

import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

SERVER = "ASSAY_TEST_MILVUS"
"""Environment variable with the folder of the environment that has the package `milvus`."""

ADDRESS = "http://127.0.0.1:19530"
HEALTH = "http://127.0.0.1:9091/healthz"
START_SECONDS = 120


def guard(command):
    """Return a command that runs another one in a network namespace of its own."""
    rights = [] if os.geteuid() == 0 else ["--map-root-user"]
    namespaces = ["--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return ["unshare", *rights, *namespaces, sys.executable, __file__, *command]


def why_not_guarded():
    """Return why no namespace can be made on this machine; empty where it can."""
    try:
        found = subprocess.run(guard(["true"]), capture_output=True, text=True, timeout=60)
    except OSError as error:
        return f"unshare cannot be run ({error})"
    return "" if found.returncode == 0 else f"unshare is not permitted ({found.stderr.strip()})"


def interfaces():
    """Return the names of the network interfaces that this process sees."""
    return [name for _, name in socket.if_nameindex()]


def raise_loopback():
    """Turn on the loopback interface of this network namespace."""
    get_flags, set_flags, up = 0x8913, 0x8914, 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, get_flags, request))[1]
        fcntl.ioctl(any_socket, set_flags, struct.pack("16sh14x", b"lo", flags | up))


class MilvusServer:
    """The server of PyPI's package `milvus`, which is started and stopped."""

    def __init__(self, folder):
        assert interfaces() == ["lo"], "a server is only started where nothing else can reach it"
        program = Path(os.environ[SERVER]) / "bin" / "milvus-server"
        self.log = folder / "server.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [program, "--data", folder / "data", "--proxy-port", "19530"],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        end = time.monotonic() + START_SECONDS
        while not self._is_ready():
            assert self.process.poll() is None and time.monotonic() < end, self.log.read_text()
            time.sleep(0.2)
        time.sleep(1)  # the package waits so too after the first sign of health

    def _is_ready(self):
        try:
            with urllib.request.urlopen(HEALTH, timeout=5) as answer:
                return b"OK" in answer.read()
        except OSError:
            return False

    def send(self, number):
        """Send a signal to the server and to the program that started it."""
        os.killpg(self.process.pid, number)

    def kill(self):
        """End the server at once."""
        self.send(signal.SIGKILL)
        self.process.wait(10)


if __name__ == "__main__":
    raise_loopback()
    os.execvp(sys.argv[1], sys.argv[1:])
