"""Latencies of preempting, resuming and migrating a job, each in parts, beside Singularity's.

``python -m benchmarks --only preemption`` writes benchmarks/results/preemption.md.

timeline.py   a latency's parts, from events, step logs and the ends of processes; pure
live.py       the jobs that are preempted, resumed and migrated
page.py       the page
"""
