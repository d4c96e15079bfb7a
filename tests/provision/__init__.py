"""Tests of provision."""
