"""`collc status --openmetrics --listen`: a local socket that answers, whatever its clients do."""

from __future__ import annotations

import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from support.cli import collc, refused
from support.libraries import library
from support.openmetrics import parse, value
from support.ranks import ranks
from support.running import WAIT, stranger


@contextmanager
def server(path: Path, *what: object) -> Iterator[subprocess.Popen[str]]:
    """A server that clients can connect to; it is killed at the end if it still runs."""
    words = ["status", *map(str, what), "--openmetrics", "--listen", str(path)]
    # Ctrl-C reaches it also where the tests run in the background of a script, which ignores it.
    interruptible = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    command = [sys.executable, "-c", f"{interruptible}; from collc.cli import main; main()", *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            assert process.stderr.readline() == f"listening on {path}\n"
            yield process
        finally:
            process.kill()


def connect(path: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        client.connect(str(path))  # without a time limit: a socket with one does not wait if the backlog is full
        client.settimeout(WAIT)
    except BaseException:
        client.close()
        raise
    return client


def ask(path: Path, request: bytes = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n") -> tuple[str, str]:
    """The status line and the body of an answer, whose length is as its head says."""
    with connect(path) as client:
        client.sendall(request)
        answer = b""
        try:
            while part := client.recv(1 << 16):
                answer += part
        except ConnectionResetError:  # the rest of a request that nobody read
            pass
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    if lines != [""]:
        assert f"Content-Length: {len(body)}" in lines
    return lines[0], body.decode()


def test_the_counters_of_a_running_job(tmp_path: Path) -> None:
    path = tmp_path / "metrics"
    with ranks(library("pair"), 2) as team, server(path, team.processes[0].pid):
        mode = path.lstat().st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o600
        assert [answer["result"] for answer in team.init()] == [0, 0]
        for times in (2, 3):
            before = 0 if times == 2 else 2
            assert [answer["result"] for answer in team.all(do="call", times=times)] == [0, 0]
            line, text = ask(path)
            assert line == "HTTP/1.0 200 OK"
            samples = parse(text)
            for rank in "01":
                assert value(samples, "collc_calls_total", rank=rank) == before + times


def test_clients_that_do_what_they_like(tmp_path: Path) -> None:
    """Slow ones, more than it keeps, garbage, and some that never read: the next one is answered all the same."""
    path = tmp_path / "metrics"
    with stranger() as process, server(path, process), ExitStack() as kept:
        assert ask(path, b"POST / HTTP/1.1\r\n\r\n")[0] == "HTTP/1.0 405 Method Not Allowed"
        assert ask(path, bytes(range(256)) * 40)[0] in ("HTTP/1.0 431 Request Header Fields Too Large", "")
        assert ask(path, b"\0\xff\n\n")[0] == "HTTP/1.0 405 Method Not Allowed"
        connect(path).close()
        for number in range(150):
            client = kept.enter_context(closing(connect(path)))
            if number % 3:
                client.sendall(b"GET / HT" if number % 3 == 1 else b"GET / HTTP/1.0\r\n\r\n")
        line, text = ask(path)
        assert line == "HTTP/1.0 200 OK"
        assert parse(text) == {}


@pytest.mark.slow
def test_a_client_that_asks_for_too_long_is_left(tmp_path: Path) -> None:
    path = tmp_path / "metrics"
    with stranger() as process, server(path, process), connect(path) as client:
        client.sendall(b"GET / HTTP/1.0\r\n")
        assert client.recv(10) == b""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_the_socket_is_gone(tmp_path: Path, number: signal.Signals) -> None:
    path = tmp_path / "metrics"
    with stranger() as process, server(path, process) as running, connect(path):
        running.send_signal(number)
        _, said = running.communicate(timeout=WAIT)
    assert running.returncode == (130 if number == signal.SIGINT else -number)
    assert said in ("collc: interrupted\n", "collc: terminated\n")
    assert list(tmp_path.iterdir()) == []


def test_only_a_socket_that_nobody_listens_on_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "metrics"
    with stranger() as process:
        with server(path, process) as running:
            line = refused(collc("status", "--openmetrics", "--listen", path), code=2)
            assert "another process listens there" in line
            assert ask(path)[0] == "HTTP/1.0 200 OK"
            running.kill()
            running.wait(WAIT)
        assert path.is_socket()
        with server(path, process):
            assert ask(path)[0] == "HTTP/1.0 200 OK"


def test_the_end_of_the_process_asked_for_is_an_error_of_the_answer(tmp_path: Path) -> None:
    path = tmp_path / "metrics"
    with subprocess.Popen(["sleep", "infinity"]) as job:
        try:
            with server(path, job.pid):
                job.kill()
                job.wait(WAIT)
                line, text = ask(path)
        finally:
            job.kill()
    assert line == "HTTP/1.0 500 Internal Server Error"
    assert f"there is no process {job.pid}" in text
    other = tmp_path / "other"
    assert "there is no process" in refused(collc("status", job.pid, "--openmetrics", "--listen", other), code=2)
    assert not other.exists()


def test_places_where_no_socket_can_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    long = tmp_path / ("x" * 108)
    for path, code, text in (
        (tmp_path / "file", 2, "something else is there"),
        (tmp_path / "link", 2, "something else is there"),
        (long, 2, "at most 107 bytes"),
        (tmp_path, 1, "this is a folder"),
        (tmp_path / "none" / "x", 1, "create the folder first"),
        (Path("/dev/null"), 2, "something else is there"),
    ):
        line = refused(collc("status", "--openmetrics", "--listen", path), code=code)
        assert line.startswith(f"collc: {path}: ")
        assert text in line
    assert (tmp_path / "file").read_text() == "mine"
    for port in ("9400", ":9400", "0", "127.0.0.1:9400", "localhost:9400", "[::1]:9400"):
        line = refused(collc("status", "--openmetrics", "--listen", port), code=2)
        assert line.startswith(f"collc: {port}: is a network port")
        assert not Path(port).exists()
    assert "add --openmetrics" in refused(collc("status", "--listen", tmp_path / "x"), code=2)
