"""The Python with mosaicml-streaming, for tests and for the examples in the docs."""

from __future__ import annotations

import subprocess
from pathlib import Path

from extra_python import python_with
from paths import ROOT

from edl.testing.job import WAIT_S

RELEASE = "0.13.0"
# What the library imports to read and write shards. It also asks for NumPy below 2.2, for
# torchvision, and for the clients of several object stores.
NEEDED = (
    "Brotli==1.2.1",
    "catalogue==2.0.10",
    "cramjam==2.14.0",
    "python-snappy==0.7.3",
    "tqdm==4.70.1",
    "xxhash==4.1.0",
    "zstd==1.5.7.2",
)
# Names that `import streaming` takes from libraries which nothing here calls.
STAND_INS = {
    "torchvision/__init__.py": "",
    "torchvision/datasets.py": "class VisionDataset: ...",
    "torchvision/transforms/__init__.py": "",
    "torchvision/transforms/functional.py": "def to_tensor(_): ...",
    "transformers/__init__.py": "",
    "transformers/feature_extraction_utils.py": "class BatchFeature: ...",
    "transformers/tokenization_utils_base.py": "class BatchEncoding: ...",
    "transformers/models/__init__.py": "",
    "transformers/models/auto/__init__.py": "",
    "transformers/models/auto/tokenization_auto.py": "class AutoTokenizer: ...",
}
WRITE = """
import sys
from streaming import MDSWriter

columns = {"number": "int", "text": "str"}
with MDSWriter(out=sys.argv[1], columns=columns, size_limit=1500) as out:
    for number in range(int(sys.argv[2])):
        out.write({"number": number, "text": f"sample {number}"})
"""


def mds_python() -> Path:
    """Return a Python that has mosaicml-streaming beside edl; the first call installs it."""
    return python_with(
        f"mds-{RELEASE}", "--no-deps", f"mosaicml-streaming=={RELEASE}", *NEEDED, beside_edl=True
    )


def stand_ins(directory: Path) -> Path:
    """Write the stand-ins below a directory; return what has to be in ``PYTHONPATH``."""
    root = directory / "stand-ins"
    for name, text in STAND_INS.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


def write_shards(directory: Path, samples: int) -> Path:
    """Write several shards of so many samples to ``mds`` in a directory; return it."""
    written = directory / "mds"
    subprocess.run(
        [mds_python(), "-c", WRITE, written, str(samples)],
        env={"PYTHONPATH": f"{ROOT}:{stand_ins(directory)}"},
        timeout=WAIT_S,
        check=True,
    )
    assert len(list(written.glob("shard.*.mds"))) > 4
    return written
