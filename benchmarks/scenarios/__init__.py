"""Horovod's own elastic integration scenarios under an unmodified `horovodrun`: stock and edl.

``python -m benchmarks.scenarios`` runs each with both and writes the table of
benchmarks/results/horovod-scenarios.md and horovod-scenarios.json beside it.
tests/integration/test_horovod_scenarios.py runs those of edl.

The scenarios begin as those of Horovod's repository do (test/integration/elastic_common.py): which
hosts the discovery script prints in which epoch, and who fails when. Their hosts are names of this
machine.

table.py    the scenarios: what happens, and what has to come of it, with stock and with edl
scene.py    inside a training script: fail when it is due, wait for the ring, tell of an epoch
stock.py    the script for stock Horovod Elastic (PyTorch). edl trains the tests' counting model
play.py     run one scenario with one system: what it reported, how and when it ended
verdict.py  what of it is not as it has to be
"""
