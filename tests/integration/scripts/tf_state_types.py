"""Values of NumPy in a TensorFlow state: newcomers and checkpoints give each with its type."""

import os
import tempfile
from pathlib import Path
from types import SimpleNamespace

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import numpy as np
import tensorflow as tf

from edl.checkpoint import format as files
from edl.tensorflow import collectives, replica

DATES = np.array(["2020-01-01", "NaT"], "M8[ns]")
VALUES = {
    "float32": np.ones((2, 3), np.float32),
    "bfloat16": np.ones(3, tf.bfloat16.as_numpy_dtype),
    "other byte order": np.array([1, 2], ">i4"),
    "other byte order, with gaps": np.array([1, 2, 3], ">i4")[::2],
    "text": np.array(["ab", "łódź"]),
    "bytes": np.array([b"a", b"bc"]),
    "dates": DATES,
    "durations": DATES - DATES[0],
    "long": np.ones(2, np.longdouble),
    "empty": np.zeros((0, 2), "M8[s]"),
    "scalar": np.float32(2.5),
    "one text": np.str_("ab"),
}
ONLY_SENT = {  # a checkpoint refuses them
    "rows": np.array([(1, 2.5)], [("step", "i4"), ("loss", "f4")]),
    "objects": np.array(["a", None]),
    "masked": np.ma.masked_array([1, 2], [0, 1]),
    "date": DATES[0],
}


def assert_equal(found, values):
    for name, value in values.items():
        there = found[name]
        assert np.asarray(there).dtype == np.asarray(value).dtype, (name, there)
        np.testing.assert_array_equal(there, value, name)


collectives.broadcast_array = lambda array, _root: array  # a ring of one
ring = SimpleNamespace(place=SimpleNamespace(rank=0), broadcast=lambda mine, _root, _name: mine)
found = collectives.exchange(ring, 0, {"tracked": {**VALUES, **ONLY_SENT}}, keep=True)["tracked"]
assert_equal(found, VALUES | ONLY_SENT)
assert found["masked"].mask.tolist() == [False, True]

weight = tf.Variable([1.0])
saved = replica.TensorFlowReplica("SGD", lambda: [weight], list, list, lambda: [weight])
with tempfile.TemporaryDirectory() as directory:
    path = files.path_of(Path(directory), 1)
    packed = files.pack_state(saved.copied({"tracked": VALUES}))
    files.write(path, files.Manifest("j", "r", 1, 0, "tensorflow", {}, {}), packed)
    assert_equal(saved.uncopied(files.read_checkpoint(path).state)["tracked"], VALUES)


def refusal_of(value):
    try:
        files.pack_state(saved.copied({"value": value}))
    except files.CheckpointError as error:
        return str(error)
    return ""


for value in ONLY_SENT.values():
    sentence = refusal_of(value)
    assert sentence.startswith("state['value'] is a numpy."), (value, sentence)
    assert "which a checkpoint cannot hold" in sentence, sentence
