"""One export, in the form that was asked for."""

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import IO, assert_never

from inventory.export import Form, ansible, openssh, plain, prometheus
from inventory.export.target import Tally, known_hosts_path, needed_known_hosts
from inventory.model import Node


def write(
    form: Form, nodes: Iterable[Node], out: IO[str], *, now: datetime, known_hosts: Path | None
) -> Tally:
    """Write the nodes to `out`; what was written, and what was not, comes back.

    known_hosts: the file that Ansible and ssh are to believe; ssh-config needs one.

    Raises:
        BadInput: `known_hosts` is needed, or its path cannot be written into other programs' files.
    """
    pins = None if known_hosts is None else known_hosts_path(known_hosts)
    match form:
        case Form.JSON:
            return Tally(plain.write_json(nodes, out, now=now))
        case Form.CSV:
            return Tally(plain.write_csv(nodes, out))
        case Form.PROMETHEUS:
            return Tally(prometheus.write(nodes, out, now=now))
        case Form.ANSIBLE:
            return ansible.write_yaml(nodes, out, known_hosts=pins)
        case Form.KNOWN_HOSTS:
            return openssh.write_known_hosts(nodes, out)
        case Form.SSH_CONFIG:
            return openssh.write_ssh_config(nodes, out, known_hosts=needed_known_hosts(known_hosts))
    assert_never(form)
