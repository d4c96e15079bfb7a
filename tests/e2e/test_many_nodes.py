"""Many nodes of one lab are made by one command and brought into service by another, and all of it stays on record.

MUSTER_NODES=200 is the long form: some seven minutes on two cores.
"""

import os

from bench.many_nodes import walk
from tests.require import need_command

NODES = int(os.environ.get("MUSTER_NODES", "3"))  # read at once: the tests' environment is scrubbed
_RANKS = 8


def test_every_node_of_a_fleet_is_in_service_and_its_ranks_time_lines_are_kept() -> None:
    need_command("ssh-keygen")

    walked = walk(NODES)

    assert (walked.nodes, walked.reports, walked.ranks) == (NODES, NODES, NODES * _RANKS)
