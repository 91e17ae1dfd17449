"""The commands for one's own data, one per file: its options, the calls it makes, what it prints, what to do next."""
