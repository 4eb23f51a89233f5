"""TensorFlow writes the records of its arguments (hexadecimal) and reads the file `ours`.

Writes FOLDER/theirs, FOLDER/gzip and FOLDER/zlib; prints what `ours` holds, as a JSON list.
"""

import json
import os
import sys
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import lean  # noqa: F401
import tensorflow as tf

folder = Path(sys.argv[1])
records = [bytes.fromhex(record) for record in sys.argv[2:]]
for name, compression in (("theirs", ""), ("gzip", "GZIP"), ("zlib", "ZLIB")):
    with tf.io.TFRecordWriter(str(folder / name), compression) as writer:
        for record in records:
            writer.write(record)
ours = tf.data.TFRecordDataset(str(folder / "ours"))
print(json.dumps([record.numpy().hex() for record in ours]))
