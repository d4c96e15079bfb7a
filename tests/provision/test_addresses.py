"""Static addresses: on record before they are used, and never given twice, whoever asks at the same time."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from inventory.model import Address, Fabric, Node, State
from inventory.store import AddressTaken, Store
from tests.provision.kit import Place, make
from tests.provision.leaving import record

RANGE = "{bridge: vmbr0, address: {from: 10.0.0.10/24, to: 10.0.0.49/24, gateway: 10.0.0.1}}"
FABRIC = "[{name: fabric0, bridge: vmbr1, addresses: {from: 10.9.0.10/24, to: 10.9.0.49/24}}]"


def test_an_address_is_on_record_before_the_first_write(place: Place) -> None:
    place.write_site(profile_network=RANGE, profile_fabrics=FABRIC)
    held: list[dict[str, str]] = []

    def first_write(method: str, _path: str) -> None:
        if method == "POST" and not held:
            held.append(holders(place.store, str(record(place).site), "10.0.0.10", "10.9.0.10"))

    place.requests.on_next = first_write
    make(place.road())

    assert held == [{"10.0.0.10": "gpu-01", "10.9.0.10": "gpu-01"}]
    assert record(place).address == Address("10.0.0.10", 24, "static")


def test_a_node_set_gets_an_address_each(place: Place) -> None:
    place.write_site(profile_network=RANGE, profile_fabrics=FABRIC)

    plan = json.loads(place.run("gpu-[01-03]", "--plan", "--json").stdout)

    configs = [
        {change["key"]: change["after"] for change in node["plan"][1]["changes"]} for node in plan["nodes"]
    ]
    assert [config["ipconfig0"] for config in configs] == [
        f"ip=10.0.0.{number}/24,gw=10.0.0.1" for number in (10, 11, 12)
    ]
    assert [config["ipconfig1"] for config in configs] == [
        f"ip=10.9.0.{number}/24" for number in (10, 11, 12)
    ]


def test_an_address_that_another_run_took_after_the_plan_is_chosen_anew(place: Place) -> None:
    place.write_site(profile_network=RANGE)
    place.address = "10.0.0.11"
    road = place.road()
    prepared = road.prepare("gpu-01", profile=None)
    assert prepared.spec.address == "10.0.0.10/24"
    place.store.add(
        node("gpu-09", "10.0.0.10", site=place.pve.url.removeprefix("https://")), why="another run"
    )

    made = road.carry_out(prepared)

    assert made.node.address == Address("10.0.0.11", 24, "static")
    assert place.pve.vm(100).config["ipconfig0"] == "ip=10.0.0.11/24,gw=10.0.0.1"


PROCESS = """
import sys
from pathlib import Path
from dataclasses import replace
from inventory.model import Address, Node, State
from inventory.store import AddressTaken, Store
from provision.spec import load_site
from provision.wanted import want

site, store, mine = load_site(Path(sys.argv[1])), Store.open(sys.argv[2]), sys.argv[3]
print("ready", flush=True)
sys.stdin.readline()
for number in range(10):
    name = f"{mine}-{number}"
    while True:
        spec = want(site, name, "small", ssh_keys=("k",), nodes=store.all())
        ip, _, prefix = spec.address.partition("/")
        node = Node(name=name, state=State.PROVISIONING, site=site.name, address=Address(ip, int(prefix), "static"))
        try:
            store.add(node, why="a test")
        except AddressTaken:
            continue
        break
"""


def test_two_processes_never_choose_the_same_address(place: Place) -> None:
    place.write_site(profile_network=RANGE)
    url = f"sqlite:///{place.folder / 'inventory.db'}"
    place.store.all()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(place.site_file), url, name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for name in ("a", "b")
    ]  # fmt: skip
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    ends = [process.communicate("go\n", timeout=600)[1] for process in processes]

    assert [process.returncode for process in processes] == [0, 0], ends
    addresses = [str(found.address) for found in place.store.all()]
    assert len(addresses) == len(set(addresses)) == 20


def test_the_record_itself_refuses_an_address_twice(place: Place) -> None:
    store = place.store
    store.add(node("a", "10.0.0.10"), why="a test")

    with pytest.raises(AddressTaken, match=r"10\.0\.0\.10 is another node's"):
        store.add(node("b", "10.0.0.10"), why="a test")
    assert store.get("b") is None
    other = store.add(node("b", "10.0.0.11"), why="a test")
    with pytest.raises(AddressTaken):
        store.save(replace(other, fabrics=(Fabric("fabric0", address="10.0.0.10/24"),)))
    store.add(node("c", "10.0.0.10", site="elsewhere"), why="another site has its own networks")


def test_a_leased_address_is_nobodys(place: Place) -> None:
    for name in ("a", "b"):
        leased = replace(node(name, "10.0.0.10"), address=Address("10.0.0.10", 24, "leased"))
        place.store.add(leased, why="a test")


def test_an_address_is_free_again_when_its_node_has_another_or_is_retired(place: Place) -> None:
    store = place.store
    first = store.add(node("a", "10.0.0.10", state=State.RETIRING), why="a test")
    moved = store.save(replace(first, address=Address("10.0.0.11", 24, "static")))
    assert holders(store, "here", "10.0.0.10", "10.0.0.11") == {"10.0.0.11": "a"}

    store.save(replace(moved, state=State.RETIRED), why="a test")

    assert holders(store, "here", "10.0.0.10", "10.0.0.11") == {}


def holders(store: Store, site: str, *ips: str) -> dict[str, str]:
    """Whose each of these addresses is."""
    return {ip: node.name for ip in ips for node in store.claimants(ips=[ip], site=site)}


def node(name: str, ip: str, *, site: str = "here", state: State = State.PROVISIONING) -> Node:
    return Node(name=name, state=state, site=site, address=Address(ip, 24, "static"))
