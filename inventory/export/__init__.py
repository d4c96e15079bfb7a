"""Ways out of the record: nodes as other programs want them; the record is read and never changed."""

from enum import StrEnum


class Form(StrEnum):
    """What nodes can be written as."""

    JSON = "json"
    CSV = "csv"
    ANSIBLE = "ansible"
    SSH_CONFIG = "ssh-config"
    KNOWN_HOSTS = "known-hosts"
    PROMETHEUS = "prometheus"
