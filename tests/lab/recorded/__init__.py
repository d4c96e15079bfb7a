"""Answers of a real Proxmox VE 9.2, and what replays them against the lab's API."""
