"""The part of an authority that knows which node trusts which roots."""

import hashlib
import re
from datetime import datetime

from ca.census import BundleHolder, held_bundle, holders_of_other_bundle
from ca.many import ManyAuthority
from ca.profile import pem
from inventory.errors import BadInput

_SHA256 = re.compile(r"[0-9a-f]{64}")


class BundledAuthority(ManyAuthority):
    """Keeps on record which bundle each node got last."""

    @property
    def bundle_sha256(self) -> str:
        """Of the bundle that nodes are to have, hex."""
        return hashlib.sha256(self.bundle_pem).hexdigest()

    def bundle_installed(self, node: str, sha256: str, *, now: datetime, actor: str) -> None:
        """Record that a node has a bundle, by the SHA-256 of its file; the same again changes nothing.

        Raises:
            BadInput: that is no SHA-256, or no certificate of that node is known.
        """
        if not _SHA256.fullmatch(sha256):
            why = f"{sha256!r} is not a SHA-256: 64 hex digits"
        elif not self.records(node):
            why = "no node of that name has a certificate"
        else:
            with self._changing(now):
                if held_bundle(self._index, node) != sha256:
                    body = {"node": node, "sha256": sha256}
                    self._append("bundle-installed", body, now=now, actor=actor)
            return
        raise BadInput(
            f"no bundle is recorded as installed on {node}",
            why=why,
            next_step="node-ca list shows every node",
        )

    def holding_older_bundle(self, now: datetime) -> tuple[BundleHolder, ...]:
        """The nodes with a live certificate whose bundle, as far as is on record, is not the one of now."""
        first, *_ = self.rotation.all
        _, root = self.certificates_of(first)
        presumed = hashlib.sha256(pem(root)).hexdigest()
        return holders_of_other_bundle(self._index, self.bundle_sha256, now, presumed=presumed)
