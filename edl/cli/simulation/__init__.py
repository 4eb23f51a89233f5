"""The command `edl simulate`: its options, runs, tables and figure."""
