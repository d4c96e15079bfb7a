"""The record of the nodes: SQLAlchemy over SQLite or PostgreSQL, behind one class."""

from inventory.store.leases import LEASE_S
from inventory.store.record import AddressTaken, Store, utc_now, whoami

__all__ = ["LEASE_S", "AddressTaken", "Store", "utc_now", "whoami"]
