"""A VM that somebody made by hand on the lab is imported, adopted, onboarded, verified and retired like any other."""

import json
import time
import urllib.parse
from collections.abc import Iterator
from ipaddress import ip_interface
from pathlib import Path
from typing import Any

import pytest
import requests

from provision.spec import load_site
from tests.e2e.labs import Lab, running_lab
from tests.require import need_command

TIMEOUT_S = 120.0
VM = "/nodes/lab/qemu/321"


class Hands:
    """A person at Proxmox: raw calls with the lab's token, of which Muster knows nothing."""

    def __init__(self, lab: Lab) -> None:
        self.site = load_site(Path(lab.environ["MUSTER_SITE"]))
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.verify = str(self.site.proxmox.ca_file)
        token = self.site.proxmox.token_file.read_text().strip()
        self._session.headers["Authorization"] = f"PVEAPIToken={token}"

    def call(self, method: str, path: str, **fields: Any) -> Any:
        where = {"params": fields} if method == "GET" else {"data": fields}
        url = f"{self.site.proxmox.url}/api2/json{path}"
        answer = self._session.request(method, url, timeout=TIMEOUT_S, **where)  # type: ignore[arg-type]  # both fit
        assert answer.status_code == 200, f"{method} {path}: {answer.status_code} {answer.reason}"
        return answer.json()["data"]

    def task(self, method: str, path: str, **fields: Any) -> None:
        upid = urllib.parse.quote(self.call(method, path, **fields), safe="")
        until = time.monotonic() + TIMEOUT_S
        while (status := self.call("GET", f"/nodes/lab/tasks/{upid}/status"))["status"] != "stopped":
            assert time.monotonic() < until
            time.sleep(0.05)
        assert status["exitstatus"] == "OK"

    def make(self) -> str:
        """A VM with a name, a size and a tag of somebody's own; gives the uuid that Proxmox drew for it."""
        profile = self.site.profile("small")
        assert profile.network.addresses is not None
        first = ip_interface(profile.network.addresses.first)
        self.task("POST", "/nodes/lab/qemu/9000/clone", newid=321, name="trial", full=1)
        self.call(
            "PUT",
            f"{VM}/config",
            sshkeys=urllib.parse.quote(profile.ssh_keys_file.read_text().strip(), safe=""),
            ipconfig0=f"ip={first.ip + 60}/{first.network.prefixlen},gw={profile.network.addresses.gateway}",
            cores=1,
            tags="theirs",
        )
        self.task("POST", f"{VM}/status/start")
        smbios = dict(part.split("=", 1) for part in self.config["smbios1"].split(","))
        return str(smbios["uuid"])

    @property
    def config(self) -> dict[str, Any]:
        found: dict[str, Any] = self.call("GET", f"{VM}/config")
        return found


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    need_command("ssh-keygen")
    with running_lab(tmp_path_factory.mktemp("state")) as made:
        yield made


def test_a_vm_made_by_hand_walks_the_whole_road(lab: Lab, tmp_path: Path) -> None:
    hands = Hands(lab)
    uuid = hands.make()
    before = hands.config
    nodes = tmp_path / "nodes.csv"
    nodes.write_text(
        f"name,uuid,ssh_port,note\ngpu-21,{uuid},{hands.site.profile('small').ssh_port},from May\n"
    )

    imported = lab.run("node-inventory", "import", str(nodes))
    early = lab.run("onboard-node", "gpu-21", "--yes")
    adopted = lab.run("provision-node", "gpu-21", "--adopt", "--profile", "small", "--yes", "--wait", "30")
    assert adopted.returncode == 0, adopted.stderr
    after = hands.config
    again = lab.ask("provision-node", "gpu-21", "--adopt", "--no-input")["nodes"][0]
    onboarded = lab.run("onboard-node", "gpu-21", "--yes")

    assert imported.returncode == 0, imported.stderr
    assert (early.returncode, "signed no ticket" in early.stderr) == (3, True)
    assert "'trial' on lab is to be adopted" in adopted.stderr
    assert after == before
    assert (again["changed"], again["uuid"], again["vmid"]) == (False, uuid, 321)
    assert onboarded.returncode == 0, onboarded.stderr
    node = lab.node("gpu-21")
    assert (node["state"], node["profile"], node["address"]["source"]) == ("in-service", "small", "static")
    states = [event["after"] for event in lab.ask("node-inventory", "history", "gpu-21")["events"]]
    assert states[:3] == ["awaiting-identity", "awaiting-identity", "onboarding"]
    assert "verifying" in states

    ended = lab.run("onboard-node", "gpu-21", "--decommission", "--yes")
    gone = lab.run("provision-node", "gpu-21", "--retire", "--yes")

    assert ended.returncode == 0, ended.stderr
    assert gone.returncode == 0, gone.stderr
    assert 321 not in [vm["vmid"] for vm in lab.ask("node-lab", "status")["vms"]]
    assert (
        json.loads(lab.run("node-inventory", "show", "gpu-21", "--json").stdout)["node"]["state"] == "retired"
    )
