"""Attacks on the library, each with a count of what was tried and what held: `make campaign`, docs/reliability.md."""
