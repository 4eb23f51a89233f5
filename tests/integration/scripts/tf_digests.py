"""The groups of a TensorFlow state, eagerly or in a session: which digests a changed value changes.

It ends with 0 if that is exactly one piece of the variable, wherever the value is, if a session is
asked for a few lists of variables only, and if the parts in which three workers save the state are
the whole.
"""

import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import numpy as np
import tensorflow as tf

from edl.checkpoint.format import pack_state
from edl.job.state_share import StateShare
from edl.step.state_check import StateGroup
from edl.tensorflow.replica import TensorFlowReplica
from edl.tensorflow.variables import SESSION_GROUPS, SessionAccess

GROUPS = 40
in_session = sys.argv[1] == "session"
if in_session:
    tf.compat.v1.disable_eager_execution()
variables = {
    kind: tf.compat.v1.get_variable(kind, initializer=tf.zeros(1000, kind), use_resource=True)
    for kind in ("float32", "bfloat16", "int64")
}
fetched = set()


class Recording(SessionAccess):
    def read(self, variables):
        fetched.add(tuple(variable.name for variable in variables))
        return super().read(variables)


if in_session:
    session = tf.compat.v1.Session()
    session.run(tf.compat.v1.global_variables_initializer())
replica = TensorFlowReplica(
    "SGD", lambda: [*variables.values()], list, list, lambda: [*variables.values()]
)
if in_session:
    replica.use_session(session)
    replica.access = Recording(session)


def digests():
    found = {}
    for index in range(GROUPS):
        pieces = replica.digests(StateGroup(index, GROUPS))
        found |= {(index, name): digest for name, digest in pieces.items()}
    return found


before, whole = digests(), replica.digests()
groups = SESSION_GROUPS if in_session else GROUPS
assert len({index for index, _ in before}) == groups, before
assert len(before) > groups, before
assert len(whole) == 3, whole
for kind, variable in variables.items():
    for place in (0, 517, 999):
        value = np.zeros(1000, np.float32)
        value[place] = 1
        replica.access.write([(variable, value.astype(variable.dtype.base_dtype.as_numpy_dtype))])
        after = digests()
        changed = [key for key in before if after[key] != before[key]]
        assert len(changed) == 1, (kind, place, changed)
        assert kind in changed[0][1], (kind, place, changed)
        assert [name for name in whole if replica.digests()[name] != whole[name]] == [changed[0][1]]
        replica.access.write(
            [(variable, np.zeros_like(value, variable.dtype.base_dtype.as_numpy_dtype))]
        )
    assert digests() == before
assert len(fetched) <= groups + 1, fetched  # of each group, and of the whole state

# Three workers divide the same state: each variable is in one part, and all parts are the whole.
state_of_rank = [pack_state(replica.capture(StateShare(rank, 3))) for rank in range(3)]
parts = [one.blobs for one in state_of_rank]
all_blobs = pack_state(replica.capture()).blobs
assert sorted(name for part in parts for name in part) == sorted(all_blobs)
assert all(len(part) == 1 for part in parts), parts
assert {name: bytes(blob.data) for part in parts for name, blob in part.items()} == {
    name: bytes(blob.data) for name, blob in all_blobs.items()
}
assert state_of_rank[0].tree == pack_state(replica.capture()).tree

# Variables of equal names: those that are not trained, which may differ, are all rank 0's.
if not in_session:
    one, mean, variance, other = (
        tf.Variable(tf.fill([1000], float(number)), trainable=number in (0, 3))
        for number in range(4)
    )
    model = [one, mean, variance, other]
    replica = TensorFlowReplica("SGD", lambda: model, list, list, lambda: [one, other])
    parts = [pack_state(replica.capture(StateShare(rank, 2))).blobs for rank in range(2)]
    values = [{np.frombuffer(blob.data, np.float32)[0] for blob in part.values()} for part in parts]
    assert values == [{1.0, 2.0, 3.0}, {0.0}], values
