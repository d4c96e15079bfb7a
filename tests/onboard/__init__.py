"""Tests of onboard."""
