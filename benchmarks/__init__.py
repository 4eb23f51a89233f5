"""edl beside stock Horovod Elastic and plain Horovod: same machine, same run, same script logic.

`make bench` (``python -m benchmarks``) writes docs/benchmarks/: a table, a picture, the raw
figures. Not a test: the figures depend on the machine, the ratios less so.

workload.py      the model, the data and the step log that all training scripts share
train_stock.py   the script under stock Horovod Elastic      train_edl.py   the same under edl
train_plain.py   the script under plain Horovod, for the step time
jobs.py          starting, resizing and ending a job of either kind
resize.py        stalls of a resize      step_time.py   step times, interleaved
crash.py         what a death costs      parts.py       where edl says that the time went
report.py        figures -> table and picture
"""
