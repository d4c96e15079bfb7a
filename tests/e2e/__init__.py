"""Tests of the whole road: a VM made, given an identity, and proven."""
