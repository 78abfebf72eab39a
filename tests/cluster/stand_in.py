"""A program that behaves like NVIDIA's MPS control daemon as seen from outside, without a GPU.

`install` puts `nvidia-cuda-mps-control` and `nvidia-cuda-mps-server` into a folder. Files beside
them tell them what to do wrong: `refuse`, `no-server`, `hang`.
"""

from __future__ import annotations

import sys
from pathlib import Path

CONTROL = """\
import os, signal, socket, subprocess, sys, time
from pathlib import Path

here = Path(__file__).parent
pipes = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent"))
logs = Path(os.environ.get("CUDA_MPS_LOG_DIRECTORY", "/nonexistent"))
servers = []


def log(text):
    with open(logs / "control.log", "a") as to:
        to.write(f"[2026-01-01 00:00:00.000 Control {os.getpid()}] {text}\\n")


def clients():
    mark = b"CUDA_MPS_PIPE_DIRECTORY=" + os.fsencode(pipes)
    for entry in Path("/proc").iterdir():
        try:
            environ = (entry / "environ").read_bytes().split(b"\\0")
            if mark in environ and b"nvidia-cuda-mps" not in (entry / "cmdline").read_bytes():
                yield entry.name
        except OSError:
            pass


def answer(command):
    if command.startswith("start_server"):
        if (here / "no-server").exists():
            log("Server 7 exited with status 1")
        else:
            servers.append(subprocess.Popen([str(here / "nvidia-cuda-mps-server")]))
            log(f"NEW SERVER {servers[-1].pid}: Ready")
    elif command == "get_server_list":
        return "".join(f"{server.pid}\\n" for server in servers)
    elif command.startswith("get_client_list"):
        return "".join(f"{pid}\\n" for pid in clients())
    elif command.startswith("quit"):
        if (here / "hang").exists():
            time.sleep(3600)
        for server in servers:
            server.kill()
            server.wait()
        os.unlink(pipes / "control")
        return None
    return ""


def serve(listening):
    while True:
        connection, _ = listening.accept()
        with connection:
            reply = answer(connection.recv(1000).decode().strip())
            if reply is None:
                os._exit(0)
            connection.sendall(reply.encode())


def daemon():
    if (here / "refuse").exists():
        log("Failed to start: the stand-in refuses")
        sys.exit("An instance of this daemon is already running")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(pipes / "control"))
    listening.listen()
    if os.fork():
        os._exit(0)
    os.setsid()
    (pipes / "nvidia-cuda-mps-control.pid").write_text(str(os.getpid()))
    log(f"Starting control daemon for {os.environ['CUDA_VISIBLE_DEVICES']}")
    serve(listening)


def ask():
    for line in sys.stdin:
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(str(pipes / "control"))
            except OSError:
                sys.exit("Cannot find MPS control daemon process")
            connection.sendall(line.encode())
            while more := connection.recv(1000):
                sys.stdout.write(more.decode())


daemon() if sys.argv[1:] == ["-d"] else ask()
"""

SERVER = "import time\ntime.sleep(3600)\n"


def install(folder: Path) -> Path:
    """Put the two programs into this folder."""
    for name, text in (("control", CONTROL), ("server", SERVER)):
        path = folder / f"nvidia-cuda-mps-{name}"
        path.write_text(f"#!{sys.executable} -S\n{text}")
        path.chmod(0o755)
    return folder
