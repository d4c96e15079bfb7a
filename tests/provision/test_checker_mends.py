"""What check says right after a mend, and mends of what is broken itself."""

import json
from dataclasses import replace

from inventory.checking import Disagreement
from provision.api_token import read_token
from provision.compare import compare
from provision.hypervisor import Guest
from provision.proxmox import Proxmox
from provision.spec import load_site
from tests.inventory.check_kit import against_itself
from tests.provision.kit import Place, make
from tests.provision.test_checker import asked, the_node


class Old(Proxmox):
    """The list of VMs as pvestatd wrote it some seconds ago, when none of them ran."""

    def guests(self) -> tuple[Guest, ...]:
        return tuple(replace(each, running=False) for each in super().guests())


def found(place: Place) -> list[str]:
    site = load_site(place.site_file)
    token, _ = read_token(site.proxmox.token_file)
    with Old(url=site.proxmox.url, token=token, ca_file=site.proxmox.ca_file) as proxmox:
        told = list(compare(proxmox, site, asked(place)))
    return [each.about for each in told if isinstance(each, Disagreement)]


def test_a_vm_that_the_list_has_as_stopped_is_asked_itself(place: Place) -> None:
    make(place.road())

    assert found(place) == []
    place.pve.vm(100).status = "stopped"
    assert found(place) == ["vm-stopped"]


def test_a_ticket_that_cannot_be_read_is_mended_by_a_new_one(place: Place) -> None:
    make(place.road())
    place.store.save(replace(the_node(place), ticket="garbage"), why="a hand slipped")
    assert against_itself(the_node(place)) == [("gpu-01", "ticket-unfit")]

    refused = place.run("gpu-01", "--json")
    told = json.loads(refused.stdout)["nodes"][0]
    assert (refused.returncode, told["ticket"]) == (3, None)
    assert told["error"]["next"] == "provision-node gpu-01 --reissue-ticket"
    done = place.run("gpu-01", "--reissue-ticket", "--yes")

    assert done.returncode == 0, done.stderr
    assert the_node(place).ticket != "garbage"
