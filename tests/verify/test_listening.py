"""Who holds a port, read from /proc: the socket's maker, by the address that is in the way."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.require import need_root
from verify.probe.listening import PortTaken, bind, holder

ROOT = Path(__file__).parents[2]
# the child's pid is lower than its parent's, as it is once pids have started over
_STARTED_OVER = """
import os, sys
sys.path.insert(0, sys.argv[1])
from verify.probe.listening import bind, holder
made = bind("127.0.0.1", 0)
made.listen(1)
with open("/proc/sys/kernel/ns_last_pid", "w") as last:
    last.write("99")
if os.fork() == 0:
    print(os.getpid(), os.getppid(), holder("127.0.0.1", made.getsockname()[1]), flush=True)
    os._exit(0)
os.wait()
"""


def test_the_maker_of_a_socket_holds_the_port_and_not_a_fork_of_it_with_a_lower_pid() -> None:
    need_root()
    inside = 'echo 500 > /proc/sys/kernel/ns_last_pid && "$0" -c "$1" "$2"; exit $?'
    done = subprocess.run(
        [
            "unshare",
            "--pid",
            "--fork",
            "--mount-proc",
            "sh",
            "-c",
            inside,
            sys.executable,
            _STARTED_OVER,
            ROOT,
        ],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    child, parent, told = done.stdout.strip().split(" ", 2)

    assert int(child) < int(parent)
    assert told.startswith(f"pid {parent} (")


def test_our_own_socket_is_ours() -> None:
    with bind("127.0.0.1", 0) as made:
        made.listen(1)

        assert holder("127.0.0.1", made.getsockname()[1]).startswith(f"pid {os.getpid()} (")


def test_a_listener_on_the_same_port_of_another_address_is_not_named() -> None:
    first, second = "127.0.0.1", "127.0.0.2"
    code = (
        "import socket, sys; s = socket.create_server((sys.argv[1], int(sys.argv[2])));"
        " print(flush=True); sys.stdin.read()"
    )
    with socket.socket() as made:
        made.bind((first, 0))
        made.listen(1)
        port = made.getsockname()[1]
        other = subprocess.Popen(
            [sys.executable, "-c", code, second, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        with other:
            assert other.stdout is not None
            assert other.stdout.readline() == b"\n"
            with pytest.raises(PortTaken) as ours:
                bind(first, port)
            with pytest.raises(PortTaken) as theirs:
                bind(second, port)

    assert f"pid {os.getpid()} (" in str(ours.value)
    assert f"pid {other.pid} (" in str(theirs.value)


def test_an_ipv6_listener_is_found_by_its_address() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as made:
        assert holder("::1", made.getsockname()[1]).startswith(f"pid {os.getpid()} (")
