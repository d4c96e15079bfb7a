"""agent.yaml: what a node's agent reads, written by onboard-node."""

from typing import Annotated

from pydantic import AfterValidator, Field, PositiveFloat

from inventory.document import Model, RelativePath
from inventory.errors import BadInput
from inventory.model import check_node_name


def _node_name(text: str) -> str:
    try:
        return check_node_name(text)
    except BadInput as error:
        raise ValueError(error.why) from None


class Identity(Model):
    """Where the node's identity lies.

    cert_file: the node's certificate and the issuing CA's, in this order (PEM).
    key_file: the private key (PEM, mode 0600). ca_file: the trusted roots (PEM).
    crl_file: the revocation lists (PEM); may be absent.
    """

    cert_file: RelativePath
    key_file: RelativePath
    ca_file: RelativePath
    crl_file: RelativePath | None = None


class AgentFabric(Model):
    """A fast network as the agent uses it.

    rate_gbps: 10^9 bit/s. mtu: octets, at least 576 (RFC 791), at most 65520 (Proxmox `netN`).
    """

    name: Annotated[str, Field(min_length=1)]
    interface: Annotated[str, Field(min_length=1, max_length=15)]
    rate_gbps: PositiveFloat | None = None
    mtu: Annotated[int, Field(ge=576, le=65520)] | None = None


class AgentConfig(Model):
    """The whole of agent.yaml."""

    node: Annotated[str, AfterValidator(_node_name)]
    identity: Identity
    fabrics: tuple[AgentFabric, ...] = ()
