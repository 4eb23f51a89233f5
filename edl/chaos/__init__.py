"""The modules behind ``edl chaos``: it causes faults in a running job and awaits its recovery."""
