"""Tests of ca."""
