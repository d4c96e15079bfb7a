"""Tries a backend out: a node that boots, lets a key in over SSH, and has what onboarding needs."""

import uuid

from inventory.errors import OtherSide
from lab.nodes import Backend, NodeSpec
from lab.ssh_server import Door, Program, SshService, new_login_key

TRIAL_VMID = 0
_TIMEOUT_S = 30.0
# Each line ends the trial with its sentence, which becomes the backend's `why`.
_QUESTIONS = """
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:$PATH
python3 -I -S -c 'import ssl' || { echo 'python3 does not run in the node'; exit 1; }
openssl version >/dev/null || { echo 'openssl does not run in the node'; exit 1; }
[ "$(id -u)" = OWNER_UID ] || sudo -n true || { echo 'sudo does not work in the node'; exit 1; }
"""


def try_out(backend: Backend, address: str) -> None:
    """Boot a trial node, ask it what it has, and destroy it.

    Raises:
        OtherSide: it does not start, or lacks something.
    """
    key, public = new_login_key()
    spec = NodeSpec(
        vmid=TRIAL_VMID,
        name="trial",
        address=address,
        uuid=str(uuid.uuid4()),
        macs=("02:00:00:00:00:01",),
        user=backend.login_user,
        ssh_keys=(public,),
        cores=1,
        memory_mib=64,
        instance_id=str(uuid.uuid4()),
    )
    client = SshService()
    try:
        node = backend.boot(spec)
        host_key = node.read_file("/etc/ssh/ssh_host_ed25519_key.pub")
        door = Door(address, node.ssh_port, spec.user, (), lambda: b"", lambda _: Program((), {}))
        # The machine's own user owns what a plain directory holds; everywhere else root does.
        owner = "0" if backend.install.owner == "root" else '"$(id -u)"'
        status, said = client.run(
            door,
            _QUESTIONS.replace("OWNER_UID", owner),
            key=key,
            host_key_lines=[host_key],
            timeout_s=_TIMEOUT_S,
        )
    finally:
        backend.destroy(TRIAL_VMID)
        client.close()
    if status != 0:
        raise OtherSide(
            "the trial node lacks something",
            why=said.splitlines()[-1] if said else f"its commands end with status {status}",
            next_step="install what is missing on this machine",
        )
