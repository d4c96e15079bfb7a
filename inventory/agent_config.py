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


NodeName = Annotated[str, AfterValidator(_node_name)]
"""A node's name: an RFC 1123 label of lower case, at most 63."""


class Identity(Model):
    """Where the node's identity lies."""

    cert_file: RelativePath
    """The node's certificate and the issuing CA's, in this order (PEM)."""
    key_file: RelativePath
    """The private key (PEM, mode 0600)."""
    ca_file: RelativePath
    """The trusted roots (PEM)."""
    crl_file: RelativePath | None = None
    """The revocation lists (PEM)."""


class AgentFabric(Model):
    """A fast network as the agent uses it."""

    name: Annotated[str, Field(min_length=1)]
    """What the site file calls it."""
    interface: Annotated[str, Field(min_length=1, max_length=15)]
    """The network device on the node."""
    rate_gbps: PositiveFloat | None = None
    """Its speed."""
    mtu: Annotated[int, Field(ge=576, le=65520)] | None = None
    """The largest packet; from 576 (RFC 791) to what Proxmox gives a `netN`."""


class AgentConfig(Model):
    """The whole of agent.yaml."""

    node: NodeName
    """The node's name."""
    identity: Identity
    """Its identity's files."""
    fabrics: tuple[AgentFabric, ...] = ()
    """Its fast networks."""
