"""edl beside stock Horovod Elastic and plain Horovod: same machine, same run, same script logic.

`make bench` (``python -m benchmarks``) writes benchmarks/results/: tables, pictures, the raw
figures. Not a test: the figures depend on the machine, the ratios less so.

script.py        what all training scripts share: the step log, the turns, the data's shape
torch/           the scripts in PyTorch: workload (model, data), edl, plain (Horovod, for the step
                 time), stock (Horovod Elastic)
tensorflow/      the same in TensorFlow, in each way to train
jobs.py          starting, resizing and ending a job of either kind
resize.py        stalls of a resize      step_time.py   step times, interleaved
crash.py         what a death costs      parts.py       where edl says that the time went
goodput.py       what is useful, when something fails again and again
loading.py       samples a second of edl's loaders beside the frameworks' own
preemption/      a checkpoint, preempt, resume, migrate: latencies in parts
thousand/        what a thousand workers cost: stand-ins in place of workers
report.py        figures -> table and picture
"""
